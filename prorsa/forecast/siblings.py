"""How much is computed of the prompts that trajectories begin with, where siblings begin with the same one."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.models import LogGrid
from prorsa.forecast.scan import AGAIN_TOKENS, EARLY_AGAIN

Array = NDArray[np.float64]

_STARTS: Final = LogGrid(low=1.0, per_octave=1, bins=14)
"""First requests that start together, in octaves."""
_NEAR: Final = 0.3
"""What was seen where twice as many or half as many start counts so much."""
_LEAST_S: Final = 0.5
"""Steps of engines, and the router's rounds: first requests that become ready less than this apart start together."""
_KEPT: Final = 8192
"""First requests of which the times are remembered."""
_ALL_TOGETHER: Final = 20.0
"""First requests that start together at which siblings are taken, before any was seen, to start before the first of
them is computed: more than a group of eight on either side."""


class FirstShare:
    """How much of a first prompt is computed: forgetting, apart for those that siblings come before.

    Before anything was seen the first of a group, and what has none, computes all of it. Its siblings share it to the
    token once it is computed; those that become ready before compute it again on other ranks: of a short prompt a
    share, of long ones, which are worth a wait for the rank that has them, about so many tokens. How many do follows
    from how many first requests start together, as a Poisson number of them while the first is computed, and from how
    many siblings there are. That law is scaled to what was seen, by how many started together.
    """

    _STRENGTH: Final = 20.0
    """First prompts that what is assumed is worth: they come in groups, and each computes all of it or nothing."""
    _KEEP: Final = 2.0 ** (-1.0 / 200.0)
    """A prefill of its class, or a dispatch."""

    def __init__(self) -> None:
        bins = _STARTS.bins
        self._alone = [0.0, 0.0, 0.0]
        self._expected, self._computed, self._number = [0.0] * bins, [0.0] * bins, [0.0] * bins
        self._seen: set[int] = set()
        self._dispatched = [0.0, 0.0]
        self._ready_s: deque[float] = deque(maxlen=_KEPT)

    def dispatched(self, *, sibling: bool) -> None:
        """A trajectory was dispatched, with siblings before it or none."""
        self._dispatched = [of * self._KEEP for of in self._dispatched]
        self._dispatched[sibling] += 1.0

    def ready(self, t_s: float) -> None:
        """A first request became ready."""
        self._ready_s.append(t_s)

    def starts(self, ready_s: float, computed_s: float) -> float:
        """First requests that became ready while one that did at ``ready_s`` was not computed, or shortly before it.

        Args:
            computed_s: how long that took.
        """
        times, around_s = self._ready_s, max(computed_s, _LEAST_S)
        first, at = bisect_left(times, ready_s - around_s), bisect_left(times, ready_s)
        last = bisect_right(times, ready_s + around_s, lo=at)
        before, since = at - first, last - at
        if times and times[-1] < ready_s + around_s:
            # More may still come: as many as before it.
            since = max(since, before + bisect_right(times, ready_s, lo=at) - at)
        return float(max(before + since, 1))

    def starting(self, computed_s: float) -> float:
        """The same of the last one, if it takes so long."""
        return self.starts(self._ready_s[-1], computed_s) if self._ready_s else _ALL_TOGETHER

    def at_rate(self, requests_per_s: float, computed_s: float) -> float:
        """The same of one of those that come at random: one finds so many others around it."""
        return 1.0 + 2.0 * max(computed_s, _LEAST_S) * requests_per_s

    def prefilled(self, uncached_tokens: float, prompt_tokens: float, *, sibling: bool, starts: float) -> None:
        """So much of a first prompt was computed, where so many started together."""
        if not sibling:
            of = (prompt_tokens, uncached_tokens, 1.0)
            self._alone = [sums * self._KEEP + value for sums, value in zip(self._alone, of, strict=True)]
            return
        at, expected = _STARTS.index(starts), min(EARLY_AGAIN * prompt_tokens, AGAIN_TOKENS)
        expected *= self._early(starts)
        self._seen.add(at)
        for sums, value in ((self._expected, expected), (self._computed, uncached_tokens), (self._number, 1.0)):
            sums[at] = sums[at] * self._KEEP + value

    def _of_alone(self) -> float:
        """What was computed of prompts without siblings before them, as a share."""
        expected, computed, number = self._alone
        prior = self._STRENGTH * expected / number if number > 0.0 else 1.0
        return (computed + prior) / (expected + prior)

    def scale(self, starts: float) -> float:
        """What siblings computed, over what is assumed of a sibling at most, where so many start together."""
        octave, assumed = math.log2(starts) + 0.5, self._early(starts)
        number = expected = computed = 0.0
        for at in self._seen:
            near = _NEAR ** abs(at - octave)
            number += near * self._number[at]
            expected += near * self._expected[at]
            computed += near * self._computed[at]
        prior = self._STRENGTH * expected / number if number > 0.0 else 1.0
        return assumed * (computed + prior) / (expected + prior)

    def _early(self, starts: float) -> float:
        """Share of siblings that become ready before the first of them is computed, of so many that start together."""
        others = max(round(self._dispatched[1] / max(self._dispatched[0], 1e-9)), 1)
        near = 0.5 * (starts - 1.0)
        chance, missing = math.exp(-near), 0.0
        for k in range(min(others, 64)):
            missing += (others - k) * chance
            chance *= near / (k + 1)
        return max(1.0 - missing / others, 1e-3)

    def of_siblings(self, prompt_tokens: Array, starts: float) -> Array:
        """Tokens computed of the first prompts of those that siblings come before, of so many that start together."""
        again = np.minimum(EARLY_AGAIN * prompt_tokens, AGAIN_TOKENS)
        tokens: Array = np.minimum(self.scale(starts) * again, prompt_tokens)
        return tokens

    def shares(self, prompt_tokens: float, starts: float) -> Array:
        """float64[3] of a prompt of such a size, of so many that start together: share computed without siblings
        before it; with siblings, as a multiple of what is assumed; of all by what is dispatched.
        """
        alone, scale = self._of_alone(), self.scale(starts)
        siblings = self._dispatched[1] / max(sum(self._dispatched), 1.0)
        again = min(scale * min(EARLY_AGAIN * prompt_tokens, AGAIN_TOKENS), prompt_tokens)
        share = again / max(prompt_tokens, 1.0)
        return np.array([alone, scale, (1.0 - siblings) * alone + siblings * share])
