"""Cells on a Ray cluster, one to a core; Ray runs the cells of a node that is lost again on another."""

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from prorsa import __version__
from prorsa.errors import ConfigError, UnavailableError
from prorsa.runner.cells import Cell, Outcome, Watch
from prorsa.runner.processes import portable

T = TypeVar("T")

RETRIES: Final = 3
"""How often a cell is tried again when its node or its worker process is lost; an error of the cell itself is final."""


CONNECT_WITHIN_S: Final = 5.0


class RayExecutor:
    """Runs cells on the Ray cluster at ``address``: ``auto`` finds one, ``local`` starts one, else HOST:PORT.

    The nodes need the same version of Prorsa.

    Raises:
        ConfigError: if Ray is not installed, or the address is none of these.
        UnavailableError: if there is no cluster at the address.
    """

    def __init__(self, address: str) -> None:
        # Ray's own usage report calls out to the Internet.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = _ray()
        self._mine = not self._ray.is_initialized()
        if self._mine:
            self._connect(address)

    def _connect(self, address: str) -> None:
        _check_reachable(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            quiet["include_dashboard"] = False
        try:
            self._ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise UnavailableError(f"--ray {address}: {why}; start one with `ray start --head`") from error

    def run(self, cells: Sequence[Cell[T]], watch: Watch) -> Iterator[Outcome[T]]:
        """See :meth:`prorsa.runner.cells.Executor.run`; a cell's progress is none until it is done."""
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(_run)
        number_of = {remote.remote(cell, __version__): number for number, cell in enumerate(cells)}
        for number in number_of.values():
            watch(number, 0.0)
        try:
            while number_of:
                (ready,), _ = ray.wait(list(number_of), num_returns=1)
                number = number_of.pop(ready)
                yield self._outcome(number, ready)
        finally:
            for reference in number_of:
                ray.cancel(reference, force=True)

    def _outcome(self, number: int, reference: object) -> Outcome[Any]:
        try:
            outcome: Outcome[Any] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome(number, error=RuntimeError(f"lost {RETRIES + 1} times: {' '.join(str(error).split())}"))
        return Outcome(number, outcome.result, outcome.error)

    @property
    def ray(self) -> Any:  # noqa: ANN401 - Ray need not be installed
        """Ray itself, connected."""
        return self._ray

    def close(self) -> None:
        """Leave the cluster, if this executor has joined it; a ``local`` one ends."""
        if self._mine:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Look before Ray does: where nobody answers, it tries again for ever."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(f"--ray {address}: give auto, local, or a HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnavailableError(f"--ray {address}: {why}; start one with `ray start --head`") from error


def _ray() -> Any:  # noqa: ANN401 - Ray is optional, and has no types where it is absent
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError("--ray: Ray is not installed: this needs `pip install 'prorsa[ray]'`") from error
    return ray


def _run(cell: Cell[T], version: str) -> Outcome[T]:
    """What a node does with a cell."""
    if version != __version__:
        error = ConfigError(
            f"a Ray node has Prorsa {__version__}, and this is {version}: install the same on all nodes"
        )
        return Outcome(0, error=error)
    try:
        return Outcome(0, cell.work(lambda _share: None))
    except Exception as error:  # noqa: BLE001 - the root of a cell
        return Outcome(0, error=portable(error))
