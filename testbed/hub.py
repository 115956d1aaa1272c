"""A real hub in a thread, for tests that read what workers publish."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from prorsa.bus.hub import Hub, HubConfig
from prorsa.bus.reading import JournalReader
from prorsa.bus.wire import Endpoints
from prorsa.events import Event, Stamped, type_name

_E = TypeVar("_E", bound=Event)


class RunningHub:
    """Serves until :meth:`stop`. ``ingest`` is what publishers connect to."""

    def __init__(self, run_dir: Path, run_id: str = "bed") -> None:
        self.journal = run_dir / "journal"
        self.run_id = run_id
        hub = Hub(HubConfig(self.journal, Endpoints.ipc(run_dir), run_id))
        self.ingest = hub.endpoints.ingest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=hub.run, args=(self._stop,), name="hub")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the hub; the journal stays."""
        self._stop.set()
        self._thread.join()

    def head(self) -> int:
        """``hub_seq`` of the last event so far."""
        with JournalReader(self.journal) as reader:
            last = reader.last()
        return 0 if last is None else last.hub_seq

    def read(self, kind: type[_E] | None = None, after_seq: int = 0) -> list[Stamped]:
        """What is in the journal, of one type or of all, after ``after_seq``."""
        types = None if kind is None else [type_name(kind)]
        with JournalReader(self.journal, strict=True) as reader:
            return list(reader.read(after_seq, types=types))

    def wait_for(
        self, kind: type[_E], where: Callable[[_E], bool], *, after_seq: int = 0, timeout_s: float = 10.0
    ) -> Stamped:
        """The first event of the type after ``after_seq`` for which ``where`` holds; waits for it.

        Raises:
            TimeoutError: if none comes; shows what came of that type.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.read(kind, after_seq)
            for stamped in found:
                if isinstance(stamped.event, kind) and where(stamped.event):
                    return stamped
            if time.monotonic() > deadline:
                raise TimeoutError(f"no such {type_name(kind)} within {timeout_s} s; there were {found[-5:]}")
            time.sleep(0.05)
