"""What a router keeps over its own death: the role table, and which requests were in flight.

The table is one JSON file, written whole and renamed. The requests in flight are a ledger beside it, one line for each
attempt that begins or ends; it survives the process (not the machine, whose workers would be gone too). A router that
starts reads it and aborts what its predecessor has left on the workers.
"""

from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct

from prorsa.cluster.router.table import Table
from prorsa.errors import ConfigError

LEDGER_LINES: Final = 20_000
"""The ledger is written anew, with what is in flight then, after this many lines."""


class Saved(Struct, kw_only=True):
    """The content of the state file."""

    table: Table
    run_id: str | None = None
    paused: list[str] = []


class State:
    """The state file and its ledger; with ``path`` None nothing is kept."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._ledger: IO[str] | None = None
        self._lines = 0
        self._flying: dict[str, tuple[str, ...]] = {}

    def load(self) -> Saved | None:
        """What a predecessor saved, or None.

        Raises:
            ConfigError: if the file is damaged or of another version.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Saved)
        except (msgspec.DecodeError, OSError) as error:
            raise ConfigError(f"state file {self._path}: {error}; remove it to start without its role table") from error

    def save(self, saved: Saved) -> None:
        """Write the state file, at once or not at all."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1))
        draft.replace(self._path)

    def left_behind(self) -> dict[str, tuple[str, ...]]:
        """Requests that a predecessor had in flight: ``rid -> workers``. Begins a new ledger."""
        left: dict[str, tuple[str, ...]] = {}
        if self._path is not None and self._ledger_path.exists():
            for line in self._ledger_path.read_text().splitlines():
                sign, _, rest = line.partition(" ")
                rid, *workers = rest.split("\t")
                if sign == "+":
                    left[rid] = tuple(workers)
                else:
                    left.pop(rid, None)
        return left

    def begin(self, rid: str, workers: tuple[str, ...]) -> None:
        """An attempt is about to be sent."""
        self._flying[rid] = workers
        self._write(f"+ {rid}\t" + "\t".join(workers))

    def end(self, rid: str) -> None:
        """An attempt has ended."""
        if self._flying.pop(rid, None) is not None:
            self._write(f"- {rid}")

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    @property
    def _ledger_path(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(".inflight")

    def _write(self, line: str) -> None:
        if self._path is None:
            return
        if self._ledger is None or self._lines >= LEDGER_LINES:
            self._renew()
            return
        # One write call a line: what the process has written is in the page cache, whatever kills it.
        self._ledger.write(line + "\n")
        self._lines += 1

    def _renew(self) -> None:
        self.close()
        self._ledger_path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._ledger_path.with_suffix(".inflight.tmp")
        self._ledger = draft.open("w", buffering=1)
        for rid, workers in self._flying.items():
            self._ledger.write(f"+ {rid}\t" + "\t".join(workers) + "\n")
        draft.replace(self._ledger_path)
        self._lines = len(self._flying)
