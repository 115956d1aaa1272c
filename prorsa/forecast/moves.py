"""How often a turn is prefilled away from the rank that holds its context, because the queue there is too long.

The router sends a turn where the least is computed before its first token: home, unless the queue at home is longer
than elsewhere by more than home saves. What decides is therefore the *crowding* of a home: by how many tokens its queue
is longer than the shortest one, as a share of the tokens that home saves. It need not reach 1 when a turn becomes
ready, since queues move on until the turn's place comes.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.scan import CROWDED, MOVE_CELLS, move_cell
from prorsa.forecast.tables import move_chances

Array = NDArray[np.float64]

MOVES_FROM: Final = 0.25
"""A context that is missed on another rank was left behind if its home was crowded by at least so much when the turn
was sent; else it was evicted. (Of generated turns that leave a context behind, nineteen in twenty are sent so.)"""
_PRIOR_CHANCE: Final = np.array([*(0.11, 0.22, 0.31, 0.5, 0.58, 0.8), *[0.04] * (MOVE_CELLS - len(CROWDED))])
"""Of generated coding trajectories on seed 101, by class of crowding; as low as that wherever home is not crowded."""
_UNKNOWN: Final = float("nan")
_PRIOR_SHARE: Final = 0.45
"""What is missed then, of what home would have saved: other ranks may hold older parts of the context."""


class MoveTables(NamedTuple):
    """Chance that a turn leaves its context behind, and the share of what home saves that goes: float64[cells] each."""

    chance: Array
    share: Array


class MoveModel:
    """Whether a turn leaves its context behind, by the crowding of its home; where that is small, by how much of
    the context is not the prompt that siblings began with too.

    Args:
        half_life: observations of a class after which one counts half.
        strength: how many observations what is assumed is worth.
    """

    def __init__(self, *, half_life: float = 200.0, strength: float = 10.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._strength = strength
        self._seen, self._moved = np.zeros(MOVE_CELLS), np.zeros(MOVE_CELLS)
        self._saved, self._gone = np.zeros(MOVE_CELLS), np.zeros(MOVE_CELLS)
        self.tables = MoveTables(self._moved, self._gone)
        self.refresh()

    def add(
        self,
        crowding: float,
        saved_tokens: float,
        gone: float,
        weight: float = 1.0,
        *,
        first_tokens: float | None = None,
    ) -> None:
        """A turn went home (``gone`` is 0), or elsewhere, where that share of what home would have saved was missing.

        Args:
            crowding: of its home when it became ready.
            saved_tokens: tokens of its prompt that home held.
            gone: from 0 to 1.
            weight: how many observations it is worth.
            first_tokens: its first prompt; None where unknown.
        """
        at = move_cell(crowding, saved_tokens, _UNKNOWN if first_tokens is None else first_tokens)
        tokens = weight * saved_tokens
        for sums, value in (
            (self._seen, weight),
            (self._moved, weight * (gone > 0.0)),
            (self._saved, tokens),
            (self._gone, tokens * gone),
        ):
            sums[at] = sums[at] * self._keep + value

    def refresh(self) -> None:
        """Take in what was added."""
        self.tables = MoveTables(
            *move_chances(
                self._seen,
                self._moved,
                self._saved,
                self._gone,
                _PRIOR_CHANCE,
                len(CROWDED),
                _PRIOR_SHARE,
                self._strength,
            )
        )

    def missing_of(self, crowding: float, saved_tokens: float, first_tokens: float | None = None) -> float:
        """Expected share, of what home holds, that a turn computes again because it leaves it."""
        cell = move_cell(crowding, saved_tokens, _UNKNOWN if first_tokens is None else first_tokens)
        return float(self.tables.chance[cell] * self.tables.share[cell])
