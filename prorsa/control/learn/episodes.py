"""Episodes to practise on: scenarios drawn at random from ranges, the same for the same seed."""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from prorsa.cluster.scenario import CacheMode, Scenario
from prorsa.control.config import ControlConfig, ForecastKind
from prorsa.run import RunPlan, make_plan

_TURNS_LONG = 24
"""Episodes are cut off by their number of decisions: longer trajectories would only take time to draw."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What episodes are drawn from, each with equal chances.

    Attributes:
        scenarios: what is run; the other fields vary it.
        workers: smallest and largest pool; drawn evenly in its logarithm.
        live_per_worker: fewest and most trajectories in flight a worker; likewise.
        caches: what a flip does to the prefix cache.
        forecasts: what the policy sees.
    """

    scenarios: tuple[Scenario, ...]
    workers: tuple[int, int] = (4, 16)
    live_per_worker: tuple[int, int] = (4, 64)
    caches: tuple[CacheMode, ...] = ("cold", "retained", "l3")
    forecasts: tuple[ForecastKind, ...] = ("lifecycle", "ewma")

    def draw(self, rng: np.random.Generator) -> "Episode":
        """One episode."""
        base = self.scenarios[rng.integers(len(self.scenarios))]
        workers = _between(rng, self.workers)
        live = workers * _between(rng, self.live_per_worker)
        changes = {
            "workers": workers,
            "cache": self.caches[rng.integers(len(self.caches))],
            "max_turns": min(base.max_turns or _TURNS_LONG, _TURNS_LONG),
            "prefill_workers": int(rng.integers(1, workers)),
            **_sized(base, live),
        }
        return Episode(
            scenario=msgspec.structs.replace(base, **changes),
            seed=int(rng.integers(1 << 31)),
            forecast=self.forecasts[rng.integers(len(self.forecasts))],
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """One run to practise on, from its start."""

    scenario: Scenario
    seed: int
    forecast: ForecastKind

    def plan(self) -> RunPlan:
        """As a plan of a run, for a policy that Prorsa's own guards hold for. A tick is a decision."""
        plan = make_plan(
            self.scenario, policy="analytic", run_id="practice", seed=self.seed, forecast=self.forecast, scored=False
        )
        control: ControlConfig = plan.control
        control = msgspec.structs.replace(control, policy="ordered", tick_s=control.decide_s)
        return msgspec.structs.replace(plan, control=control)


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return round(float(np.exp(rng.uniform(low, high))))


def _sized(base: Scenario, live: int) -> dict[str, int]:
    """The scenario's length in keeping with ``live`` trajectories in flight."""
    if base.mode == "async":
        return {"concurrency": live, "trajectories": 3 * live}
    assert base.group_size is not None
    groups = max(1, round(live / base.group_size))
    return {"concurrency": groups * base.group_size, "groups_per_step": groups}


Main = Literal["steady_output_tokens_per_s", "step_s"]
