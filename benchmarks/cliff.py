"""The cliff: throughput against concurrency, by what holds the contexts, for colocated and disaggregated workers.

    python -m benchmarks.cliff [--pools dp tp] [--systems fixed adaptive] [--points FILE] [--write]

Past the number of live trajectories whose contexts the caches hold, most of the prefill is prefill again, and every
system collapses. For each pool and concurrency: plain colocation, tuned colocation (the best of a few intervals between
prefills), the best fixed split of a few, and `analytic`; by what keeps a worker's contexts: HBM alone, a host tier in
multiples of the HBM pool, or a store that all workers share. Where nothing flips, `cold` and `retained` are the same.

Tuned and best are chosen on another seed than the one that is scored. A point is the mean rate of a window after a
warm-up, with more trajectories queued than end in it, as a run to the end of a system past the cliff takes days of its
own time. `analytic` ticks with its decisions. Points are kept in a file (by default ``build/cliff.json``) and not made
again, so that they can be made in parts; those of an earlier engine are the reader's to delete. ``--write`` makes
``docs/cliff.md`` and its picture from what there is.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks import cliff_page
from benchmarks.cliff_points import ANALYTIC, KINDS, POOLS, SYSTEMS, Keeping, Key, Point
from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.controller import Controller
from prorsa.control.policies import make_policy
from prorsa.driving import Driver
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import RunPlan, make_plan
from prorsa.simulate import make_simulation

SEED: Final = 1
TUNING_SEED: Final = 1001
QUEUED: Final = 8
"""Trajectories of the workload for each one in flight."""


class Run(NamedTuple):
    """What a policy did in the window."""

    tokens_per_s: float
    again: float
    flips: int


class Bench:
    """The runs of one pool and concurrency."""

    def __init__(self, name: str, concurrency: int) -> None:
        self._name = name
        self._pool = POOLS[name]
        self._base = msgspec.structs.replace(
            load_scenario(self._pool.scenario), concurrency=concurrency, trajectories=QUEUED * concurrency
        )
        self._hbm_tokens = load_profile(self._base.profile).kv_capacity
        self._workloads: dict[int, Workload] = {}

    def point(self, system: str, keeping: Keeping) -> Point:
        """Measure a system on the scored seed, as it does best on the other one."""
        tried = SYSTEMS.get(system) or self._pool.splits
        policy = tried[0] if len(tried) == 1 else max(tried, key=lambda each: self._rate(each, keeping))
        run = self._run(policy, keeping, SEED)
        return Point(
            self._name, system, *keeping, self._base.concurrency, policy, run.tokens_per_s, run.again, run.flips
        )

    def _rate(self, policy: str, keeping: Keeping) -> float:
        return self._run(policy, keeping, TUNING_SEED).tokens_per_s

    def _run(self, policy: str, keeping: Keeping, seed: int) -> Run:
        if seed not in self._workloads:
            self._workloads[seed] = self._base.make_workload(seed)
        scenario = msgspec.structs.replace(
            self._base, host_kv_tokens=keeping.tier * self._hbm_tokens, cache=keeping.cache
        )
        return measure(scenario, self._workloads[seed], policy, self._pool.warm_up_s, self._pool.window_s)


def measure(scenario: Scenario, workload: Workload, policy: str, warm_up_s: float, window_s: float) -> Run:
    """Run a policy for a while, and take the rates of what follows."""
    plan = make_plan(scenario, policy=policy, run_id="cliff", seed=SEED, scored=False)
    simulation = make_simulation(plan, workload, emit=policy == ANALYTIC)
    advance = _decided(plan, simulation) if policy == ANALYTIC else _alone(simulation)
    advance(warm_up_s)
    before = simulation.report()
    advance(warm_up_s + window_s)
    after = simulation.report()
    if simulation.ended + scenario.concurrency > workload.trajectories:
        raise RuntimeError(f"{scenario.name}: {workload.trajectories} trajectories are too few for the window")
    output, computed, again, flips = (
        after[key] - before[key]
        for key in ("output_tokens", "computed_prefill_tokens", "prefill_again_tokens", "flips")
    )
    return Run(output / window_s, again / max(computed, 1), flips)


def _alone(simulation: Simulation) -> Callable[[float], None]:
    """Advances a pool that nobody controls."""

    def advance(until_s: float) -> None:
        while simulation.now_s < until_s and not simulation.done:
            simulation.advance(until_s)

    return advance


def _decided(plan: RunPlan, simulation: Simulation) -> Callable[[float], None]:
    """Advances a pool under its controller, which forecasts and decides at each tick."""
    policy = make_policy(plan.control.policy, plan.scenario.workers)
    controller = Controller(plan.control, Predictor(ForecastConfig()), policy)
    driver = Driver(simulation, controller, plan.control.decide_s)

    def advance(until_s: float) -> None:
        while driver.due_s <= until_s and not simulation.done:
            driver.advance()
            driver.tick()

    return advance


def measure_all(pools: Sequence[str], kinds: Sequence[str], done: set[Key]) -> Iterator[Point]:
    """The points that are missing, in the order in which they are computed."""
    for kind in kinds:
        systems, keepings = KINDS[kind]
        for name, concurrency in [(pool, each) for pool in pools for each in POOLS[pool].concurrencies]:
            bench = Bench(name, concurrency)
            for system, keeping in itertools.product(systems, keepings):
                if (name, system, *keeping, concurrency) not in done:
                    yield bench.point(system, keeping)


def main() -> None:
    """Measure what is missing, print the page, and write it if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pools", nargs="+", choices=list(POOLS), default=list(POOLS))
    parser.add_argument("--systems", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--points", type=Path, default=Path("build/cliff.json"))
    parser.add_argument("--write", action="store_true", help="docs/cliff.md and its picture")
    args = parser.parse_args()
    points = msgspec.json.decode(args.points.read_bytes(), type=list[Point]) if args.points.exists() else []
    args.points.parent.mkdir(parents=True, exist_ok=True)
    for point in measure_all(args.pools, args.systems, {point.key for point in points}):
        points = [*(old for old in points if old.key != point.key), point]
        args.points.write_bytes(msgspec.json.format(msgspec.json.encode(points)))
        print(f"{point.key} {point.policy}: {cliff_page.cell(point)}", file=sys.stderr, flush=True)
    print(cliff_page.tables(points))
    if args.write:
        cliff_page.write(points)


if __name__ == "__main__":
    main()
