"""Episodes to practise on: scenarios drawn at random from ranges, the same for the same seed."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np

from prorsa.cluster.scenario import CacheMode, Scenario, load_scenario
from prorsa.cluster.sim.config import Fault
from prorsa.cluster.workloads.shapes import DriftPoint, MixPoint
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.config import ControlConfig, ForecastKind
from prorsa.control.learn.redrawing import redrawn
from prorsa.run import RunPlan, make_plan

_ROUNDS: Final = 3
"""Trajectories of an asynchronous episode, in those that are in flight at a time."""
_MIDWAY_SHARE: Final = 0.5
"""Share of asynchronous episodes that begin in the midst of the run: an episode does not come from the start of a run
to where contexts are long and the caches full, and that is most of a long run."""
_MIDWAY_ROUNDS: Final = 1.5
"""Trajectories, in those in flight at a time, that have ended by then at most: as many again are left."""
_PROFILES: Final = ("qwen3-32b-h200-tp2", "qwen3-32b-h100-tp4", "qwen3-235b-h200-dp4", "dsv32-h200-dp8")
_SCENARIOS: Final = (
    "coding-async", "general-async", "coding-sync", "general-sync", "drift-qwen", "weightsync-qwen",
    "v32-coding-async", "v32-general-async", "v32-coding-sync", "drift-v32", "weightsync-v32",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Domain:
    """What episodes are drawn from, each with equal chances.

    Attributes:
        scenarios: what is run; the other fields vary it.
        workers: smallest and largest pool; drawn evenly in its logarithm.
        live_per_worker: fewest and most trajectories in flight a worker; likewise.
        caches: what a flip does to the prefix cache.
        forecasts: what the policy sees.
        profiles: what the workers are instead of the scenario's own in ``profile_share`` of the episodes.
        shift_share: share of asynchronous episodes whose mix of agents is replaced by one that moves.
        fault_share: share of episodes in which a worker dies or slows down.
        turns: fewest and most turns after which trajectories are truncated; likewise, within the scenario's own limit.
    """

    scenarios: tuple[Scenario, ...]
    profiles: tuple[str, ...] = ()
    shift_share: float = 0.4
    fault_share: float = 0.1
    workers: tuple[int, int] = (4, 12)
    live_per_worker: tuple[int, int] = (4, 80)
    turns: tuple[int, int] = (12, 50)
    profile_share: float = 0.5
    caches: tuple[CacheMode, ...] = ("cold", "retained", "l3")
    forecasts: tuple[ForecastKind, ...] = ("lifecycle", "ewma")

    def draw(self, rng: np.random.Generator) -> "Episode":
        """One episode."""
        base = self.scenarios[rng.integers(len(self.scenarios))]
        workers = _between(rng, self.workers)
        if self.profiles and rng.random() < self.profile_share:
            profile = self.profiles[rng.integers(len(self.profiles))]
            base = msgspec.structs.replace(base, profile=profile)
        live = workers * _between(rng, self.live_per_worker)
        changes = {
            "workers": workers,
            "cache": self.caches[rng.integers(len(self.caches))],
            "max_turns": min(base.max_turns or self.turns[1], _between(rng, self.turns)),
            "prefill_workers": int(rng.integers(1, workers)),
            "faults": _faults(rng, workers) if rng.random() < self.fault_share else (),
            **_sized(base, live),
        }
        if base.mode == "async" and base.sessions is None and rng.random() < self.shift_share:
            changes |= _shifting(rng, _ROUNDS * live)
        return Episode(
            scenario=msgspec.structs.replace(base, **changes),
            seed=int(rng.integers(1 << 31)),
            forecast=self.forecasts[rng.integers(len(self.forecasts))],
            ended=midway(rng, live) if base.mode == "async" and base.sessions is None else 0,
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """One run to practise on.

    Attributes:
        recorded: holds the trajectories that are drawn anew where they are not generated.
        ended: practice begins once so many trajectories have ended, under the split of the start until then.
    """

    scenario: Scenario
    seed: int
    forecast: ForecastKind
    recorded: Workload | None = None
    ended: int = 0

    def workload(self) -> Workload:
        """Its trajectories."""
        if self.recorded is None:
            return self.scenario.make_workload(self.seed)
        return redrawn(self.recorded, self.scenario, np.random.default_rng(self.seed))

    def plan(self) -> RunPlan:
        """As a plan of a run, for a policy that Prorsa's own guards hold for. A tick is a decision."""
        plan = make_plan(
            self.scenario, policy="analytic", run_id="practice", seed=self.seed, forecast=self.forecast, scored=False
        )
        control: ControlConfig = plan.control
        control = msgspec.structs.replace(control, policy="ordered", tick_s=control.decide_s)
        return msgspec.structs.replace(plan, control=control)


class Source(Protocol):
    """Where episodes come from."""

    def draw(self, rng: np.random.Generator) -> Episode:
        """One episode."""


def midway(rng: np.random.Generator, live: int) -> int:
    """How many trajectories have ended when an episode of an asynchronous run begins, with ``live`` in flight."""
    return int(rng.uniform(0.0, _MIDWAY_ROUNDS) * live) if rng.random() < _MIDWAY_SHARE else 0


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return round(float(np.exp(rng.uniform(low, high))))


def _sized(base: Scenario, live: int) -> dict[str, Any]:
    """The scenario's length in keeping with ``live`` trajectories in flight."""
    if base.mode == "async":
        every = None if base.update_every is None else max(1, live // 2)
        length = None if base.sessions is not None else _whole_groups(_ROUNDS * live, base.group_size)
        return {"concurrency": live, "trajectories": length, "update_every": every}
    assert base.group_size is not None
    groups = max(1, round(live / base.group_size))
    return {"concurrency": groups * base.group_size, "groups_per_step": groups}


def _whole_groups(trajectories: int, group_size: int | None) -> int:
    size = group_size or 1
    return size * math.ceil(trajectories / size)


def _shifting(rng: np.random.Generator, trajectories: int) -> dict[str, Any]:
    """A mix of agents that moves at random places, at once or bit by bit, and tools that slow down."""
    at = [0, *sorted(rng.integers(1, trajectories, 3).tolist())]
    if rng.random() < 0.5:
        at[2] = at[1]  # from one trajectory to the next
    shares = rng.uniform(0.05, 0.95, len(at))
    mix = tuple(
        MixPoint(at=place, shares={"coding": share, "general": 1.0 - share})
        for place, share in zip(at, shares.tolist(), strict=True)
    )
    factor = float(np.exp(rng.uniform(0.0, np.log(3.0))))
    drift = (DriftPoint(at=0, factor=1.0), DriftPoint(at=trajectories, factor=factor))
    return {"mix": mix, "tool_drift": drift, "workload": "drifting"}


def _faults(rng: np.random.Generator, workers: int) -> tuple[Fault, ...]:
    kind: Literal["dies", "slows"] = "dies" if rng.random() < 0.5 else "slows"
    worker, at_s, for_s = int(rng.integers(workers)), float(rng.uniform(30.0, 600.0)), float(rng.uniform(60.0, 300.0))
    return (Fault(worker=worker, at_s=at_s, kind=kind, for_s=for_s, factor=2.0 if kind == "slows" else 1.0),)


def practice() -> Domain:
    """What the shipped policy practises on: the package's scenarios on plain and on data-parallel workers."""
    return Domain(tuple(load_scenario(name) for name in _SCENARIOS), profiles=_PROFILES)
