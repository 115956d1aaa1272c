"""Online: a forecast combined with the demand series, and its quantiles corrected, by what came of earlier ones."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]

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
_OWN_ERROR: Final = (0.08, 0.09, 0.10, 0.10)
_SERIES_ERROR: Final = (0.20, 0.30, 0.50, 0.26)
"""What is assumed of the errors before anything has settled, by cell: when something is about to change, a lifecycle
knows and a series does not. In steady phases it still is the better, nearly everywhere. With the same for both there,
and 0.10 to 0.16 against 0.16 to 0.48 in transients, the errors of prefill and admissions in steady phases were 1.04 and
1.07 to 1.17 times these, those of admissions in transients 1.03 (seed 101, fifteen runs)."""
MENDED_LEAN: Final[dict[str, float]] = {"prefill": 6.0, "decode_admission": 2.0, "kv_need": 2.0}
"""Independent windows (of the horizon's length each) that the forecast's being right on average is worth. With twice as
many errors were 0.99 to 1.00 of these on DeepSeek-V3.2 pools, where the mean is right, and up to 1.25 of these where it
was a third too low (seed 101, eighteen runs)."""
_MOST_MENDED: Final = 2.0
"""Arrivals are mended by this factor at most."""
_WIDTH_RATE: Final = 1.5
"""Step of the log widths for a miss, windows that settle within a second."""
_SHARED_STEP: Final = 0.5
"""The share of a step that moves the widths of all cells, not of one alone."""
_WIDE: Final = 0.5
"""Log width before anything has settled, of forecasts whose own widths are known to be too small. With it p10 and p90
of prefill cover 76 to 82 % on seeds 101 and 102 (ten cells); with 0.3 in transients and 0 in steady phases 73 to 80."""


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
    """Quantiles of the total, and the median of its arrivals; ``basis`` is what a combiner learns from, later."""

    p10: float
    p50: float
    p90: float
    p50_arrivals: float
    basis: Array


class Outcome(NamedTuple):
    """What the combiner of number ``which`` ``said`` of a forecast came out as ``actual``, ``after_s`` later."""

    which: int
    said: Corrected
    actual: float
    after_s: float


class Kind(NamedTuple):
    """What a combiner combines.

    Attributes:
        horizon_s: length of the windows.
        wide: whether the forecast's own widths are known to be too small.
        sharpness: the power of the errors that weights go by.
        lean: independent windows that the forecast's being right on average is worth.
        whole: whether the known part is known no better than what arrives: then it is mended too, and of what a series
            says the share arrives that the forecast says; else all that it says beyond the known part.
    """

    horizon_s: float
    wide: bool = False
    sharpness: float = 4.0
    lean: float = 2.0
    whole: bool = False


class _Learnt(NamedTuple):
    """What n combiners have learnt; experts are the forecast, the forecast mended, and the series.

    Attributes:
        horizon_s, sharpness, whole: of their kinds, by combiner; ``lean`` float64[n], seconds.
        keep: float64[n], what is left of a window that settled a second ago.
        errors, weights: float64[n, cells, experts].
        came, expected, windows: float64[n], tokens that arrived and that were expected to, over so many windows.
        log_widths: float64[n, cells, 2], below and above the median, on top of what is ``shared``, float64[n, 2].
        settles_s: float64[n], how long windows take to settle.
    """

    horizon_s: Array
    whole: NDArray[np.bool_]
    sharpness: Array
    lean: Array
    keep: Array
    errors: Array
    weights: Array
    came: Array
    expected: Array
    windows: Array
    log_widths: Array
    shared: Array
    settles_s: Array


class Combiners:
    """Medians as weighted means of several forecasts, and widths that are right on average.

    The experts are the forecast itself, the forecast with its arrivals (where the rest is known no better, all of it)
    multiplied by what they were short of lately (the ratio of sums over the settled windows that are not forgotten,
    leaning on 1: windows overlap, so that one of them tells little), and the baselines. Each weighs
    ``error ** -sharpness``, its mean error over such windows, relative to the actual. Weights are kept apart by phase,
    and in transients by how far the forecast was from the series: where they are far apart, a burst or a drain is
    coming, and what counts is who was right about the last. The forecast leads until it was shown wrong: where a series
    is better, that has taken over after some thirty windows.

    The widths move along the gradient of the pinball loss: out by 0.9 of a step if the actual fell outside of what was
    said, in by 0.1 if not, so that p10 and p90 are each passed in a tenth of the windows. Windows overlap, and all that
    are made before one settles miss for the same reason: so steps are divided by the time that windows take to settle;
    on average, since large requests, which make a window miss, also make it settle later.

    Args:
        kinds: what each combiner combines; they learn apart, and are kept together since a tick asks all of them.
        series: how many baselines there are.
    """

    def __init__(self, kinds: Sequence[Kind], series: int) -> None:
        horizon_s, wide, sharpness, lean, whole = np.array(kinds, np.float64).T
        n, cells = len(kinds), len(_OWN_ERROR)
        errors = PRIOR_WINDOWS * np.column_stack([_OWN_ERROR] * 2 + [_SERIES_ERROR] * series)
        self._learnt = _Learnt(
            horizon_s=horizon_s,
            whole=whole > 0.0,
            sharpness=sharpness,
            lean=lean * horizon_s,
            keep=np.exp(-1.0 / np.maximum(FORGET_S, 4.0 * horizon_s)),
            errors=np.repeat(errors[None], n, axis=0),
            weights=np.zeros((n, *errors.shape)),
            came=np.zeros(n),
            expected=np.zeros(n),
            windows=np.zeros(n),
            log_widths=np.tile(_WIDE * wide[:, None, None], (1, cells, 2)),
            shared=np.zeros((n, 2)),
            settles_s=horizon_s.copy(),
        )
        for which in range(n):
            for cell in range(cells):
                _weigh(self._learnt, which, cell)

    def correct(self, which: Sequence[int], raws: Sequence[Raw]) -> list[Corrected]:
        """The quantiles as of today, of forecasts for so many combiners; none is below 0."""
        bases = np.empty((len(raws), _SERIES + len(raws[0].series)))
        bases[:, _KNOWN:] = [(r.known, r.p50_arrivals, r.below, r.above, r.transient, *r.series) for r in raws]
        _correct(self._learnt, np.array(which), bases)
        p10, p50, p90, p50_arrivals = bases[:, :_MENDED].T.tolist()
        return [Corrected(*said) for said in zip(p10, p50, p90, p50_arrivals, bases, strict=True)]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from what came of earlier forecasts."""
        if outcomes:
            which = np.array([outcome.which for outcome in outcomes])
            bases = np.array([outcome.said.basis for outcome in outcomes])
            came = np.array([(outcome.actual, outcome.after_s) for outcome in outcomes])
            _learn(self._learnt, which, bases, came)


_P10, _P50, _P90, _P50_ARRIVALS, _MENDED, _KNOWN, _ARRIVALS, _BELOW, _ABOVE, _TRANSIENT, _SERIES = range(11)
"""Columns of a basis: what was said, what the forecast's own arrivals were multiplied by in one of the parts of that,
and the forecast as it was; from the last on the series.
"""


@compiled
def _cell(basis: Array) -> int:
    """The phase, and in transients the class of how far the forecast and the middle one of the series are apart."""
    if not basis[_TRANSIENT]:
        return STEADY
    series = np.sort(basis[_SERIES:])
    own, other = basis[_KNOWN] + basis[_ARRIVALS], series[len(series) // 2]
    apart, cell = abs(own - other) / max(own, other, 1.0), 0
    for bound in DISAGREEMENTS:
        cell += apart >= bound
    return cell


@compiled
def _weigh(of: _Learnt, which: int, cell: int) -> None:
    """Weights of forecasters by their errors; they sum to 1."""
    errors, weights = of.errors[which, cell], of.weights[which, cell]
    least = max(errors.min(), 1e-9)
    for expert in range(len(errors)):
        weights[expert] = (max(errors[expert], least) / least) ** -of.sharpness[which]
    weights /= weights.sum()


@compiled
def _mended(of: _Learnt, which: int) -> float:
    """What the arrivals, or the whole, were short of: of all that came over all that was expected."""
    if of.expected[which] <= 0.0:
        return 1.0
    lean = of.lean[which] * of.expected[which] / of.windows[which]
    ratio = (of.came[which] + lean) / (of.expected[which] + lean)
    return float(min(max(ratio, 1.0 / _MOST_MENDED), _MOST_MENDED))


@compiled
def _correct(of: _Learnt, which: NDArray[np.intp], bases: Array) -> None:
    """Write down what is said of each, and how much its arrivals are mended."""
    for n in range(len(bases)):
        basis, row = bases[n], which[n]
        cell, mended = _cell(basis), _mended(of, row)
        weights, known, arrivals = of.weights[row, cell], basis[_KNOWN], basis[_ARRIVALS]
        # The median of what arrives, and of all.
        later = (weights[0] + weights[1] * mended) * arrivals
        total = (weights[0] + weights[1] * (mended if of.whole[row] else 1.0)) * known + later
        for expert in range(2, len(weights)):
            value = basis[_SERIES + expert - 2]
            total += weights[expert] * value
            if of.whole[row]:
                later += weights[expert] * value * arrivals / max(known + arrivals, 1e-9)
            else:
                later += weights[expert] * max(value - known, 0.0)
        log_widths = np.minimum(np.maximum(of.log_widths[row, cell] + of.shared[row], -MAX_LOG_WIDTH), MAX_LOG_WIDTH)
        below, above = basis[_BELOW] * np.exp(log_widths[0]), basis[_ABOVE] * np.exp(log_widths[1])
        basis[_P10], basis[_P50], basis[_P90] = max(total - below, 0.0), total, total + above
        basis[_P50_ARRIVALS], basis[_MENDED] = later, mended


@compiled
def _learn_widths(of: _Learnt, which: int, cell: int, after_s: float, missed: tuple[bool, bool]) -> None:
    of.settles_s[which] += (1.0 - of.keep[which]) * (after_s - of.settles_s[which])
    rate = _WIDTH_RATE / max(of.horizon_s[which], of.settles_s[which])
    own, shared = of.log_widths[which, cell], of.shared[which]
    for side in range(2):
        at = own[side] + shared[side]
        step = min(max(at + rate * (missed[side] - 0.1), -MAX_LOG_WIDTH), MAX_LOG_WIDTH) - at
        own[side] += (1.0 - _SHARED_STEP) * step
        shared[side] += _SHARED_STEP * step


@compiled
def _learn(of: _Learnt, which: NDArray[np.intp], bases: Array, came: Array) -> None:
    """Learn from what ``came`` (float64[n, 2]): tokens, and after how many seconds that was known."""
    for n in range(len(bases)):
        basis, row, actual = bases[n], which[n], came[n, 0]
        known, arrivals, cell, keep = basis[_KNOWN], basis[_ARRIVALS], _cell(basis), of.keep[row]
        _learn_widths(of, row, cell, came[n, 1], (actual < basis[_P10], actual > basis[_P90]))
        apart = 0.0 if of.whole[row] else known
        of.came[row] = of.came[row] * keep + max(actual - apart, 0.0)
        of.expected[row] = of.expected[row] * keep + known - apart + arrivals
        of.windows[row] = of.windows[row] * keep + 1.0
        scale = max(actual, 0.5 * (known + arrivals))
        if scale <= 0.0:
            continue
        errors = of.errors[row, cell]
        for expert in range(len(errors)):
            point = basis[_SERIES + expert - 2]
            if expert < 2:
                mended = basis[_MENDED] if expert == 1 else 1.0
                point = known * (mended if of.whole[row] else 1.0) + arrivals * mended
            errors[expert] = errors[expert] * keep + abs(point - actual) / scale
        _weigh(of, row, cell)
