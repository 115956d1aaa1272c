"""``prorsa demo``: a run on an embedded cluster, its processes supervised, the console in the foreground."""

import asyncio
import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from prorsa.beside import compare_shadow
from prorsa.bus.commands import CommandClient
from prorsa.bus.journal import JournalReader
from prorsa.bus.wire import Endpoints
from prorsa.cli.output import UNKNOWN, narrate, print_json, print_runs
from prorsa.cluster.scenario import load_scenario
from prorsa.errors import InputError, UnavailableError
from prorsa.events import Mode, View, decode
from prorsa.run import RunPlan, make_plan, run_row
from prorsa.serve.rundir import RunDir, new_run_dir
from prorsa.serve.signals import until_signalled
from prorsa.serve.startup import hub_up
from prorsa.serve.supervisor import Supervisor

PROGRESS_EVERY_S = 5.0
COMPILING_AFTER_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What ``prorsa demo`` is given."""

    scenario: str
    policy: str
    seed: int
    speed: float
    cache: Literal["cold", "retained", "l3"] | None
    headless: bool
    as_json: bool
    record: Path | None
    run_dir: Path | None
    mode: Mode
    shadow: str | None = None


def run_demo(options: DemoOptions) -> int:
    """Run to the end (headless), or for as long as the operator likes."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    plan, run_dir = _prepare(options)
    headless = options.headless
    if not headless and not (sys.stdin.isatty() and sys.stdout.isatty()):
        narrate("no terminal here: running headless")
        headless = True
    started = time.monotonic()
    demo = _Demo(plan, run_dir)
    run = asyncio.run(until_signalled(demo.headless() if headless else demo.with_console()))
    if options.record is not None:
        shutil.copytree(run_dir.journal, options.record, dirs_exist_ok=True)
        narrate(f"recorded to {options.record}")
    if run is None:
        narrate(f"stopped before the rollout was over; its journal is {run_dir.journal}")
        return 130 if headless else 0
    run["wall_s"] = round(time.monotonic() - started, 3)
    if options.as_json:
        print_json({"runs": [run]})
    else:
        print_runs([run])
    return 0


def _prepare(options: DemoOptions) -> tuple[RunPlan, RunDir]:
    if not 0.01 <= options.speed <= 1000:
        raise InputError(f"--speed {options.speed:g}: give run seconds a wall second, from 0.01 to 1000")
    if options.record is not None and options.record.exists() and any(options.record.iterdir()):
        raise InputError(f"--record {options.record}: it is not empty; name a new directory")
    scenario = load_scenario(options.scenario).with_overrides(cache=options.cache)
    run_dir = RunDir(options.run_dir.absolute()) if options.run_dir else new_run_dir(scenario.name)
    plan = make_plan(
        scenario,
        policy=options.policy,
        run_id=run_dir.run_id,
        seed=options.seed,
        speed=options.speed,
        mode=options.mode,
        shadow=options.shadow,
    )
    run_dir.create()
    run_dir.hold()
    run_dir.save_plan(plan)
    return plan, run_dir


class _Demo:
    """One demo: the supervisor, and what is told to the person meanwhile."""

    def __init__(self, plan: RunPlan, run_dir: RunDir) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._supervisor = Supervisor(run_dir, on_restart=lambda name: narrate(f"{name} had died; started again"))

    async def headless(self) -> dict[str, Any] | None:
        """Run to the end, with progress on stderr."""
        return await self._supervised(self._watch_progress())

    async def with_console(self) -> dict[str, Any] | None:
        """Run with the console until the operator is done with it."""
        return await self._supervised(self._operate())

    async def _supervised(self, work: Coroutine[Any, Any, None]) -> dict[str, Any] | None:
        narrate(f"run directory {self._run_dir.path}")
        try:
            await self._start()
            await work
        finally:
            work.close()
            await self._supervisor.stop()
        return self._result()

    async def _start(self) -> None:
        await self._supervisor.start("cluster")
        await self._compiled()
        await self._supervisor.start("hub")
        await hub_up(self._run_dir)
        await self._supervisor.start("controller")

    async def _compiled(self) -> None:
        """Wait for the simulator, and say why that takes long on a machine's first start."""
        told_at = time.monotonic() + COMPILING_AFTER_S
        ended = asyncio.create_task(self._supervisor.ended("cluster"))
        while not self._run_dir.cluster_ready.exists() and not ended.done():
            await asyncio.sleep(0.05)
            if time.monotonic() > told_at:
                told_at = math.inf
                narrate("compiling the simulator and the forecast: a minute or two, once")
        if ended.done():
            await ended
        ended.cancel()

    async def _watch_progress(self) -> None:
        progress = asyncio.create_task(self._progress())
        try:
            await self._supervisor.ended("cluster")
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)

    async def _operate(self) -> None:
        """The console as a process of its own: whatever ends it ends nothing else."""
        failed = asyncio.create_task(self._supervisor.ended("cluster"))
        while True:
            status = await _console(self._run_dir)
            if failed.done():
                await failed
                return
            how = "ended" if status == 0 else f"died (status {status})"
            narrate(f"the console {how}; the run goes on. Enter opens it again, Ctrl-C ends the run;")
            narrate(f"from elsewhere: prorsa console --connect {self._run_dir.path}")
            if not await _enter_pressed():
                return

    async def _progress(self) -> None:
        async with CommandClient(Endpoints.load(self._run_dir.path)) as client:
            while True:
                await asyncio.sleep(PROGRESS_EVERY_S)
                with contextlib.suppress(UnavailableError):
                    _tell(await client.snapshot(("view",)))

    def _result(self) -> dict[str, Any] | None:
        measured = self._run_dir.load_result()
        if measured is None:
            return None
        with JournalReader(self._run_dir.journal) as journal:
            last = journal.last("view")
            shadow = compare_shadow(journal.read(types=("decision", "shadow")))
        view = decode(last.event) if last else None
        scores = view.scores if isinstance(view, View) and view.scores else None
        row = run_row(self._plan, measured, scores, 0.0)
        return {**row, "shadow": shadow and shadow.to_json()}


def _tell(snapshot: list[Any]) -> None:
    for stamped in snapshot:
        if isinstance(stamped.event, View):
            view = stamped.event
            done = "" if view.total is None else f"{view.done or 0} of {view.total} trajectories ended, "
            rate = UNKNOWN if view.output_tokens_per_s is None else f"{view.output_tokens_per_s:,.0f}"
            narrate(f"{view.tick_ns / 1e9:6.0f} s: {done}split {view.split}, {rate} output tokens/s")


async def _console(run_dir: RunDir) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prorsa", "console", "--connect", str(run_dir.path)
    )
    status = await process.wait()
    if status != 0:
        _mend_terminal()
    return status


def _mend_terminal() -> None:
    """What a console that was killed could not undo: alternate screen, mouse reports, hidden cursor, raw mode."""
    sys.stdout.write("\x1b[?1049l\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m")
    sys.stdout.flush()
    subprocess.run(["stty", "sane"], check=False)


async def _enter_pressed() -> bool:
    """Wait for Enter; False at the end of the input."""
    loop = asyncio.get_running_loop()
    pressed: asyncio.Future[bool] = loop.create_future()

    def read() -> None:
        if not pressed.done():
            pressed.set_result(bool(os.read(0, 1024)))

    loop.add_reader(0, read)
    try:
        return await pressed
    finally:
        loop.remove_reader(0)
