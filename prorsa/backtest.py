"""Backtests of scenarios: simulated runs, forecast as if they were live, with the distribution oracle beside."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from prorsa.clock import nanoseconds
from prorsa.cluster.oracle import FUTURES, DistributionOracle, Spread
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError
from prorsa.events import ForecastTarget, Stamped
from prorsa.forecast.phases import PHASES
from prorsa.forecast.windows import Observer, Point, Window
from prorsa.run import RunPlan, make_workload, profile_of
from prorsa.simulate import make_simulation, simulate

ORACLE: Final = "oracle"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Backtest:
    """A run that has been forecast.

    Attributes:
        plan: what was run.
        observer: the forecasts, and what the baselines were fed.
        windows: what has been settled.
    """

    plan: RunPlan
    observer: Observer
    windows: list[Window] = field(default_factory=list)


def backtest_run(
    plan: RunPlan, horizons_s: Sequence[float], *, workload: Workload | None = None, until_s: float = float("inf")
) -> Backtest:
    """Simulate a plan and forecast it each second, as if it were live.

    Args:
        plan: not scored; a frozen split is simulated without a controller.
        horizons_s: horizons to forecast and score.
        workload: that of the plan, where the caller has it.
        until_s: under a frozen split the run is left off here.
    """
    observer = Observer(horizons_s)
    workload = workload or make_workload(plan)
    if is_frozen(plan):
        for stamped in events_of(plan, workload=workload, until_s=until_s):
            observer.feed(stamped)
    else:
        simulate(plan, workload=workload, recorder=observer.feed)
    return Backtest(plan, observer, observer.finish())


def events_of(
    plan: RunPlan, *, workload: Workload | None = None, until_s: float = float("inf")
) -> Iterator[list[Stamped]]:
    """What the frozen pool of a plan says, stamped as by a hub, second by second."""
    sim = make_simulation(plan, workload or make_workload(plan))
    seq = 0
    while not sim.done and sim.now_s < until_s:
        stamped = []
        for t_s, event in sim.advance(min(float(int(sim.now_s) + 1), until_s)):
            stamped.append(Stamped(seq + 1, nanoseconds(t_s), "cluster", seq, 0, event))
            seq += 1
        yield stamped


def is_frozen(plan: RunPlan) -> bool:
    """Whether the plan's split stays as it is."""
    return plan.control.policy.startswith(("static:", "colocated"))


Points = dict[tuple[ForecastTarget, float, int], Point]
"""Forecasts by target, horizon and time in nanoseconds."""


def oracle_points(
    plan: RunPlan,
    ticks_s: Sequence[float],
    horizons_s: Sequence[float],
    *,
    workload: Workload | None = None,
    futures: int = FUTURES,
    progress: Progress = lambda _: None,
) -> Points:
    """What the oracle forecasts at some ticks, in order, of a run under a frozen split.

    Raises:
        ConfigError: if the oracle does not know the scenario's generator.
    """
    if plan.sessions is not None:
        raise ConfigError(f"nobody knows the generator of {plan.sessions}: leave the oracle out")
    workload = workload or make_workload(plan)
    oracle = DistributionOracle(plan.scenario, profile_of(plan), futures=futures)
    sim = make_simulation(plan, workload, emit=False)
    points: Points = {}
    for number, tick_s in enumerate(ticks_s):
        _reach(sim, tick_s)
        seen = oracle.look(sim, workload, horizons_s, np.random.default_rng([plan.seed, round(tick_s)]))
        points |= {(target, h, nanoseconds(tick_s)): _point(spread) for (target, h), spread in seen.items()}
        progress(f"oracle {number + 1}/{len(ticks_s)}")
    return points


def attach(windows: Iterable[Window], name: str, points: Points) -> None:
    """Put forecasts beside those that the windows have."""
    for window in windows:
        point = points.get((window.target, window.horizon_s, nanoseconds(window.tick_s)))
        if point is not None:
            window.forecasts[name] = point


def sample_ticks(windows: Iterable[Window], per_phase: int) -> list[float]:
    """Ticks for the oracle: of each phase so many, evenly over the ticks that have settled at every horizon."""
    if per_phase < 1:
        return []
    settled: dict[str, dict[float, set[float]]] = {phase: {} for phase in PHASES}
    horizons: set[float] = set()
    for window in windows:
        if window.actual > 0 and window.target != "kv_need":
            settled[window.phase].setdefault(window.tick_s, set()).add(window.horizon_s)
            horizons.add(window.horizon_s)
    chosen: list[float] = []
    for ticks in settled.values():
        whole = sorted(tick for tick, seen in ticks.items() if seen == horizons)
        places = np.linspace(0, len(whole), per_phase, endpoint=False) + len(whole) / (2 * per_phase)
        chosen += [whole[int(place)] for place in places] if whole else []
    return sorted(set(chosen))


def _reach(sim: Simulation, at_s: float) -> None:
    while sim.now_s < at_s and not sim.done:
        sim.advance(at_s)


def _point(spread: Spread) -> Point:
    return Point(spread.p50, spread.p50_arrivals, spread.p10, spread.p90, spread.mean)
