"""``simulate``, ``replay`` and ``backtest``: work on scenarios and recordings, without a run."""

import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from prorsa.bus.journal import JournalReader, JournalWriter, row_of
from prorsa.cli.options import horizons, journal_in
from prorsa.cli.output import narrate, print_forecast, print_json, print_runs
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.control.config import ForecastKind
from prorsa.errors import InputError
from prorsa.events import Stamped
from prorsa.run import Recorder, RunPlan, make_plan, make_workload, plan_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What ``prorsa simulate`` is given."""

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    sessions: Path | None
    gap_cap_s: float | None
    workers: int | None
    concurrency: int | None
    cache: Literal["cold", "retained", "l3"] | None
    forecast: ForecastKind
    scored: bool
    record: Path | None
    as_json: bool

    def plans(self) -> list[RunPlan]:
        """A checked plan for every scenario, policy and seed, before anything runs."""
        if not self.scenarios:
            raise InputError("simulate: name a scenario, as in `prorsa simulate coding-async --policy analytic`")
        return [
            make_plan(
                self._scenario(name),
                policy=policy,
                run_id=_file_name(f"{Path(name).stem}-{policy}-{seed}"),
                seed=seed,
                sessions=self.sessions,
                forecast=self.forecast,
                scored=self.scored,
            )
            for name, seed, policy in itertools.product(self.scenarios, self.seeds, self.policies)
        ]

    def _scenario(self, name: str) -> Scenario:
        return load_scenario(name).with_overrides(
            workers=self.workers, concurrency=self.concurrency, cache=self.cache, gap_cap_s=self.gap_cap_s
        )


def run_simulate(options: SimulateOptions) -> int:
    """Run all plans one after the other and print them."""
    plans = options.plans()
    workloads = {(plan.scenario.name, plan.seed): make_workload(plan) for plan in plans}
    from prorsa.simulate import simulate

    runs = []
    with _progress() as bars:
        for plan in plans:
            workload = workloads[plan.scenario.name, plan.seed]
            task = bars.add_task(plan.run_id, total=workload.trajectories)
            with _Recording(plan, options.record, single=len(plans) == 1) as recorder:
                run = simulate(
                    plan,
                    workload=workload,
                    recorder=recorder,
                    progress=lambda sim, task=task: bars.update(task, completed=sim.ended),  # type: ignore[misc]
                )
            bars.update(task, completed=workload.trajectories)
            runs.append(run)
    if options.as_json:
        print_json({"runs": runs})
    else:
        print_runs(runs)
    return 0


def run_replay(journal: Path, policy: str | None, *, as_json: bool) -> int:
    """Decide again over a journal; 1 where a decision differs."""
    from prorsa.control.controller import Controller
    from prorsa.control.policies import make_policy
    from prorsa.control.replay import compare
    from prorsa.forecast.predictor import ForecastConfig, Predictor

    reader = JournalReader(journal_in(journal))
    plan = plan_of(reader.meta)
    config = plan.control
    if policy is not None:
        make_policy(policy, plan.pool_size)
        config = msgspec.structs.replace(config, policy=policy)
    controller = Controller(config, None if config.forecast is None else Predictor(ForecastConfig()))
    result = compare(controller, lambda types: reader.read(types=types))
    if as_json:
        print_json({"decisions": result.decisions, "equal": result.equal, "first_difference": result.first_difference})
    else:
        narrate(f"{result.equal} of {result.decisions} decisions are equal")
        if result.first_difference is not None:
            print_json(result.first_difference)
    return 0 if result.first_difference is None else 1


def run_backtest(journals: Sequence[Path], horizon: str, *, as_json: bool) -> int:
    """Score the forecast over journals, pooled."""
    from prorsa.forecast.backtest import backtest

    if not journals:
        raise InputError("backtest: name a journal directory, as in `prorsa backtest RUN_DIR/journal`")
    wanted = horizons(horizon)
    forecast = backtest([JournalReader(journal_in(journal)).read() for journal in journals], wanted)
    if as_json:
        print_json({"forecast": forecast})
    else:
        print_forecast(forecast)
    return 0


class _Recording:
    """A journal for one run, or nothing where none is wanted."""

    def __init__(self, plan: RunPlan, directory: Path | None, *, single: bool) -> None:
        self._writer: JournalWriter | None = None
        if directory is not None:
            place = directory if single else directory / plan.run_id
            if place.exists() and any(place.iterdir()):
                raise InputError(f"--record {place}: it is not empty; name a new directory")
            self._writer = JournalWriter(place, run_id=plan.run_id, meta=plan.to_meta())

    def __enter__(self) -> Recorder | None:
        return None if self._writer is None else self._append

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def _append(self, events: list[Stamped]) -> None:
        assert self._writer is not None
        self._writer.append([row_of(stamped) for stamped in events])


def _progress() -> Progress:
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)
