"""How fast something goes that is the slower the more there is: requests that decode, prompts that grow."""

import math
from typing import Final, NamedTuple

from prorsa.forecast.models import Recent

_MEMORY_S: Final = 150.0
"""What is known of the slope has faded to 1/e after so many seconds with a usual load."""
_SPREAD: Final = 0.1
_SECONDS: Final = 10.0
"""Loads must have differed by such a share, for so many seconds, for a slope to count half."""
_MOST: Final = 1.5
"""A token takes at most so much more or less than now."""


class Line(NamedTuple):
    """Seconds a token by the load: ``now_s`` at ``load``, the mean of the last ones, ``slope_s`` more with each more.

    ``usual`` is the mean load of the last minutes; a token takes at most ``most`` times as long as now, or that part.
    """

    now_s: float
    slope_s: float
    load: float
    usual: float
    most: float


class LoadedSpeed:
    """Tokens a second: what it is now, and what it is expected to be under another load.

    Seconds a token are taken as a line over the load, by least squares that forget. How steep it is is learnt from
    seconds with different loads, and where it stands from the last ones.

    Args:
        prior: tokens a second before any were seen, with the weight of ``prior_weight`` seconds.
        memory: after so many seconds what was before has faded to 1/e.
        relative_slope: what is assumed of how much longer a token takes with a load of one more, over what it takes
            without any.
    """

    def __init__(self, prior: float, *, memory: float, prior_weight: float, relative_slope: float = 0.0) -> None:
        self._relative_slope = relative_slope
        self._now = Recent(prior=prior, memory=memory, prior_weight=prior_weight)
        self._load_now = Recent(prior=0.0, memory=memory, prior_weight=0.0)
        self._seconds = self._load = self._token_s = self._square = self._product = 0.0

    def add_unloaded(self, tokens: float, duration_s: float) -> None:
        """So many tokens in ``duration_s``, under a load that is not known."""
        self._now.add(tokens, duration_s)

    def add(self, tokens: float, duration_s: float, load: float, elapsed_s: float) -> None:
        """So many tokens in ``duration_s`` (of all that are at work), under such a load for ``elapsed_s``."""
        self._now.add(tokens, duration_s)
        if tokens <= 0.0 or duration_s <= 0.0 or load <= 0.0:
            return
        token_s = duration_s / tokens
        self._load_now.add(load * duration_s, duration_s)
        usual = self._load / self._seconds if self._seconds > 0.0 else load
        # A light load, as of the stragglers of a drain, says little of a full one: it makes forget as little.
        weight = elapsed_s * min(load / usual, 1.0)
        keep = math.exp(-weight / _MEMORY_S)
        self._seconds = self._seconds * keep + weight
        self._load = self._load * keep + weight * load
        self._token_s = self._token_s * keep + weight * token_s
        self._square = self._square * keep + weight * load * load
        self._product = self._product * keep + weight * load * token_s

    @property
    def value(self) -> float:
        """Tokens a second now."""
        return self._now.value

    @property
    def line(self) -> Line:
        """What is known of it."""
        now_s = 1.0 / max(self.value, 1e-9)
        if self._seconds <= 0.0:
            return Line(now_s, 0.0, 0.0, 0.0, _MOST)
        return Line(now_s, self._slope(), self._load_now.value, self._load / self._seconds, _MOST)

    def at(self, load: float) -> float:
        """Tokens a second under such a load."""
        if self._seconds <= 0.0:
            return self.value
        line = self.line
        then_s = line.now_s + line.slope_s * (load - line.load)
        return 1.0 / min(max(then_s, line.now_s / line.most), line.now_s * line.most)

    def _slope(self) -> float:
        """Seconds a token, of a load of one more."""
        mean, token_s = self._load / self._seconds, self._token_s / self._seconds
        doubt = _SECONDS * (_SPREAD * mean) ** 2
        assumed = self._relative_slope * token_s / (1.0 + self._relative_slope * mean)
        seen = self._product - self._seconds * mean * token_s
        spread = max(self._square - self._seconds * mean * mean, 0.0)
        return max(seen + doubt * assumed, 0.0) / max(spread + doubt, 1e-9)
