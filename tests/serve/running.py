"""A headless demo in the background, for tests that act on it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from prorsa.bus.journal import JournalReader
from prorsa.events import Stamped
from prorsa.serve.rundir import RunDir

MINI = Path(__file__).parent / "mini.toml"


class RunningDemo:
    """``prorsa demo --headless --json`` in a directory, as a context."""

    def __init__(self, tmp_path: Path, *arguments: str, speed: float = 10.0, scenario: Path = MINI) -> None:
        self.run_dir = RunDir(tmp_path / "run")
        self._arguments = ["--scenario", str(scenario), "--speed", str(speed), *arguments]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "prorsa",
                "demo",
                "--headless",
                "--json",
                *self._arguments,
                "--run-dir",
                str(self.run_dir.path),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=120)

    def finish(self, timeout_s: float = 300.0) -> dict[str, Any]:
        """Wait for the end and return the one run that was printed."""
        out, err = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, err
        (run,) = json.loads(out)["runs"]
        return run

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another ``prorsa`` command against this run."""
        command = [sys.executable, "-m", "prorsa", *arguments, "--connect", str(self.run_dir.path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    def status(self) -> dict[str, Any]:
        """``prorsa status --json``."""
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Wait until something is true of the run."""
        deadline = time.monotonic() + timeout_s
        while not self._holds(condition):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.1)

    def _holds(self, condition: Callable[[], bool]) -> bool:
        try:
            return condition()
        except (AssertionError, OSError):
            return False

    def events(self, *types: str) -> list[Stamped]:
        """What the journal holds, of the given types or of all."""
        with JournalReader(self.run_dir.journal) as journal:
            return list(journal.read(types=types or None))

    def wait_for(self, *types: str, timeout_s: float = 300.0) -> None:
        """Wait until the journal holds an event of one of the types."""

        def there() -> bool:
            return self.run_dir.journal.joinpath("manifest.json").exists() and bool(self.events(*types))

        self.wait(there, timeout_s)

    def pid(self, name: str) -> int:
        """The pid of a process of the run."""
        return int(self.run_dir.pid_file(name).read_text())

    def kill(self, name: str) -> None:
        """SIGKILL a process and wait until the supervisor has started it again."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: self.pid(name) != pid)


def holes(events: list[Stamped]) -> dict[str, list[int]]:
    """The sequence numbers that are missing in each source's events."""
    missing: dict[str, list[int]] = {}
    by_source: dict[str, list[int]] = {}
    for stamped in events:
        by_source.setdefault(stamped.source, []).append(stamped.seq)
    for source, seqs in by_source.items():
        assert len(set(seqs)) == len(seqs), f"{source} was journalled twice"
        absent = set(range(min(seqs), max(seqs) + 1)) - set(seqs)
        if absent:
            missing[source] = sorted(absent)
    return missing
