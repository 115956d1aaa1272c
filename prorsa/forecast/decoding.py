"""How fast requests decode: the more of them, the slower each."""

import math
from typing import Final

from prorsa.forecast.models import Recent

_MEMORY_S: Final = 150.0
"""What is known of the slope has faded to 1/e after so many seconds with a usual batch."""
_SPREAD: Final = 0.1
_SECONDS: Final = 10.0
"""Batches must have differed by such a share, for so many seconds, for a slope to count half."""
_MOST: Final = 1.5
"""A token takes at most so much more or less than now."""


class DecodeSpeed:
    """Output tokens a second of one request: what it is now, and what it is expected to be with another batch.

    Seconds a token are taken as a line over the batch, by least squares that forget. How steep it is is learnt from
    seconds with different batches, and where it stands from the last request-seconds.
    """

    def __init__(self) -> None:
        self._now = Recent(prior=40.0, memory=300.0, prior_weight=4.0)
        self._batch_now = Recent(prior=0.0, memory=300.0, prior_weight=0.0)
        self._seconds = self._batch = self._token_s = self._square = self._product = 0.0

    def add(self, tokens: float, duration_s: float, batch: float, elapsed_s: float) -> None:
        """So many tokens were put out in ``duration_s`` request-seconds, with such a batch for ``elapsed_s``."""
        self._now.add(tokens, duration_s)
        if tokens <= 0.0 or duration_s <= 0.0 or batch <= 0.0:
            return
        token_s = duration_s / tokens
        self._batch_now.add(batch * duration_s, duration_s)
        usual = self._batch / self._seconds if self._seconds > 0.0 else batch
        # The few stragglers of a drain say little of a full batch, so they make forget as little.
        weight = elapsed_s * min(batch / usual, 1.0)
        keep = math.exp(-weight / _MEMORY_S)
        self._seconds = self._seconds * keep + weight
        self._batch = self._batch * keep + weight * batch
        self._token_s = self._token_s * keep + weight * token_s
        self._square = self._square * keep + weight * batch * batch
        self._product = self._product * keep + weight * batch * token_s

    @property
    def value(self) -> float:
        """Tokens a second now."""
        return self._now.value

    def at(self, batch: float) -> float:
        """Tokens a second while so many decode."""
        now_s = 1.0 / max(self.value, 1e-9)
        if self._seconds <= 0.0:
            return self.value
        then_s = now_s + self._slope() * (batch - self._batch_now.value)
        return 1.0 / min(max(then_s, now_s / _MOST), now_s * _MOST)

    def _slope(self) -> float:
        """Seconds a token, a request more."""
        mean, token_s = self._batch / self._seconds, self._token_s / self._seconds
        spread = max(self._square - self._seconds * mean * mean, 0.0) + _SECONDS * (_SPREAD * mean) ** 2
        return max(self._product - self._seconds * mean * token_s, 0.0) / max(spread, 1e-9)
