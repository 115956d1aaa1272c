"""Policies that are found by trying: the best fixed split, and the best colocated settings, on seeds apart."""

import statistics
from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from prorsa.cluster.workloads.workload import Workload
from prorsa.control.policies import COLOCATED_TUNED, STATIC_BEST
from prorsa.figures import Figure, Run, main_figure
from prorsa.run import RunPlan, Tuning, make_workload, profile_of, with_policy
from prorsa.simulate import simulate

FIRST_SEED: Final = 1001
"""Tuning seeds count from here: far from those that people score on."""
SEEDS: Final = 3

INTERVALS: Final = (0, 1, 2, 4, 8, 16, 32, 64)
"""Decode steps between two prefill steps that ``colocated:tuned`` tries."""
CHUNK_SHARES: Final = (2, 4)
"""Parts of the profile's prefill chunk that it tries then."""

Told = Callable[[str, int, int], None]
"""What is being tried, how many runs have been, and how many there may be."""


class Tuner:
    """Settles plans whose policy is found by trying; each scenario and policy is tried once.

    Args:
        scored: seeds that must not be tried on.
        told: is told how far it has come.
    """

    def __init__(self, scored: Collection[int], told: Told = lambda *_: None) -> None:
        self._seeds = _other_seeds(scored)
        self._told = told
        self._found: dict[str, Tuning] = {}
        self._workloads: dict[tuple[str, int], Workload] = {}

    def settle(self, plan: RunPlan) -> RunPlan:
        """The plan with the best of what its policy may stand for; any other plan as it is."""
        asked = plan.control.policy
        if asked not in (STATIC_BEST, COLOCATED_TUNED):
            return plan
        key = f"{asked} {plan.sessions} {_scenario_key(plan)}"
        if key not in self._found:
            self._found[key] = self._tune(plan, asked)
        tuning = self._found[key]
        return msgspec.structs.replace(with_policy(plan, tuning.chosen), tuning=tuning)

    def _tune(self, plan: RunPlan, asked: str) -> Tuning:
        tried = _Tried()
        stages = _splits(plan) if asked == STATIC_BEST else _colocated(plan, tried)
        for stage in stages:
            for name in stage:
                for seed in self._seeds:
                    self._told(f"{asked}: {name} seed {seed}", tried.count, len(stage) * len(self._seeds))
                    tried.add(name, self._run(plan, name, seed))
        return Tuning(asked=asked, chosen=tried.best, figure=tried.figure.key, seeds=self._seeds, tried=tried.means())

    def _run(self, plan: RunPlan, policy: str, seed: int) -> Run:
        other = with_policy(msgspec.structs.replace(plan, seed=seed, scored=False), policy)
        key = (f"{plan.sessions} {_scenario_key(plan)}", seed)
        if key not in self._workloads:
            self._workloads[key] = make_workload(other)
        return simulate(other, workload=self._workloads[key])


class _Tried:
    """What has been tried, and how it went."""

    def __init__(self) -> None:
        self._runs: dict[str, list[Run]] = {}

    def add(self, name: str, run: Run) -> None:
        self._runs.setdefault(name, []).append(run)

    @property
    def count(self) -> int:
        return sum(len(runs) for runs in self._runs.values())

    @property
    def figure(self) -> Figure:
        return main_figure([run for runs in self._runs.values() for run in runs])

    def means(self) -> dict[str, float]:
        figure = self.figure
        return {
            name: statistics.fmean(value for run in runs if (value := figure.of(run)) is not None)
            for name, runs in self._runs.items()
        }

    @property
    def best(self) -> str:
        """The policy with the best mean; the first of equals."""
        means = self.means()
        return max(means, key=lambda name: means[name] if self.figure.more_is_better else -means[name])


def _splits(plan: RunPlan) -> Iterator[list[str]]:
    workers = plan.scenario.workers
    yield [f"static:{prefill}:{workers - prefill}" for prefill in range(1, workers)]


def _colocated(plan: RunPlan, tried: _Tried) -> Iterator[list[str]]:
    """Intervals first, then smaller chunks at the best of them."""
    yield ["colocated" if interval == 0 else f"colocated:{interval}" for interval in INTERVALS]
    best = tried.best if tried.best != "colocated" else "colocated:0"
    chunk = profile_of(plan).chunk_tokens
    yield [f"{best}:{chunk // share}" for share in CHUNK_SHARES if chunk // share > 0]


def _other_seeds(scored: Collection[int]) -> tuple[int, ...]:
    candidates = range(FIRST_SEED, FIRST_SEED + SEEDS + len(scored))
    return tuple(seed for seed in candidates if seed not in scored)[:SEEDS]


def _scenario_key(plan: RunPlan) -> str:
    return msgspec.json.encode(plan.scenario).decode()
