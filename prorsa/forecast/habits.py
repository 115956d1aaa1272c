"""What trajectories tend to do: which action follows, whether they end, what of their context is lost meanwhile."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.models import LogGrid, Recent
from prorsa.forecast.scan import LENGTHS, length_class
from prorsa.forecast.tables import end_chances, length_factors, loss_chances, transition_chances
from prorsa.forecast.waits import MAX_WORKLOADS

Array = NDArray[np.float64]

TURN_GRID: Final = LogGrid(low=1.0, per_octave=8, bins=84)
"""Turn numbers from 1: one by one to the sixteenth, since the first turns are seldom the last; then in steps of 9 %."""
CONTEXT_GRID: Final = LogGrid(low=1024.0, per_octave=8, bins=96)
"""Contexts in steps of 9 %, fine enough to see a limit."""
IDLE_GRID: Final = LogGrid(low=1.0, per_octave=1, bins=12)
"""Idle times in octaves of seconds."""


LOST_FROM: Final = 0.1
"""A prompt that misses at least this share of its previous one in the cache has lost its context."""


class Transitions:
    """Which action follows which: a first-order chain, shrunk towards how often each follows any of its class.

    Args:
        half_life: observations after an action after which one counts half.
        shrinkage: observations that an action needs of its own to count as much as its class.
    """

    def __init__(self, *, half_life: float = 1000.0, shrinkage: float = 4.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._shrinkage = shrinkage
        self._counts = np.zeros((8, 8))
        self.chance = np.zeros((0, 0))

    def add(self, before: int, after: int) -> None:
        """``after`` followed ``before``."""
        self._reserve(max(before, after) + 1)
        self._counts[before] *= self._keep
        self._counts[before, after] += 1.0

    def expect(self, before: int, after: int, count: float) -> None:
        """Count as if ``after`` had followed ``before`` so many times."""
        self._reserve(max(before, after) + 1)
        self._counts[before, after] += count

    def refresh(self, actions: int, workload_of: NDArray[np.int32]) -> None:
        """Take in what was added: then ``chance`` is float64[actions, actions], rows sum to 1."""
        self._reserve(actions)
        counts = np.ascontiguousarray(self._counts[:actions, :actions])
        self.chance = transition_chances(counts, workload_of, MAX_WORKLOADS, self._shrinkage)

    def _reserve(self, actions: int) -> None:
        while actions > len(self._counts):
            old = len(self._counts)
            grown = np.zeros((2 * old, 2 * old))
            grown[:old, :old] = self._counts
            self._counts = grown


class EndTables(NamedTuple):
    """Chance that a turn is the last: ``by_turn`` float64[classes, turn bins], by its number; ``by_context``
    float64[classes, context bins], that a limit cuts the trajectory off at its context.
    """

    by_turn: Array
    by_context: Array


class EndModel:
    """Whether a trajectory ends with a turn: of its own, by the turn's number; cut off by a limit, by its context.

    The two compete: each is estimated from all turns at risk (one that was cut off might else have gone on).
    """

    def __init__(self, prior: float = 1 / 40, *, half_life: float = 4000.0, strength: float = 10.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._prior, self._strength = prior, strength
        self._risk = np.zeros((MAX_WORKLOADS, TURN_GRID.bins))
        self._finished = np.zeros_like(self._risk)
        self._context_risk = np.zeros((MAX_WORKLOADS, CONTEXT_GRID.bins))
        self._cut = np.zeros_like(self._context_risk)
        self.tables = EndTables(self._risk, self._cut)
        self.refresh()

    def add(self, workload: int, turn: int, context_tokens: float, *, ended: bool, truncated: bool = False) -> None:
        """Turn ``turn`` (from 0) of a class ended the trajectory, or did not."""
        at = workload, TURN_GRID.index(turn + 1)
        self._risk[at] = self._risk[at] * self._keep + 1.0
        self._finished[at] = self._finished[at] * self._keep + (ended and not truncated)
        at = workload, CONTEXT_GRID.index(context_tokens)
        self._context_risk[at] = self._context_risk[at] * self._keep + 1.0
        self._cut[at] = self._cut[at] * self._keep + (ended and truncated)

    def chance(self, workload: int, turn: int) -> float:
        """That turn ``turn`` (from 0) of a class ends it of its own, as of the last refresh."""
        return float(self.tables.by_turn[workload, TURN_GRID.index(turn + 1)])

    def expect(self, workload: int, risk: Array, finished: Array) -> None:
        """Take these for turns seen, float64[turn bins] each."""
        self._risk[workload] += risk
        self._finished[workload] += finished

    def refresh(self) -> None:
        """Take in what was added."""
        self.tables = EndTables(
            *end_chances(self._risk, self._finished, self._context_risk, self._cut, self._prior, self._strength)
        )


class Growth:
    """How much results append by how long they took to come back, as a multiple of what is usual for their action.

    Args:
        half_life: results of an octave of gaps after which one counts half.
        strength: how many results the usual is worth.
    """

    def __init__(self, *, half_life: float = 500.0, strength: float = 40.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._strength = strength
        self._usual, self._appended = np.zeros(IDLE_GRID.bins), np.zeros(IDLE_GRID.bins)
        self._number = np.zeros(IDLE_GRID.bins)
        edges = IDLE_GRID.edges
        self.centres = (edges[:-1] + edges[1:]) / 2
        self.factor = np.ones(IDLE_GRID.bins)

    def add(self, gap_s: float, appended_tokens: float, usual_tokens: float) -> None:
        """A result came after ``gap_s`` and appended so much."""
        at = IDLE_GRID.index(gap_s)
        for sums, value in ((self._usual, usual_tokens), (self._appended, appended_tokens), (self._number, 1.0)):
            sums[at] = sums[at] * self._keep + value

    def refresh(self) -> None:
        """Take in what was added: then ``factor`` is float64[idle bins], at the ``centres`` of the bins."""
        usual = self._usual.sum() / max(float(self._number.sum()), 1e-9)
        prior = self._strength * usual + 1e-9
        self.factor = (self._appended + prior) / (self._usual + prior)


class AnswerLengths:
    """How long answers are by class of turns, as a multiple of what is usual after their action; first ones have
    actions of their own.

    Args:
        half_life: answers of a class after which one counts half.
        strength: how many answers the usual, or what is known of a class before a run, is worth.
    """

    def __init__(self, *, half_life: float = 500.0, strength: float = 40.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._strength = strength
        shape = MAX_WORKLOADS, LENGTHS
        self._usual, self._put_out, self._number = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._typical = np.ones(shape)
        self.factor = np.ones(shape)

    def add(self, workload: int, turn: int, output_tokens: float, usual_tokens: float) -> None:
        """An answer had so many tokens."""
        at = workload, length_class(turn)
        if turn > 0:
            for sums, value in ((self._usual, usual_tokens), (self._put_out, output_tokens), (self._number, 1.0)):
                sums[at] = sums[at] * self._keep + value

    def of(self, workload: int, turn: int) -> float:
        """The multiple for a turn."""
        return float(self.factor[workload, length_class(turn)])

    def expect(self, workload: int, factors: Sequence[float]) -> None:
        """What is typical of a workload class, by class of turns from the second turn on."""
        self._typical[workload, 1:] = self.factor[workload, 1:] = factors

    def refresh(self) -> None:
        """Take in what was added: then ``factor`` is float64[workloads, length classes]."""
        self.factor = length_factors(self._usual, self._put_out, self._number, self._typical, self._strength)


class LossTables(NamedTuple):
    """Chance that a context is lost, float64[2, idle bins] (second prompts, later ones), and the share of it that goes
    then, float64[2, idle bins], at the centres of the idle bins.
    """

    chance: Array
    share: Array
    centres: Array


class LossModel:
    """Whether a returning prompt finds its context in a cache when it becomes ready, by how long that lay idle; and
    what is gone if not.

    Two causes look alike: caches drop what was used longest ago, so that the chance rises with the idle time; and some
    prompts keep only a part of the context before (rewritten or compacted ones), second prompts much more often. Idle
    times with few observations lean on a line through the others, from ``prior`` at none; a longer time than any seen
    counts as the longest seen. What goes while a prompt waits is another matter: see
    :class:`~prorsa.forecast.waiting.WaitLoss` and :mod:`prorsa.forecast.moves`.

    Args:
        half_life: observations of an idle time after which one counts half; short, since pressure on the caches moves.
    """

    _STRENGTH: Final = 3.0

    def __init__(self, prior: float = 0.01, *, half_life: float = 100.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._prior = prior
        self._size = Recent(prior=0.0, memory=200.0, prior_weight=0.0)
        bins = IDLE_GRID.bins
        self._seen, self._lost, self._gone = np.zeros((2, bins)), np.zeros((2, bins)), np.zeros((2, bins))
        edges = IDLE_GRID.edges
        self._centres = (edges[:-1] + edges[1:]) / 2
        self.tables = LossTables(self._lost, self._gone, self._centres)
        self.refresh()

    def add(self, idle_s: float, gone: float, context_tokens: float, *, second: bool) -> None:
        """Of a context that lay idle for ``idle_s`` when its prompt became ready, the share ``gone`` was missing.

        Contexts count by their size: it is the tokens that must come out right, and large ones are cut more often.
        """
        at, lost = (0 if second else 1, IDLE_GRID.index(idle_s)), gone >= LOST_FROM
        self._size.add(context_tokens, 1.0)
        weight = context_tokens / max(self._size.value, 1.0)
        for sums, value in ((self._seen, weight), (self._lost, weight * lost), (self._gone, weight * gone * lost)):
            sums[at] = sums[at] * self._keep + value

    def expect_rewritten(self, chance: float, weight: float) -> None:
        """Second prompts keep only a part of the first with this chance, worth ``weight`` observations."""
        self._seen[0] += weight / IDLE_GRID.bins
        self._lost[0] += chance * weight / IDLE_GRID.bins
        self._gone[0] += 0.8 * chance * weight / IDLE_GRID.bins

    def refresh(self) -> None:
        """Take in what was added."""
        chance, share = loss_chances(self._seen, self._lost, self._gone, self._prior, self._STRENGTH)
        self.tables = LossTables(chance, share, self._centres)
