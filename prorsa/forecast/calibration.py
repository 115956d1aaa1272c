"""Online: a forecast combined with the demand series, and its quantiles corrected, by what came of earlier ones."""

import math
from bisect import bisect_right
from typing import Final, NamedTuple

MAX_LOG_WIDTH: Final = 2.5
DISAGREEMENTS: Final = (0.1, 0.3)
"""Classes of how far forecast and series are apart, as a share of the larger."""
STEADY: Final = len(DISAGREEMENTS) + 1
"""The cell of steady phases; those before it are of transients, by disagreement."""
FORGET_S: Final = 120.0
"""Settled windows are forgotten over this time, or four horizons if that is longer."""
SHARPNESS: Final[dict[str, float]] = {"prefill": 8.0, "decode_admission": 4.0, "kv_need": 4.0}
"""A forecaster with half the error of another counts 2^4 times as much, or 2^8 times: the mean of prefill is right to a
few hundredths, and a series adds but noise. With 8 for both, on seeds 101 and 102 (five cells, two orders of the
recorded sessions), the error of prefill at 15 s was 0.972 of that with 4, that of admissions 1.013."""
PRIOR_WINDOWS: Final = 30.0
"""How many windows what is assumed of the forecasters is worth."""
_OWN_ERROR: Final = (0.10, 0.13, 0.16, 0.13)
_SERIES_ERROR: Final = (0.16, 0.24, 0.48, 0.13)
"""What is assumed of the errors before anything has settled, by cell: when something is about to change, a lifecycle
knows and a series does not; in a steady phase either may be the better."""
MENDED_LEAN: Final[dict[str, float]] = {"prefill": 6.0, "decode_admission": 2.0, "kv_need": 2.0}
"""Independent windows (of the horizon's length each) that the forecast's being right on average is worth. With 6 for
both, on seed 101 (five cells, recorded sessions), the error of prefill was 0.994 of that with 2 at 15 s and 0.992 at
30 s; that of admissions 0.997 and 1.006."""
_MOST_MENDED: Final = 2.0
"""Arrivals are mended by this factor at most."""
_WIDTH_RATE: Final = 1.5
"""Step of the log widths for a miss, windows that settle within a second."""
_SHARED_STEP: Final = 0.5
"""The share of a step that moves the widths of all cells, not of one alone."""
_WIDE: Final = 0.3
"""Log width in transients before anything has settled, of forecasts whose own widths are known to be too small."""


class Raw(NamedTuple):
    """A forecast before any correction: a known part, the median of what is still to arrive, widths around the sum.

    ``series`` is what each baseline says of the sum; ``transient`` whether the run is in a transient phase.
    """

    known: float
    p50_arrivals: float
    below: float
    above: float
    series: tuple[float, ...]
    transient: bool = False


class Corrected(NamedTuple):
    """Quantiles of the total, and the median of its arrivals.

    ``mended`` is what the forecast's own arrivals were multiplied by in one of the parts of that.
    """

    p10: float
    p50: float
    p90: float
    p50_arrivals: float
    mended: float = 1.0


