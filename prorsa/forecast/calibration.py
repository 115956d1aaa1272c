"""Online: a forecast combined with the demand series, and its quantiles corrected, by what came of earlier ones."""

import math
from bisect import bisect_right
from typing import Final, NamedTuple

MAX_LOG_WIDTH: Final = 2.5
DISAGREEMENTS: Final = (0.1, 0.3)
"""Classes of how far forecast and series are apart, as a share of the larger."""
FORGET_S: Final = 120.0
"""Settled windows are forgotten over this time, or four horizons if that is longer."""
SHARPNESS: Final = 6.0
"""A forecaster with half the error of another counts 2^6 times as much."""
PRIOR_WINDOWS: Final = 30.0
"""How many windows what is assumed of the forecasters is worth."""
_OWN_ERROR: Final = (0.10, 0.13, 0.16)
_SERIES_ERROR: Final = (0.16, 0.24, 0.48)
"""What is assumed of the errors before anything has settled, by disagreement: when something is about to change, a
lifecycle knows and a series does not."""


class Raw(NamedTuple):
    """A forecast before any correction: a known part, the median of what is still to arrive, widths around the sum.

    ``series`` is what each baseline says of the sum.
    """

    known: float
    p50_arrivals: float
    below: float
    above: float
    series: tuple[float, ...]


class Corrected(NamedTuple):
    """Quantiles of the total, and the median of its arrivals."""

    p10: float
    p50: float
    p90: float
    p50_arrivals: float


class Combiner:
    """The median as a weighted mean of the forecast's own and of the baselines', and widths that are right on average.

    Each forecaster weighs ``error ** -SHARPNESS``, its mean error over the settled windows that are not forgotten,
    relative to the actual. Windows, and widths, are kept apart by how far forecast and series were from each other. In
    steady state they are close, and none is trusted much more than it deserves; where they are far apart, a burst or a
    drain is coming, and what counts is who was right about the last one.

    The widths move along the gradient of the pinball loss: out by 0.9 of a step if the actual fell outside, in by 0.1
    if not, so that p10 and p90 are each passed in a tenth of the windows. It counts where *today's* width would have
    been around the median that was said: a window may settle minutes after its forecast, and steering by the widths of
    then would swing to and fro. Windows overlap, so the step is divided by their length.

    Args:
        horizon_s: length of the windows.
        series: how many baselines there are.
        width_rate: step of the widths, for windows of one second.
    """

    def __init__(self, horizon_s: float, series: int, *, width_rate: float = 1.5) -> None:
        self._keep = math.exp(-1.0 / max(FORGET_S, 4.0 * horizon_s))
        self._width_step = width_rate / horizon_s
        self._errors = [
            [PRIOR_WINDOWS * own] + [PRIOR_WINDOWS * other] * series
            for own, other in zip(_OWN_ERROR, _SERIES_ERROR, strict=True)
        ]
        self._weights = [_weights(errors) for errors in self._errors]
        self._log_low = [0.0] * len(_OWN_ERROR)
        self._log_high = [0.0] * len(_OWN_ERROR)

    def correct(self, raw: Raw) -> Corrected:
        """The quantiles as of today; none is below 0."""
        cell = _disagreement(raw)
        p50, p50_arrivals = self._medians(raw, self._weights[cell])
        low = p50 - raw.below * math.exp(self._log_low[cell])
        high = p50 + raw.above * math.exp(self._log_high[cell])
        return Corrected(max(low, 0.0), p50, high, p50_arrivals)

    def _medians(self, raw: Raw, weights: list[float]) -> tuple[float, float]:
        """Of the total, and of its arrivals."""
        known = raw.known
        own, *others = weights
        total, later = own * (known + raw.p50_arrivals), own * raw.p50_arrivals
        for weight, value in zip(others, raw.series, strict=True):
            total += weight * value
            later += weight * max(value - known, 0.0)
        return total, later

    def widen(self, raw: Raw, said: Corrected, actual: float) -> None:
        """Correct the widths by a forecast that was ``raw``, and ``said`` after correction, and came out."""
        cell = _disagreement(raw)
        low, high = self._log_low[cell], self._log_high[cell]
        below = actual < said.p50 - raw.below * math.exp(low)
        above = actual > said.p50 + raw.above * math.exp(high)
        self._log_low[cell] = _clip(low + self._width_step * (below - 0.1), MAX_LOG_WIDTH)
        self._log_high[cell] = _clip(high + self._width_step * (above - 0.1), MAX_LOG_WIDTH)

    def learn(self, raw: Raw, actual: float) -> None:
        """Learn from a forecast that came out whom to trust."""
        points = _totals(raw)
        scale = max(actual, 0.5 * points[0])
        if scale <= 0.0:
            return
        cell = _disagreement(raw)
        self._errors[cell] = [
            error * self._keep + abs(point - actual) / scale
            for error, point in zip(self._errors[cell], points, strict=True)
        ]
        self._weights[cell] = _weights(self._errors[cell])


def _weights(errors: list[float]) -> list[float]:
    """Weights of forecasters by their errors; they sum to 1."""
    least = max(min(errors), 1e-9)
    weights: list[float] = [(max(error, least) / least) ** -SHARPNESS for error in errors]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _totals(raw: Raw) -> tuple[float, ...]:
    """What the forecast and each series say of the sum."""
    return (raw.known + raw.p50_arrivals, *raw.series)


def _disagreement(raw: Raw) -> int:
    """The class of how far the forecast and the middle one of the series are apart."""
    own, other = raw.known + raw.p50_arrivals, sorted(raw.series)[len(raw.series) // 2]
    apart = abs(own - other) / max(own, other, 1.0)
    return bisect_right(DISAGREEMENTS, apart)


def _clip(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
