"""Forecasts that have been settled, with all that their errors are looked at by."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.events import ForecastTarget, Settled, Stamped
from prorsa.forecast.frame import Frame
from prorsa.forecast.phases import Phase, PhaseTracker
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.forecast.scoring import TARGETS

LIFECYCLE: Final = "lifecycle"
"""Name of Prorsa's own forecast beside those of the baselines."""


@dataclass(frozen=True, slots=True)
class Point:
    """One forecast, in tokens: of the total, of its arrivals alone, and its quantiles where it has any."""

    total: float
    arrivals: float
    p10: float | None = None
    p90: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A window of one run that has been settled.

    Attributes:
        target, horizon_s: what was forecast, and for how long.
        tick_s: when.
        phase: of the run at that time.
        live: live trajectories at that time.
        actual, actual_arrivals: what came, in tokens.
        forecasts: by name.
    """

    target: ForecastTarget
    horizon_s: float
    tick_s: float
    phase: Phase
    live: int
    actual: float
    actual_arrivals: float
    forecasts: dict[str, Point] = field(default_factory=dict)


class Observer:
    """Forecasts a run as if it were live, and keeps what settles.

    Args:
        horizons_s: horizons to forecast and score.
        tick_s: time between forecasts; ticks are whole multiples of it.
        on_frame: is given each forecast as it is made.

    Attributes:
        windows: what has been settled so far.
        series: by target what the baselines were fed at each tick; ``ticks_s`` says when.
        known: what a forecast knew to come at each tick, by (target, horizon, tick in nanoseconds).
    """

    def __init__(
        self,
        horizons_s: Iterable[float],
        tick_s: float = 1.0,
        *,
        on_frame: Callable[[Frame], None] = lambda _: None,
    ) -> None:
        horizons = tuple(horizons_s)
        self.predictor = Predictor(ForecastConfig(horizons_s=horizons, scored_s=horizons))
        self.windows: list[Window] = []
        self.ticks_s: list[float] = []
        self.series: dict[ForecastTarget, list[float]] = {target: [] for target in TARGETS}
        self.known: dict[tuple[ForecastTarget, float, int], float] = {}
        self._on_frame = on_frame
        self._phases = PhaseTracker()
        self._at: dict[int, tuple[Phase, int]] = {}
        self._tick_ns = nanoseconds(tick_s)
        self._next_ns: int | None = None

    def feed(self, events: Iterable[Stamped]) -> None:
        """Take events in order of ``hub_seq``, and tick in between as a live run would."""
        for stamped in events:
            if self._next_ns is None:
                self._next_ns = -(-stamped.t_ns // self._tick_ns) * self._tick_ns
            while stamped.t_ns > self._next_ns:
                self._tick()
            self.predictor.observe(stamped)
            self._phases.observe(stamped)

    def finish(self) -> list[Window]:
        """The run is over; returns all windows that have been settled, in the order in which they were."""
        if self._next_ns is not None:
            self._tick()
        self.predictor.finish()
        return self.windows

    def _tick(self) -> None:
        assert self._next_ns is not None
        t_ns, self._next_ns = self._next_ns, self._next_ns + self._tick_ns
        frame = self.predictor.tick(t_ns)
        self._on_frame(frame)
        self.ticks_s.append(t_ns / NS_PER_S)
        self._at[t_ns] = self._phases.at(t_ns / NS_PER_S, frame.live_trajectories), frame.live_trajectories
        for target in TARGETS:
            self.series[target].append(self.predictor.demand[target])
        self._note_known(frame)
        self.windows += [self._window(row) for row in frame.settled]

    def _note_known(self, frame: Frame) -> None:
        for row in frame.rows:
            if row.source == "ready":
                self.known[row.target, row.horizon_s, frame.t_ns] = row.mean

    def _window(self, row: Settled) -> Window:
        phase, live = self._at[row.tick_ns]
        known = self.known.get((row.target, row.horizon_s, row.tick_ns), 0.0)
        own = Point(row.p50, row.p50_arrivals, row.p10, row.p90, row.mean)
        return Window(
            target=row.target,
            horizon_s=row.horizon_s,
            tick_s=row.tick_ns / NS_PER_S,
            phase=phase,
            live=live,
            actual=row.actual,
            actual_arrivals=row.actual_arrivals,
            forecasts={LIFECYCLE: own, **_points(row.baselines, known)},
        )


def _points(totals: Mapping[str, float], known: float) -> dict[str, Point]:
    """Baselines say the total; what of it is not known to come is their arrivals."""
    return {name: Point(total, max(total - known, 0.0)) for name, total in totals.items()}
