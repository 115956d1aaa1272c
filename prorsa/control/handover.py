"""When a learned policy gives the decision away, and when it takes it back.

Four things end its turn: an observation outside the range that it was trained on, an output that is no number, moves
that have not paid (over the last few of them the pool has put out less after than before), and a second opinion that
keeps seeing clearly more in another split. The first two end it at once; it comes back after ``RETURN_S`` without
either. The third ends it for ``SUSPENDED_S``, the fourth for that and twice as long each time.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.clock import seconds
from prorsa.control.model import Card
from prorsa.control.observation import FEATURES

RETURN_S: Final = 60.0
"""Time with nothing to object to after which it decides again."""
SUSPENDED_S: Final = 300.0
"""How long it does not decide after its moves have not paid."""
MARGIN: Final = 0.1
"""How far a feature may be outside its range in training, as a share of the range."""
TOLERANCE: Final = 0.1
"""How far it may be outside at least, in the feature's own units, which all have a natural span of about 1 (a share, a
squashed quantity, the work of the whole pool). A feature that hardly moved in a short training has no width to take a
share of; a tenth of what it can be is no other situation, and flags (0 or 1) stay strict."""
OWN: Final = frozenset({"prefill_share", "switching_share", "room_up", "room_down", "moved"})
"""Features that say where the pool's roles stand, not what comes: from 0 to 1 by construction, and any of their values
is a moment of some flip. Judged by them, whoever decides instead could lead the pool to where it never comes back."""
JUDGED_MOVES: Final = 6
"""Moves whose outcomes are known that it takes to judge."""
LEAST_RATIO: Final = 0.85
"""Geometric mean of output after by output before its moves, below which they have not paid: well outside what one
burst does."""
OPPOSED: Final = 6
"""Decisions of the last ``_LOOKED_AT`` in which the second opinion must have wanted to move where the policy did not:
half a minute of a minute. The second opinion only moves where that gains clearly more than it costs."""
_LOOKED_AT: Final = 12
_MOST_SUSPENDED_S: Final = 3_600.0
BEFORE_AFTER_S: Final = 60.0
"""How long output is measured before and after a move."""


class Ranges:
    """The ranges of the features in training, with a margin; those in :data:`OWN` are never outside.

    The margin is :data:`MARGIN` of the range, at least :data:`TOLERANCE`.
    """

    def __init__(self, card: Card) -> None:
        low, high = np.array(card.low), np.array(card.high)
        slack = np.maximum(MARGIN * (high - low), TOLERANCE)
        slack[[name in OWN for name in FEATURES]] = np.inf
        self._low, self._high = low - slack, high + slack

    def outside(self, observation: NDArray[np.float32]) -> list[str]:
        """The names of the features that are outside, those first that are furthest."""
        excess = np.maximum(self._low - observation, observation - self._high)
        names = list(FEATURES)
        return [names[index] for index in np.argsort(-excess) if excess[index] > 0.0]


@dataclass(slots=True)
class _Move:
    t_s: float
    before: float


class Outcomes:
    """Output of the pool before and after each move."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, float]] = deque()
        self._open: deque[_Move] = deque()
        self._ratios: deque[float] = deque(maxlen=JUDGED_MOVES)

    def count(self, t_s: float, output_tokens: float) -> None:
        """``output_tokens`` of the pool have come out until now; settles the moves that are old enough."""
        if self._counts and output_tokens < self._counts[-1][1]:
            self._counts.clear()  # a worker began to count afresh
            self._open.clear()
        self._counts.append((t_s, output_tokens))
        while len(self._counts) > 2 and self._counts[1][0] <= t_s - BEFORE_AFTER_S:
            self._counts.popleft()
        while self._open and t_s >= self._open[0].t_s + BEFORE_AFTER_S:
            before, after = self._open.popleft().before, self._rate()
            if before > 0.0 and after is not None:
                self._ratios.append(max(after, 1e-9) / before)

    def moved(self, t_s: float) -> None:
        """It has moved workers now; a move without a whole minute before it is not judged."""
        rate = self._rate()
        if rate is not None and self._counts[-1][0] - self._counts[0][0] >= BEFORE_AFTER_S / 2:
            self._open.append(_Move(t_s, rate))

    def ratio(self) -> float | None:
        """Geometric mean of the last moves' outputs after by before; None while too few are known."""
        if len(self._ratios) < JUDGED_MOVES:
            return None
        return math.exp(sum(map(math.log, self._ratios)) / len(self._ratios))

    def forget(self) -> None:
        """Judge afresh."""
        self._open.clear()
        self._ratios.clear()

    def _rate(self) -> float | None:
        if not self._counts:
            return None
        (began_s, began), (now_s, now) = self._counts[0], self._counts[-1]
        return (now - began) / (now_s - began_s) if now_s > began_s else None


class Opposition:
    """How persistently a second opinion has wanted to move workers where the policy did not."""

    def __init__(self) -> None:
        self._opposed: deque[bool] = deque(maxlen=_LOOKED_AT)
        self._times = 0

    def note(self, own: int, theirs: int) -> float | None:
        """The two shifts of a decision, in workers to prefill; seconds to suspend the policy for, None for not at all.

        Nothing is held against a policy for wanting to move where the other one would stay.
        """
        self._opposed.append(theirs != 0 and own * theirs <= 0)
        if sum(self._opposed) < OPPOSED:
            return None
        self._opposed.clear()
        self._times += 1
        return min(SUSPENDED_S * 2.0 ** (self._times - 1), _MOST_SUSPENDED_S)


class Handover:
    """Whether it is the learned policy's turn."""

    def __init__(self) -> None:
        self.until_s = -math.inf
        self.reason = ""

    def object(self, t_s: float, reason: str, for_s: float = RETURN_S) -> bool:
        """Something speaks against it now; whether that ends no sooner than what spoke against it already."""
        lasts = t_s + for_s >= self.until_s
        if lasts:
            self.until_s, self.reason = t_s + for_s, reason
        return lasts

    def away(self, t_ns: int) -> bool:
        """Whether somebody else decides now."""
        return seconds(t_ns) < self.until_s
