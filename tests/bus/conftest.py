"""A hub in a thread for most tests, and one in a process of its own for those that kill it."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prorsa import events
from prorsa.bus.hub import JOURNAL_DIR, Hub, HubConfig
from prorsa.bus.journal import JournalReader
from prorsa.bus.keys import HubKeys
from prorsa.bus.wire import Endpoints
from prorsa.events import Stamped

START_TIMEOUT_S = 60.0


class HubThread:
    """A hub of a run directory, started and stopped at will."""

    def __init__(
        self,
        run_dir: Path,
        *,
        speed: float = 1.0,
        run_id: str = "run-1",
        tcp: bool = False,
        keys: HubKeys | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.endpoints = Endpoints(*["tcp://127.0.0.1:*"] * 3) if tcp else Endpoints.ipc(run_dir)
        self._config = HubConfig(run_dir / JOURNAL_DIR, self.endpoints, run_id, speed, keys=keys)
        self._stop = threading.Event()

    def start(self) -> Hub:
        self.hub = Hub(self._config)
        self._stop.clear()
        self._thread = threading.Thread(target=self.hub.run, args=(self._stop,))
        self._thread.start()
        return self.hub

    def change(self, endpoints: Endpoints, keys: HubKeys | None = None) -> None:
        """Where the next start binds, and if given with which keys."""
        bound = Endpoints(endpoints.ingest, endpoints.fanout, endpoints.control)
        self._config = replace(self._config, endpoints=bound, keys=keys or self._config.keys)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def journalled(self) -> list[Stamped]:
        with JournalReader(self.run_dir / JOURNAL_DIR, strict=True) as reader:
            return list(reader.read())


class HubProcess:
    """A hub in a process, as the supervisor runs it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoints:
        command = [sys.executable, "-m", "prorsa.bus.hub", "--run-dir", str(self.run_dir), "--run-id", "run-1"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until((self.run_dir / "endpoints.json").exists, START_TIMEOUT_S)
        return Endpoints.load(self.run_dir)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def journalled(self) -> list[Stamped]:
        with JournalReader(self.run_dir / JOURNAL_DIR, strict=True) as reader:
            return list(reader.read())


@pytest.fixture
def hub_thread(tmp_path: Path) -> Iterator[HubThread]:
    thread = HubThread(tmp_path)
    thread.start()
    yield thread
    with contextlib.suppress(AttributeError):
        thread.stop()


@pytest.fixture
def hub_process(tmp_path: Path) -> Iterator[HubProcess]:
    process = HubProcess(tmp_path)
    yield process
    process.stop()


def wait_until(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for a condition; fail if it does not come."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)


def token(number: int) -> events.LlmFirstToken:
    """An event that can be told from the others."""
    return events.LlmFirstToken(rid=f"{number}")


def numbers(stamped: list[Stamped]) -> list[int]:
    """What :func:`token` was called with for each of these events; other events are left out."""
    return [int(s.event.rid) for s in stamped if isinstance(s.event, events.LlmFirstToken)]
