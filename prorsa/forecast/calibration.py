"""Online correction of quantiles by how earlier ones turned out."""

import math
from typing import Final

MAX_LOG_BIAS: Final = 0.7
MAX_LOG_WIDTH: Final = 1.5


class Calibrator:
    """Moves a median, and the widths on both its sides, until they are right as often as they should be.

    Each settled window moves the logarithm of a factor by a small step along the gradient of the pinball loss: the
    median up if the actual lay above it, down if below; the lower (upper) width out by 0.9 of a step if the actual fell
    outside and in by 0.1 if not, so that p10 and p90 are each passed in a tenth of the windows. Windows overlap, so the
    step is divided by their length.

    Args:
        horizon_s: length of the windows.
        rate: step of the median, for windows of one second.
        width_rate: step of the widths, likewise.
    """

    def __init__(self, horizon_s: float, *, rate: float = 0.1, width_rate: float = 1.0) -> None:
        self._step = rate / horizon_s
        self._width_step = width_rate / horizon_s
        self._log_bias = 0.0
        self._log_low = 0.0
        self._log_high = 0.0

    @property
    def bias(self) -> float:
        """Factor for the median of what is still to arrive."""
        return math.exp(self._log_bias)

    def spread(self, p10: float, p50: float, p90: float) -> tuple[float, float]:
        """Corrected ``(p10, p90)`` around a median; never below 0."""
        low = p50 - (p50 - p10) * math.exp(self._log_low)
        return max(low, 0.0), p50 + (p90 - p50) * math.exp(self._log_high)

    def settle_median(self, *, above: bool) -> None:
        """What arrived lay above (or below) the median."""
        self._log_bias = _clip(self._log_bias + (self._step if above else -self._step), MAX_LOG_BIAS)

    def settle_spread(self, actual: float, p10: float, p90: float) -> None:
        """The total came out as ``actual`` where ``p10`` and ``p90`` were forecast."""
        self._log_low = _clip(self._log_low + self._width_step * ((actual < p10) - 0.1), MAX_LOG_WIDTH)
        self._log_high = _clip(self._log_high + self._width_step * ((actual > p90) - 0.1), MAX_LOG_WIDTH)


def _clip(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
