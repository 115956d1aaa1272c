"""Starts the processes of a run and restarts one that dies; its own death ends them all."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from prorsa.errors import ProrsaError
from prorsa.serve.rundir import RunDir

RESTARTS_AT_MOST: Final = 5
"""A process that dies more often than this within ``RESTARTS_WITHIN_S`` is broken, not unlucky."""
RESTARTS_WITHIN_S: Final = 60.0
RESTART_AFTER_S: Final = 0.2
STOP_WITHIN_S: Final = 10.0
_LOG_TAIL_LINES: Final = 8

log = structlog.get_logger("supervisor")


class ProcessFailed(ProrsaError):  # noqa: N818 - it says what happened
    """A process of the run keeps dying; the message holds the end of its log."""


@dataclass(slots=True)
class _Child:
    name: str
    process: asyncio.subprocess.Process | None = None
    restarts: deque[float] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Supervisor:
    """Keeps the named processes of a run directory up: ``python -m prorsa.serve NAME RUN_DIR``.

    A process that exits with status 0 has done its work and is not restarted.

    Args:
        run_dir: the run, with its plan saved.
        on_restart: told the name of each process that is started again.
    """

    def __init__(self, run_dir: RunDir, on_restart: Callable[[str], None] = lambda _: None) -> None:
        self._run_dir = run_dir
        self._on_restart = on_restart
        self._children: dict[str, _Child] = {}
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether the processes are being ended on purpose."""
        return self._stopping

    async def start(self, name: str) -> None:
        """Start a process and watch it."""
        child = self._children[name] = _Child(name)
        await self._spawn(child)
        child.task = asyncio.create_task(self._watch(child), name=f"watch {name}")

    async def ended(self, name: str) -> None:
        """Wait until the process has done its work.

        Raises:
            ProcessFailed: if it, or any other process of the run, keeps dying.
        """
        watched = {child.task for child in self._children.values() if child.task}
        waited = self._children[name].task
        assert waited is not None
        while not waited.done():
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            watched -= done
            for task in done:
                task.result()
        waited.result()

    async def stop(self) -> None:
        """Stop all processes, the last started first, and wait for them."""
        self._stopping = True
        for child in reversed(self._children.values()):
            process = child.process
            if process is None or process.returncode is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
            except TimeoutError:
                log.warning("killed", process=child.name, after_s=STOP_WITHIN_S)
                process.kill()
        tasks = [child.task for child in self._children.values() if child.task]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _spawn(self, child: _Child) -> None:
        path = self._run_dir.log(child.name)
        with path.open("ab") as log_file:
            # A child reads its standard input: when the supervisor is gone, however it went, that ends.
            child.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "prorsa.serve",
                child.name,
                str(self._run_dir.path),
                stdin=asyncio.subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._run_dir.pid_file(child.name).write_text(f"{child.process.pid}\n")

    async def _watch(self, child: _Child) -> None:
        while child.process is not None:
            status = await child.process.wait()
            self._run_dir.pid_file(child.name).unlink(missing_ok=True)
            if status == 0 or self.stopping:
                return
            self._count_restart(child, status)
            log.warning("restarting", process=child.name, status=status)
            await asyncio.sleep(RESTART_AFTER_S)
            await self._restart(child)

    async def _restart(self, child: _Child) -> None:
        if not self.stopping:
            await self._spawn(child)
            self._on_restart(child.name)

    def _count_restart(self, child: _Child, status: int) -> None:
        now = time.monotonic()
        child.restarts.append(now)
        while now - child.restarts[0] > RESTARTS_WITHIN_S:
            child.restarts.popleft()
        if len(child.restarts) > RESTARTS_AT_MOST:
            path = self._run_dir.log(child.name)
            raise ProcessFailed(
                f"{child.name} died {len(child.restarts)} times in {RESTARTS_WITHIN_S:g} s (last status {status}); "
                f"the end of {path}:\n{_tail(path)}"
            )


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-_LOG_TAIL_LINES:])
