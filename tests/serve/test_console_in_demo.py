"""The console in the foreground of a demo: it may die, and the run goes on."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prorsa.serve.rundir import RunDir
from tests.serve.running import MINI


def consoles(parent: int) -> list[int]:
    """Pids of the consoles that a process has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"\0console\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def ended(pid: int, meanwhile: Callable[[], object]) -> int:
    """The wait status of a child whose output must be read: it could not write its last words, and end, otherwise."""
    deadline = time.monotonic() + 120.0
    while True:
        meanwhile()
        child, status = os.waitpid(pid, os.WNOHANG)
        if child:
            return status
        assert time.monotonic() < deadline, "it did not end in time"
        time.sleep(0.05)


def test_a_killed_console_ends_nothing_and_enter_opens_another(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    command = [
        sys.executable,
        "-m",
        "prorsa",
        "demo",
        "--scenario",
        str(MINI),
        "--speed",
        "2",
        "--run-dir",
        str(run.path),
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, command)
    said = bytearray()
    os.set_blocking(terminal, False)

    def read(text: bytes) -> bool:
        with contextlib.suppress(OSError):
            said.extend(os.read(terminal, 1 << 16))
        return text in said

    try:
        wait_until(lambda: read(b"workers") and bool(consoles(pid)))
        (first,) = consoles(pid)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: read(b"the console died"))
        assert run.live
        status = [sys.executable, "-m", "prorsa", "status", "--json", "--connect", str(run.path)]
        subprocess.run(status, capture_output=True, check=True)
        said.clear()
        os.write(terminal, b"\n")
        wait_until(lambda: read(b"workers") and consoles(pid) not in ([], [first]))
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(ended(pid, meanwhile=lambda: read(b""))) == 0
    finally:
        if run.live:
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
    assert not run.live
