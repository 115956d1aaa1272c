"""Cells on the cores of one machine, a process each.

A process runs one cell and ends: so a process that dies names its cell, and nothing is left over from one cell to the
next. A fork server that has imported the simulator makes starting one cheap.
"""

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Final, TypeVar, cast

from prorsa.errors import CellError, ConfigError
from prorsa.runner.cells import Cell, Outcome, Tell, Watch

T = TypeVar("T")

TELL_EVERY_S: Final = 0.2
"""How often a cell's progress crosses the process boundary at most."""

_PRELOAD: Final = ["prorsa.simulate"]


class ProcessExecutor:
    """Runs up to ``jobs`` cells at a time.

    Raises:
        ConfigError: if ``jobs`` is below 1.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ConfigError(f"--jobs {jobs}: give 1 or more; this machine has {os.cpu_count()} cores")
        self._jobs = jobs

    def run(self, cells: Sequence[Cell[T]], watch: Watch) -> Iterator[Outcome[T]]:
        """See :meth:`prorsa.runner.cells.Executor.run`."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        waiting = list(range(len(cells)))[::-1]
        running: dict[Connection, tuple[int, ForkServerProcess]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    number = waiting.pop()
                    receiver, process = _start(context, cells[number])
                    running[receiver] = (number, process)
                for receiver in _ready(running):
                    number, process = running[receiver]
                    message = _received(receiver, process)
                    if isinstance(message, float):
                        watch(number, message)
                        continue
                    del running[receiver]
                    process.join()
                    yield Outcome(number, cast("T", message.result), message.error)
        finally:
            _end([process for _, process in running.values()])


def _start(context: ForkServerContext, cell: Cell[T]) -> tuple[Connection, ForkServerProcess]:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(cell, sender), name=cell.name, daemon=True)
    process.start()
    sender.close()  # the child's end alone stays open, so that its death ends the pipe
    return receiver, process


def _ready(receivers: Iterable[Connection]) -> list[Connection]:
    """Wait until there is something to receive, and say where."""
    return [receiver for receiver in wait(list(receivers)) if isinstance(receiver, Connection)]


def _received(receiver: Connection, process: ForkServerProcess) -> float | Outcome[object]:
    """The next message of a cell's process: how far it is, or what has come of it."""
    try:
        message: float | Outcome[object] = receiver.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        return Outcome(0, error=CellError(f"{process.name}: its process died ({_how(process.exitcode)})"))
    return message


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {signal.Signals(-status).name}; memory may have run out: try fewer --jobs"
    return f"status {status}"


def _end(processes: Iterable[ForkServerProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _run(cell: Cell[object], sender: Connection) -> None:
    """What a cell's process does. Ctrl-C reaches the whole process group, and is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told_at = time.monotonic()

    def tell(share: float) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= TELL_EVERY_S:
            told_at = now
            _send(sender, float(share))

    _send(sender, _outcome(cell, tell))


def _send(sender: Connection, message: float | Outcome[object]) -> None:
    try:
        sender.send(message)
    except BrokenPipeError:
        os._exit(1)  # the parent has gone: there is nobody to work for


def _outcome(cell: Cell[T], tell: Tell) -> Outcome[T]:
    try:
        return Outcome(0, cell.work(tell))
    except Exception as error:  # noqa: BLE001 - the root of a cell
        return Outcome(0, error=portable(error))


def portable(error: Exception) -> Exception:
    """The error if it survives pickling, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, a line ago
    except Exception:  # noqa: BLE001 - an error that nobody can send may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
