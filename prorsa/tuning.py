"""Policies that are found by trying: the best fixed split, and the best colocated settings, on seeds apart."""

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from prorsa.control.policies import COLOCATED_TUNED, STATIC_BEST
from prorsa.figures import Figure, Run, main_figure
from prorsa.run import RunPlan, Tuning, profile_of, with_policy

FIRST_SEED: Final = 1001
"""Tuning seeds count from here: far from those that people score on."""
SEEDS: Final = 3

INTERVALS: Final = (0, 1, 2, 4, 8, 16, 32, 64)
"""Decode steps between two prefill steps that ``colocated:tuned`` tries."""
CHUNK_SHARES: Final = (2, 4)
"""Parts of the profile's prefill chunk that it tries then, at the best interval."""

RunAll = Callable[[Sequence[RunPlan]], Sequence[Run]]
"""Runs plans, wherever that is, and gives their rows in the same order."""


def settle(plans: Sequence[RunPlan], run_all: RunAll) -> list[RunPlan]:
    """The plans with the best of what their policies may stand for; plans whose policy stands for itself as they are.

    Each scenario and policy is tried once, on seeds that no plan has, by the main figure.
    """
    seeds = other_seeds({plan.seed for plan in plans})
    searches = {_key(plan): _Search(plan) for plan in plans if plan.control.policy in (STATIC_BEST, COLOCATED_TUNED)}
    while batch := [(search, name, seed) for search in searches.values() for name in search.next() for seed in seeds]:
        rows = run_all([search.plan_of(name, seed) for search, name, seed in batch])
        for (search, name, _), row in zip(batch, rows, strict=True):
            search.add(name, row)
    return [_settled(plan, searches[_key(plan)], seeds) if _key(plan) in searches else plan for plan in plans]


def other_seeds(scored: Collection[int]) -> tuple[int, ...]:
    """Seeds to try on, none of which is scored."""
    candidates = range(FIRST_SEED, FIRST_SEED + SEEDS + len(scored))
    return tuple(seed for seed in candidates if seed not in scored)[:SEEDS]


def _key(plan: RunPlan) -> tuple[str, str | None, bytes]:
    return plan.control.policy, plan.sessions, msgspec.json.encode(plan.scenario)


def _settled(plan: RunPlan, search: "_Search", seeds: tuple[int, ...]) -> RunPlan:
    tuning = Tuning(
        asked=plan.control.policy,
        chosen=search.best,
        figure=search.figure.key,
        seeds=seeds,
        tried=search.means(),
    )
    return msgspec.structs.replace(with_policy(plan, search.best), tuning=tuning)


class _Search:
    """What is to be tried for one policy on one scenario, and how it went."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._runs: dict[str, list[Run]] = {}
        self._stage = 0

    def next(self) -> list[str]:
        """The policies to try next; none when all have been."""
        self._stage += 1
        if self._plan.control.policy == STATIC_BEST:
            workers = self._plan.scenario.workers
            splits = [f"static:{prefill}:{workers - prefill}" for prefill in range(1, workers)]
            return splits if self._stage == 1 else []
        if self._stage == 1:
            return ["colocated" if interval == 0 else f"colocated:{interval}" for interval in INTERVALS]
        return self._chunks() if self._stage == 2 else []

    def _chunks(self) -> list[str]:
        best = self.best if self.best != "colocated" else "colocated:0"
        chunk = profile_of(self._plan).chunk_tokens
        return [f"{best}:{chunk // share}" for share in CHUNK_SHARES if chunk // share > 0]

    def plan_of(self, policy: str, seed: int) -> RunPlan:
        """The plan of one try."""
        name = f"{self._plan.scenario.name} {self._plan.control.policy}: {policy} seed {seed}"
        control = msgspec.structs.replace(self._plan.control, shadow=None)
        trial = msgspec.structs.replace(self._plan, run_id=name, seed=seed, scored=False, control=control)
        return with_policy(trial, policy)

    def add(self, policy: str, run: Run) -> None:
        """Take the run of a try."""
        self._runs.setdefault(policy, []).append(run)

    @property
    def figure(self) -> Figure:
        """What the tries are compared by."""
        return main_figure([run for runs in self._runs.values() for run in runs])

    def means(self) -> dict[str, float]:
        """Mean of the figure by policy."""
        figure = self.figure
        return {
            name: statistics.fmean(value for run in runs if (value := figure.of(run)) is not None)
            for name, runs in self._runs.items()
        }

    @property
    def best(self) -> str:
        """The policy with the best mean; the first of equals."""
        means, sign = self.means(), 1 if self.figure.more_is_better else -1
        return max(means, key=lambda name: sign * means[name])
