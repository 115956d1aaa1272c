"""The distribution oracle: the best that any forecast could do.

It knows what the workload was generated from and where every trajectory stands, but not the draws: it runs copies of
the simulation on with futures that are drawn anew (:mod:`prorsa.cluster.workloads.redraw`), under the frozen split, and
takes mean and quantiles of what demand comes to. Its error is what cannot be known in advance.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.scenario import Scenario
from prorsa.cluster.sim.outcome import Outcome
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.fitted import load_fitted
from prorsa.cluster.workloads.redraw import Redraw
from prorsa.cluster.workloads.shapes import Shape
from prorsa.cluster.workloads.turns import Source
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError
from prorsa.events import ForecastTarget

FUTURES: Final = 200
"""Redrawn futures of a forecast; the median of so many is off by a tenth of the spread."""

_BEYOND_S: Final = 60.0
"""Turns are drawn for so long past the longest horizon, in time that is counted at full speed: what arrives late in the
window is prefilled beside what arrives after it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A forecast of one target and horizon, in tokens; ``p50_arrivals`` of arrivals alone."""

    p10: float
    p50: float
    p90: float
    mean: float
    p50_arrivals: float
    mean_arrivals: float


class DistributionOracle:
    """Forecasts of runs of a generated scenario.

    Args:
        scenario: what generates the workload.
        profile: of the scenario's workers.
        futures: how many are drawn for a forecast.

    Raises:
        ConfigError: for recorded sessions, whose generator is unknown, and for mixes, disturbances, faults and
            over-sampling, which futures are not redrawn for.
    """

    def __init__(self, scenario: Scenario, profile: Profile, *, futures: int = FUTURES) -> None:
        unknown = list(_unknown(scenario))
        if unknown:
            raise ConfigError(f"the oracle does not know {' and '.join(unknown)} of {scenario.name}: leave it out")
        self._source = Source(
            load_fitted(scenario.workload), profile.max_context, scenario.gap_cap_s, scenario.max_turns
        )
        self._token_s = profile.decode_step_s(1, 1)
        self._futures = futures

    def look(
        self, simulation: Simulation, workload: Workload, horizons_s: Sequence[float], rng: np.random.Generator
    ) -> dict[tuple[ForecastTarget, float], Spread]:
        """Forecasts by target and horizon, from where ``simulation`` of ``workload`` stands, which stays as it is."""
        redraw = Redraw(self._source, workload, simulation.standing(), rng, token_s=self._token_s)
        window_s = max(horizons_s) + _BEYOND_S
        outcomes = [simulation.redrawn(redraw.draw(window_s)).outcome(horizons_s) for _ in range(self._futures)]
        return {
            (target, horizon_s): _spread([pick(outcome[horizon_s]) for outcome in outcomes])
            for horizon_s in horizons_s
            for target, pick in _TARGETS.items()
        }


def _unknown(scenario: Scenario) -> Iterator[str]:
    """What of a scenario futures are not redrawn for."""
    if scenario.sessions is not None:
        yield "the generator of the recorded sessions"
    if scenario.shape != Shape():
        yield "the mix, drift or disturbances"
    if scenario.faults:
        yield "the faults"
    if scenario.oversample != 1.0:
        yield "the trajectories that over-sampling cuts off"


def _prefill(outcome: Outcome) -> tuple[float, float]:
    return outcome.prefill, outcome.prefill_arrivals


def _admission(outcome: Outcome) -> tuple[float, float]:
    return outcome.decode_admission, outcome.admission_arrivals


def _kv_need(outcome: Outcome) -> tuple[float, float]:
    return outcome.kv_need, outcome.kv_need


_TARGETS: Final[dict[ForecastTarget, Callable[[Outcome], tuple[float, float]]]] = {
    "prefill": _prefill,
    "decode_admission": _admission,
    "kv_need": _kv_need,
}


def _spread(values: Sequence[tuple[float, float]]) -> Spread:
    total, arrivals = np.array(values).T
    p10, p50, p90 = np.percentile(total, (10, 50, 90)).tolist()
    return Spread(p10, p50, p90, float(total.mean()), float(np.median(arrivals)), float(arrivals.mean()))
