"""Online correction of quantiles by how earlier ones turned out."""

import math
from dataclasses import dataclass
from typing import Final

MAX_LOG_BIAS: Final = 0.7
MAX_BLEND: Final = 0.7
MAX_LOG_WIDTH: Final = 2.5


@dataclass(frozen=True, slots=True)
class Raw:
    """Quantiles before any correction: a known part, the median of what is still to arrive, widths around the sum.

    ``series`` is what the demand series alone says of what is still to arrive.
    """

    known: float
    p50_arrivals: float
    below: float
    above: float
    series: float


@dataclass(frozen=True, slots=True)
class Corrected:
    """Quantiles of the total, and the median of its arrivals."""

    p10: float
    p50: float
    p90: float
    p50_arrivals: float


class Calibrator:
    """Moves a median, and the widths on both its sides, until they are right as often as they should be.

    Each settled window moves the logarithm of a factor by a small step along the gradient of the pinball loss: the
    median up if the actual lay above it, down if below; the lower (upper) width out by 0.9 of a step if the actual fell
    outside and in by 0.1 if not, so that p10 and p90 are each passed in a tenth of the windows. It counts where
    *today's* factor would have put the median, and today's widths around the median that was said: a window may settle
    minutes after its forecast, and steering by the factors of then would swing to and fro. Windows overlap, so the
    step is divided by their length.

    The median is also drawn towards what the demand series alone says (an EWMA), as far as that proves right: at a
    steady state there is little that a lifecycle tells and a series does not.

    Args:
        horizon_s: length of the windows.
        rate: step of the median, for windows of one second.
        width_rate: step of the widths, likewise.
    """

    def __init__(self, horizon_s: float, *, rate: float = 0.1, width_rate: float = 0.5) -> None:
        self._step = rate / horizon_s
        self._width_step = width_rate / horizon_s
        self._log_bias = 0.0
        self._blend = 0.0
        self._log_low = 0.0
        self._log_high = 0.0

    def correct(self, raw: Raw) -> Corrected:
        """The quantiles with today's factors; none is below 0."""
        bias = math.exp(self._log_bias)
        p50_arrivals = self._median(raw)
        p50 = raw.known + p50_arrivals
        low = p50 - raw.below * bias * math.exp(self._log_low)
        high = p50 + raw.above * bias * math.exp(self._log_high)
        return Corrected(max(low, 0.0), p50, high, p50_arrivals)

    def _median(self, raw: Raw) -> float:
        return (1.0 - self._blend) * raw.p50_arrivals * math.exp(self._log_bias) + self._blend * raw.series

    def settle(self, raw: Raw, said: Corrected, actual: float, actual_arrivals: float) -> None:
        """A forecast that was ``raw``, and ``said`` after correction, has come out."""
        bias = math.exp(self._log_bias)
        self._lean(raw, raw.p50_arrivals * bias, actual_arrivals)
        below = actual < said.p50 - raw.below * bias * math.exp(self._log_low)
        above = actual > said.p50 + raw.above * bias * math.exp(self._log_high)
        self._log_low = _clip(self._log_low + self._width_step * (below - 0.1), MAX_LOG_WIDTH)
        self._log_high = _clip(self._log_high + self._width_step * (above - 0.1), MAX_LOG_WIDTH)

    def _lean(self, raw: Raw, own: float, actual_arrivals: float) -> None:
        """Move the median towards what came, by its own factor and by leaning on the series."""
        miss = actual_arrivals - self._median(raw)
        scale = max(actual_arrivals, raw.series, own)
        if miss == 0.0 or scale <= 0.0:
            return
        side = math.copysign(self._step, miss)
        self._blend = min(max(self._blend + 0.5 * side * (raw.series - own) / scale, 0.0), MAX_BLEND)
        self._log_bias = _clip(self._log_bias + side, MAX_LOG_BIAS)


def _clip(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