class Combiner:
    """The median as a weighted mean of several forecasts, and widths that are right on average.

    The experts are the forecast itself, the forecast with its arrivals multiplied by what they were short of lately
    (the ratio of sums over the settled windows that are not forgotten, leaning on 1: windows overlap, so that one of
    them tells little), and the baselines. Each weighs ``error ** -sharpness``, its mean error over such windows,
    relative to the actual. Weights are kept apart by phase: in a steady one all begin alike, and a forecast that is
    worse than a series is soon left; in a transient the forecast leads until it was shown wrong, by how far it was from
    the series: where they are far apart, a burst or a drain is coming, and what counts is who was right about the last.

    The widths move along the gradient of the pinball loss: out by 0.9 of a step if the actual fell outside of what was
    said, in by 0.1 if not, so that p10 and p90 are each passed in a tenth of the windows. Windows overlap, and all that
    are made before one settles miss for the same reason: so steps are divided by the time that windows take to settle;
    on average, since large requests, which make a window miss, also make it settle later.

    Args:
        horizon_s: length of the windows.
        series: how many baselines there are.
        wide: whether the forecast's own widths are known to be too small in transients.
        sharpness: the power of the errors that weights go by.
        lean: independent windows that the forecast's being right on average is worth.
    """

    def __init__(
        self, horizon_s: float, series: int, *, wide: bool = False, sharpness: float = 4.0, lean: float = 2.0
    ) -> None:
        self._sharpness = sharpness
        self._keep = math.exp(-1.0 / max(FORGET_S, 4.0 * horizon_s))
        self._horizon_s = horizon_s
        self._lean = lean * horizon_s
        self._errors = [
            [PRIOR_WINDOWS * own] * 2 + [PRIOR_WINDOWS * other] * series
            for own, other in zip(_OWN_ERROR, _SERIES_ERROR, strict=True)
        ]
        self._weights = [_weights(errors, sharpness) for errors in self._errors]
        self._came = self._expected = self._windows = 0.0
        self._log_widths = [[_WIDE * wide * (cell < STEADY)] * 2 for cell in range(len(_OWN_ERROR))]
        self._shared = [0.0, 0.0]
        self._settles_s = horizon_s

    def correct(self, raw: Raw) -> Corrected:
        """The quantiles as of today; none is below 0."""
        cell, mended = _cell(raw), self._mended()
        p50, p50_arrivals = _medians(raw, mended, self._weights[cell])
        low, high = self._widths(cell)
        return Corrected(max(p50 - raw.below * low, 0.0), p50, p50 + raw.above * high, p50_arrivals, mended)

    def learn(self, raw: Raw, said: Corrected, actual: float, after_s: float) -> None:
        """Learn from a forecast that was ``raw``, and ``said`` after correction, and came out ``after_s`` later."""
        self._learn_widths(_cell(raw), after_s, actual < said.p10, actual > said.p90)
        self._came = self._came * self._keep + max(actual - raw.known, 0.0)
        self._expected = self._expected * self._keep + raw.p50_arrivals
        self._windows = self._windows * self._keep + 1.0
        own = raw.known + raw.p50_arrivals
        scale = max(actual, 0.5 * own)
        if scale <= 0.0:
            return
        cell, points = _cell(raw), (own, raw.known + raw.p50_arrivals * said.mended, *raw.series)
        self._errors[cell] = [
            error * self._keep + abs(point - actual) / scale
            for error, point in zip(self._errors[cell], points, strict=True)
        ]
        self._weights[cell] = _weights(self._errors[cell], self._sharpness)

    def _mended(self) -> float:
        """What the arrivals were short of: of all that came over all that was expected."""
        if self._expected <= 0.0:
            return 1.0
        lean = self._lean * self._expected / self._windows
        ratio = (self._came + lean) / (self._expected + lean)
        return min(max(ratio, 1.0 / _MOST_MENDED), _MOST_MENDED)

    def _widths(self, cell: int) -> tuple[float, float]:
        """Factors of the widths below and above."""
        (below, above), (shared_below, shared_above) = self._log_widths[cell], self._shared
        return _width(below + shared_below), _width(above + shared_above)

    def _learn_widths(self, cell: int, after_s: float, *missed: bool) -> None:
        self._settles_s += (1.0 - self._keep) * (after_s - self._settles_s)
        rate, own, shared = _WIDTH_RATE / max(self._horizon_s, self._settles_s), self._log_widths[cell], self._shared
        for side, miss in enumerate(missed):
            at = own[side] + shared[side]
            step = min(max(at + rate * (miss - 0.1), -MAX_LOG_WIDTH), MAX_LOG_WIDTH) - at
            own[side] += (1.0 - _SHARED_STEP) * step
            shared[side] += _SHARED_STEP * step


def _width(log_width: float) -> float:
    return math.exp(min(max(log_width, -MAX_LOG_WIDTH), MAX_LOG_WIDTH))


def _medians(raw: Raw, mended: float, weights: list[float]) -> tuple[float, float]:
    """Of the total, and of its arrivals."""
    known, arrivals = raw.known, raw.p50_arrivals
    own, own_mended, *others = weights
    later = (own + own_mended * mended) * arrivals
    total = (own + own_mended) * known + later
    for weight, value in zip(others, raw.series, strict=True):
        total += weight * value
        later += weight * max(value - known, 0.0)
    return total, later


def _weights(errors: list[float], sharpness: float) -> list[float]:
    """Weights of forecasters by their errors; they sum to 1."""
    least = max(min(errors), 1e-9)
    weights: list[float] = [(max(error, least) / least) ** -sharpness for error in errors]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _cell(raw: Raw) -> int:
    """The phase, and in transients the class of how far the forecast and the middle one of the series are apart."""
    if not raw.transient:
        return STEADY
    own, other = raw.known + raw.p50_arrivals, sorted(raw.series)[len(raw.series) // 2]
    apart = abs(own - other) / max(own, other, 1.0)
    return bisect_right(DISAGREEMENTS, apart)
