"""Errors of forecasts over settled windows, as sums that add up over runs (design: ``docs/forecast.md``)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from prorsa.forecast.phases import PHASES, TRANSIENT
from prorsa.forecast.windows import LIFECYCLE, Point, Window

_QUANTILES: Final = (0.1, 0.5, 0.9)


@dataclass(slots=True)
class Errors:
    """Sums of one forecast over windows.

    Attributes:
        windows: how many; ``actual`` and ``actual_arrivals`` are the tokens that came in them.
        missed: Σ|p50 − actual|; ``missed_arrivals`` the same for arrivals alone.
        over: Σ(mean − actual); ``covered`` how many actuals lay between p10 and p90; ``pinball`` Σ of the mean pinball
            loss of p10, p50 and p90. 0 for forecasts without a mean or quantiles (``spread`` counts those with).
    """

    windows: int = 0
    actual: float = 0.0
    actual_arrivals: float = 0.0
    missed: float = 0.0
    missed_arrivals: float = 0.0
    spread: int = 0
    spread_actual: float = 0.0
    over: float = 0.0
    covered: int = 0
    pinball: float = 0.0

    def add(self, window: Window, point: Point) -> None:
        """Count one window in which something was demanded."""
        self.windows += 1
        self.actual += window.actual
        self.missed += abs(point.total - window.actual)
        if window.actual_arrivals > 0 and window.target != "kv_need":  # a level has no arrivals
            self.actual_arrivals += window.actual_arrivals
            self.missed_arrivals += abs(point.arrivals - window.actual_arrivals)
        if point.p10 is None or point.p90 is None or point.mean is None:
            return
        self.spread += 1
        self.spread_actual += window.actual
        self.over += point.mean - window.actual
        self.covered += point.p10 <= window.actual <= point.p90
        losses = zip(_QUANTILES, (point.p10, point.total, point.p90), strict=True)
        self.pinball += sum(_pinball(q, said, window.actual) for q, said in losses) / len(_QUANTILES)

    def merge(self, other: "Errors") -> None:
        """Add the sums of ``other``."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def wape(self) -> float | None:
        """Σ|p50 − actual| / Σ actual; None where nothing was demanded."""
        return self.missed / self.actual if self.actual > 0 else None

    @property
    def wape_arrivals(self) -> float | None:
        """The same for arrivals alone."""
        return self.missed_arrivals / self.actual_arrivals if self.actual_arrivals > 0 else None

    def summary(self) -> dict[str, float | None]:
        """All measures as fractions; None where they are unknown."""
        spread = self.spread > 0
        return {
            "wape": self.wape,
            "wape_arrivals": self.wape_arrivals,
            "bias": self.over / self.spread_actual if spread else None,
            "coverage_80": self.covered / self.spread if spread else None,
            "pinball": self.pinball / self.spread_actual if spread else None,
        }


@dataclass(slots=True)
class Comparison:
    """Errors of several forecasts over the same windows; ``empty`` counts those in which nothing was demanded."""

    errors: dict[str, Errors] = field(default_factory=dict)
    empty: int = 0

    def add(self, window: Window) -> None:
        """Count one window."""
        if window.actual <= 0:
            self.empty += 1
            return
        for name, point in window.forecasts.items():
            self.errors.setdefault(name, Errors()).add(window, point)

    def merge(self, other: "Comparison") -> None:
        """Add the sums of ``other``."""
        self.empty += other.empty
        for name, errors in other.errors.items():
            self.errors.setdefault(name, Errors()).merge(errors)

    def summary(self) -> dict[str, Any]:
        """Windows, and by forecast its measures."""
        own = self.errors.get(LIFECYCLE)
        return {
            "windows": own.windows if own else 0,
            "empty": self.empty,
            "forecasts": {name: errors.summary() for name, errors in self.errors.items()},
        }


def _pinball(quantile: float, said: float, actual: float) -> float:
    return max(quantile * (actual - said), (quantile - 1.0) * (actual - said))


# --- groups of windows ----------------------------------------------------------------------------------------------

Key = tuple[str, str]
"""Target, and horizon as in ``"15"``."""


def compare(windows: Iterable[Window]) -> dict[Key, Comparison]:
    """By target and horizon."""
    cells: dict[Key, Comparison] = {}
    for window in windows:
        cells.setdefault((window.target, f"{window.horizon_s:g}"), Comparison()).add(window)
    return cells


def by_phase(windows: Iterable[Window]) -> dict[str, dict[Key, Comparison]]:
    """By phase, and by all transients and all windows together (``transient``, ``all``)."""
    groups: dict[str, list[Window]] = {name: [] for name in (*PHASES, "transient", "all")}
    for window in windows:
        groups[window.phase].append(window)
        groups["all"].append(window)
        if window.phase in TRANSIENT:
            groups["transient"].append(window)
    return {name: compare(group) for name, group in groups.items() if group}


def by_live(windows: Iterable[Window]) -> dict[str, dict[Key, Comparison]]:
    """By live trajectories, in octaves: ``"33-64"``."""
    return _grouped(windows, lambda window: _octave(window.live))


def _octave(live: int) -> str:
    top = 1 << max(live - 1, 0).bit_length()
    return f"{top // 2 + 1}-{top}" if top > 1 else f"0-{top}"


def _grouped(windows: Iterable[Window], name_of: Callable[[Window], str]) -> dict[str, dict[Key, Comparison]]:
    groups: dict[str, list[Window]] = {}
    for window in sorted(windows, key=lambda window: window.live):
        groups.setdefault(name_of(window), []).append(window)
    return {name: compare(group) for name, group in groups.items()}


def summaries(cells: dict[Key, Comparison]) -> dict[str, dict[str, Any]]:
    """By target, then horizon."""
    out: dict[str, dict[str, Any]] = {}
    for (target, horizon), cell in cells.items():
        out.setdefault(target, {})[horizon] = cell.summary()
    return out
