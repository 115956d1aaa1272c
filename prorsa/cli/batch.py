"""``simulate`` and ``replay``: work on scenarios and recordings, without a run."""

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from prorsa.bus.journal import JournalReader
from prorsa.cli.options import journal_in
from prorsa.cli.output import narrate, print_comparisons, print_json, print_runs
from prorsa.cli.progress import batch_progress
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.control.config import ForecastKind
from prorsa.errors import InputError
from prorsa.run import RunPlan, make_plan, plan_of
from prorsa.runner import Executor, ProcessExecutor, SerialExecutor, run_cells
from prorsa.runner.simulations import simulation_cells


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
    admission: Literal["advise", "gate"] = "advise"
    shadow: str | None = None
    record: Path | None
    jobs: int
    ray: str | None
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
                batch=True,
                admission=self.admission,
                shadow=self.shadow,
            )
            for name, seed, policy in itertools.product(self.scenarios, self.seeds, self.policies)
        ]

    def records(self, plans: Sequence[RunPlan]) -> list[Path | None]:
        """Where the journal of each plan goes: to ``record`` itself, or of several to a folder in it.

        Raises:
            InputError: if there is something already.
        """
        if self.record is None:
            return [None] * len(plans)
        if self.ray is not None:
            raise InputError("--record: nodes of a Ray cluster do not share this directory; record with --jobs")
        places = [self.record] if len(plans) == 1 else [self.record / plan.run_id for plan in plans]
        for place in places:
            if place.exists() and any(place.iterdir()):
                raise InputError(f"--record {place}: it is not empty; name a new directory")
        return list(places)

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """What runs the cells.

        Raises:
            InputError: for a number of jobs below 1, for both kinds at once, or without Ray.
            UnavailableError: if there is no Ray cluster at the address.
        """
        if self.ray is None:
            yield SerialExecutor() if self.jobs == 1 else ProcessExecutor(self.jobs)
            return
        if self.jobs != 1:
            raise InputError("--jobs is for this machine and --ray for a cluster: give one of them")
        from prorsa.runner.on_ray import RayExecutor

        executor = RayExecutor(self.ray)
        try:
            yield executor
        finally:
            executor.close()

    def _scenario(self, name: str) -> Scenario:
        return load_scenario(name).with_overrides(
            workers=self.workers, concurrency=self.concurrency, cache=self.cache, gap_cap_s=self.gap_cap_s
        )


def run_simulate(options: SimulateOptions) -> int:
    """Run all plans, wherever that is, and print them in their order, with what comes of comparing them."""
    from prorsa.figures import compare
    from prorsa.tuning import settle

    plans = options.plans()
    records = options.records(plans)
    with options.executor() as executor:
        settled = settle(plans, lambda tries: run_all(tries, [None] * len(tries), executor))
        runs = run_all(settled, records, executor)
    if options.as_json:
        print_json({"runs": runs, "comparisons": [comparison.to_json() for comparison in compare(runs)]})
    else:
        print_runs(runs)
        print_comparisons(compare(runs))
    return 0


def run_all(plans: Sequence[RunPlan], records: Sequence[Path | None], executor: Executor) -> list[dict[str, object]]:
    """The rows of these plans in their order, with progress on stderr; journals go where ``records`` says."""
    cells = simulation_cells(plans, records)
    with batch_progress([cell.name for cell in cells]) as watch:
        return run_cells(cells, executor, watch)


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
        config = msgspec.structs.replace(config, policy=policy, shadow=None)
    controller = Controller(config, None if config.forecast is None else Predictor(ForecastConfig()))
    result = compare(controller, lambda types: reader.read(types=types), shadows=policy is None)
    if as_json:
        print_json(result.to_json())
    else:
        narrate(f"{result.equal} of {result.decisions} decisions are equal")
        if result.shadow_decisions:
            narrate(f"{result.shadow_equal} of {result.shadow_decisions} decisions in shadow are equal")
        if result.first_difference is not None:
            print_json(result.first_difference)
    return 0 if result.first_difference is None else 1


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "-", text)
