"""Forecasts from the demand series alone, to measure the lifecycle forecast against.

Each follows the tokens of every second and says how many come in the next ``H`` seconds. For prefill all get the same
backlog estimate as the lifecycle forecast; they differ in what they add to it. Defaults were tuned on seeds of the
simulator other than those that are reported (``docs/forecast.md``).
"""

from bisect import bisect_right
from typing import Final, Protocol

from prorsa.events import ForecastTarget

EWMA_HALF_LIFE_S: Final[dict[ForecastTarget, float]] = {"prefill": 5.0, "decode_admission": 10.0, "kv_need": 10.0}
KALMAN_NOISE_RATIO: Final[dict[ForecastTarget, float]] = {"prefill": 0.2, "decode_admission": 0.01, "kv_need": 0.01}


class Baseline(Protocol):
    """A forecaster of one series."""

    def update(self, value: float, duration_s: float) -> None:
        """``value`` tokens came in the last ``duration_s``."""

    def over(self, horizon_s: float) -> float:
        """Tokens expected in the next ``horizon_s``; 0 before any update."""


class LastValue:
    """What came in the last ``H`` seconds comes again.

    Args:
        longest_s: the longest horizon that will be asked for.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._at_s = [0.0]
        self._sums = [0.0]

    def update(self, value: float, duration_s: float) -> None:
        """See :class:`Baseline`."""
        self._at_s.append(self._at_s[-1] + duration_s)
        self._sums.append(self._sums[-1] + value)
        if self._at_s[len(self._at_s) // 2] < self._at_s[-1] - self._longest_s:
            half = len(self._at_s) // 2
            del self._at_s[:half], self._sums[:half]

    def over(self, horizon_s: float) -> float:
        """See :class:`Baseline`; a series shorter than the horizon is scaled up."""
        begin = max(bisect_right(self._at_s, self._at_s[-1] - horizon_s) - 1, 0)
        held_s = self._at_s[-1] - self._at_s[begin]
        return (self._sums[-1] - self._sums[begin]) * horizon_s / held_s if held_s else 0.0


class Ewma:
    """Exponentially weighted mean with a half-life, corrected for its start."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._sum = 0.0
        self._weight_s = 0.0

    def update(self, value: float, duration_s: float) -> None:
        """See :class:`Baseline`."""
        keep = 0.5 ** (duration_s / self._half_life_s)
        self._sum = self._sum * keep + value
        self._weight_s = self._weight_s * keep + duration_s

    def over(self, horizon_s: float) -> float:
        """See :class:`Baseline`."""
        return self._sum / self._weight_s * horizon_s if self._weight_s else 0.0


class KalmanLocalLevel:
    """A level that does a random walk, seen through noise.

    Only the ratio of the two variances matters for the level; the first value is taken as it is.

    Args:
        noise_ratio: variance of the level's step in a second over that of the noise of a second's value.
    """

    def __init__(self, noise_ratio: float) -> None:
        self._ratio = noise_ratio
        self._level = 0.0
        self._variance: float | None = None

    def update(self, value: float, duration_s: float) -> None:
        """See :class:`Baseline`."""
        rate, noise = value / duration_s, 1.0 / duration_s
        if self._variance is None:
            self._level, self._variance = rate, noise
            return
        predicted = self._variance + self._ratio * duration_s
        gain = predicted / (predicted + noise)
        self._level += gain * (rate - self._level)
        self._variance = (1.0 - gain) * predicted

    def over(self, horizon_s: float) -> float:
        """See :class:`Baseline`."""
        return self._level * horizon_s


class BaselineSet:
    """The three baselines over the series of one target, with the parameters tuned for it."""

    NAMES: Final = ("last", "ewma", "kalman")

    def __init__(self, target: ForecastTarget, longest_s: float) -> None:
        self._baselines: tuple[Baseline, ...] = (
            LastValue(longest_s),
            Ewma(EWMA_HALF_LIFE_S[target]),
            KalmanLocalLevel(KALMAN_NOISE_RATIO[target]),
        )
        self._named: tuple[tuple[str, Baseline], ...] = tuple(zip(self.NAMES, self._baselines, strict=True))

    def update(self, value: float, duration_s: float) -> None:
        """``value`` tokens came in the last ``duration_s``."""
        if duration_s <= 0:
            return
        for baseline in self._baselines:
            baseline.update(value, duration_s)

    def over(self, horizon_s: float, backlog_tokens: float = 0.0) -> dict[str, float]:
        """By name: ``backlog_tokens`` and what is expected to come in the next ``horizon_s``."""
        return {name: backlog_tokens + baseline.over(horizon_s) for name, baseline in self._named}
