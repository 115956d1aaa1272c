"""What a trajectory's turns so far say about its effects: draws from the exact posterior of the generators' model.

The generators' scores are jointly normal: five of a trajectory (first prompt, turns, effects on appended tokens,
outputs and gaps), and each turn's own, tied to those. What is seen of a turn (a size, a gap that still goes on) puts
its score into an interval. So the posterior is a normal one under interval constraints, and Gibbs sampling (Geman and
Geman 1984) draws from it: scores given effects are truncated normals, effects given scores normal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from prorsa.cluster.workloads.fitted import Correlations
from prorsa.cluster.workloads.scores import Bools, Floats, Ints, pick, probability_between, truncated_normal

FIRST, TURNS, APPENDED, OUTPUT, GAP = range(5)
"""Columns of a trajectory's scores, in the order of :attr:`Correlations.trajectory`."""

_NARROW: Final = 0.05
"""A score that is known to so little is taken as known: drawing it anew would move an effect by a hundredth."""
_MOST_ALIKE: Final = 0.999
"""Siblings that draw the very same would leave no own part to draw."""
_BURN_IN: Final = 30
_THINNING: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Intervals of scores: ``low[m] <= score < high[m]`` for something of trajectory ``row[m]``."""

    row: Ints
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What has been seen of N trajectories, on the scale of the scores.

    Attributes:
        group: int64[N], dense from 0; trajectories of one number are siblings and share their first prompt's score.
        first_low, first_high: float64[N], of the first prompt; -inf and inf where it has not been seen.
        turns_low, turns_high: float64[N], of the number of turns; -inf and inf where nothing is known.
        known: bool[N], whether anything else has been seen of the trajectory.
        output, gap: of turns whose output or gap is known, wholly or so far.
        appended: of turns that appended, ``appended_gap[m]`` the index of the turn's entry in ``gap``,
            ``second[m]`` whether it is the trajectory's second turn.
        open: of answers whose action is unknown: bounds float64[m, A] under each action, ``action`` its probabilities
            float64[m, A] before the answer's length is looked at.
    """

    group: Ints
    first_low: Floats
    first_high: Floats
    turns_low: Floats
    turns_high: Floats
    known: Bools
    output: Band
    gap: Band
    appended: Band
    appended_gap: Ints
    second: Bools
    open: Band
    action: Floats


class EffectsPosterior:
    """Draws of all trajectories' scores given what has been seen.

    A trajectory's scores are mixed from heads of its own, each of which correlates with those of its siblings: given
    what the group has drawn, trajectories are independent of each other.

    Args:
        correlations: of the generators' model.
        siblings: correlations float64[5] of the heads within a group; the first is 1. None for no resemblance.
        seen: what has been seen.
        rng: all randomness.
    """

    def __init__(
        self, correlations: Correlations, siblings: Floats | None, seen: Seen, rng: np.random.Generator
    ) -> None:
        self._c = correlations
        self._seen = seen
        self._rng = rng
        factor = np.linalg.cholesky(np.array(correlations.trajectory))
        self._on_first, self._factor = factor[1:, 0], factor[1:, 1:]
        self._like = np.zeros(4) if siblings is None else np.clip(siblings[1:], 0.0, _MOST_ALIKE)
        own = self._factor * np.sqrt(1.0 - self._like)
        self._own = own
        self._precision = np.linalg.inv(own @ own.T)
        self._groups = np.zeros((int(seen.group.max()) + 1, 4))
        self._scores = np.zeros((len(seen.group), 5))
        self._output = _Scores(seen.output)
        self._gap = _Scores(seen.gap)
        self._appended = _Scores(seen.appended)
        self._open = np.zeros(len(seen.open.row))
        for _ in range(_BURN_IN):
            self._sweep()

    def draw(self) -> Floats:
        """Scores float64[N, 5] of every trajectory; draws that follow one another are nearly independent."""
        for _ in range(_THINNING):
            self._sweep()
        return self._scores.copy()

    def _sweep(self) -> None:
        self._draw_first()
        self._draw_outputs()
        self._draw_gaps()
        self._draw_appended()
        self._draw_open()
        self._draw_effects()
        self._draw_turns()
        self._draw_groups()
        self._draw_unseen()

    # --- scores of trajectories -------------------------------------------------------------------------------------

    def _draw_first(self) -> None:
        """One score for all that share a first prompt, within what has been seen of any of them.

        It is known nearly exactly once it is seen, so that what else hangs on it is left out of its draw.
        """
        group, count = self._seen.group, len(self._groups)
        low, high = np.full(count, -np.inf), np.full(count, np.inf)
        np.maximum.at(low, group, self._seen.first_low)
        np.minimum.at(high, group, self._seen.first_high)
        drawn = truncated_normal(self._rng, np.zeros(count), 1.0, low, np.maximum(high, low))
        self._scores[:, FIRST] = drawn[group]

    def _means(self, rows: Ints) -> Floats:
        """What first prompt and group make likely of the four other scores: float64[n, 4]."""
        shared = np.sqrt(self._like) * self._groups[self._seen.group[rows]]
        means: Floats = self._scores[rows, FIRST][:, None] * self._on_first + shared @ self._factor.T
        return means

    def _draw_unseen(self) -> None:
        """Trajectories of which nothing but perhaps the first prompt is known come from the model as it is."""
        rows = np.flatnonzero(~self._seen.known)
        normals = self._rng.standard_normal((len(rows), 4))
        self._scores[rows, TURNS:] = self._means(rows) + normals @ self._own.T

    def _draw_groups(self) -> None:
        """What the groups have drawn, given the heads of their members that have been seen."""
        if not self._like.any():
            return
        rows = np.flatnonzero(self._seen.known)
        rest = self._scores[rows, TURNS:] - self._scores[rows, FIRST][:, None] * self._on_first
        heads = np.linalg.solve(self._factor, rest.T).T
        group, count = self._seen.group[rows], len(self._groups)
        members = np.bincount(group, minlength=count)[:, None]
        sums = np.column_stack([np.bincount(group, head, minlength=count) for head in heads.T])
        precision = 1.0 + members * self._like / (1.0 - self._like)
        mean = sums * np.sqrt(self._like) / (1.0 - self._like) / precision
        self._groups = mean + self._rng.standard_normal(mean.shape) / np.sqrt(precision)

    def _draw_turns(self) -> None:
        """The number of turns given the other scores and what is known of it."""
        rows = np.flatnonzero(self._seen.known)
        rest = self._scores[rows, TURNS:] - self._means(rows)
        precision = self._precision[0, 0]
        mean = self._scores[rows, TURNS] - rest[:, 0] - rest[:, 1:] @ self._precision[0, 1:] / precision
        self._scores[rows, TURNS] = truncated_normal(
            self._rng, mean, math.sqrt(1.0 / precision), self._seen.turns_low[rows], self._seen.turns_high[rows]
        )

    def _draw_effects(self) -> None:
        """Effects given the scores of the turns: a normal with the sums of all precisions."""
        rows = np.flatnonzero(self._seen.known)
        means = self._means(rows)
        precision, pull = self._from_turns()
        precision = precision[rows] + self._precision[1:, 1:]
        turns = self._scores[rows, TURNS] - means[:, 0]
        pull = pull[rows] + means[:, 1:] @ self._precision[1:, 1:] - turns[:, None] * self._precision[0, 1:]
        factor = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, pull[..., None])
        noise = np.linalg.solve(np.swapaxes(factor, 1, 2), self._rng.standard_normal((len(rows), 3, 1)))
        self._scores[rows, APPENDED:] = (mean + noise)[..., 0]

    def _from_turns(self) -> tuple[Floats, Floats]:
        """Precision [N, 3, 3] and precision times mean [N, 3] of the effects, by the turns' scores."""
        c, seen, count = self._c, self._seen, len(self._scores)
        precision, pull = np.zeros((count, 3, 3)), np.zeros((count, 3))
        # Each score is a sum of effects times coefficients, and noise.
        for row, score in ((seen.output.row, self._output.value), (seen.open.row, self._open)):
            _add(precision, pull, row, (0.0, math.sqrt(c.output), 0.0), 1.0 - c.output, score)
        _add(precision, pull, seen.gap.row, (0.0, 0.0, math.sqrt(c.gap)), 1.0 - c.gap, self._gap.value)
        tie = math.sqrt(1.0 - c.appended) * c.gap_appended / math.sqrt(1.0 - c.gap)
        rest = self._own_appended() - tie * self._gap.value[seen.appended_gap]
        along = (math.sqrt(c.appended), 0.0, -tie * math.sqrt(c.gap))
        _add(precision, pull, seen.appended.row, along, (1.0 - c.appended) * (1.0 - c.gap_appended**2), rest)
        return precision, pull

    # --- scores of turns --------------------------------------------------------------------------------------------

    def _draw_outputs(self) -> None:
        effect = self._scores[self._seen.output.row, OUTPUT]
        share = self._c.output
        self._output.draw(self._rng, math.sqrt(share) * effect, math.sqrt(1.0 - share))

    def _draw_gaps(self) -> None:
        """Gaps given the effects and what was appended after them."""
        c, seen = self._c, self._seen
        mean = math.sqrt(c.gap) * self._scores[seen.gap.row, GAP]
        own = (self._own_appended() - math.sqrt(c.appended) * self._scores[seen.appended.row, APPENDED]) / math.sqrt(
            1.0 - c.appended
        )
        mean[seen.appended_gap] += math.sqrt(1.0 - c.gap) * c.gap_appended * own
        sd = np.full(len(mean), math.sqrt(1.0 - c.gap))
        sd[seen.appended_gap] *= math.sqrt(1.0 - c.gap_appended**2)
        self._gap.draw(self._rng, mean, sd)

    def _draw_appended(self) -> None:
        c, seen = self._c, self._seen
        row = seen.appended.row
        gap = self._gap.value[seen.appended_gap] - math.sqrt(c.gap) * self._scores[row, GAP]
        mean = math.sqrt(c.appended) * self._scores[row, APPENDED]
        mean += math.sqrt(1.0 - c.appended) * c.gap_appended * gap / math.sqrt(1.0 - c.gap)
        sd = np.full(len(row), math.sqrt((1.0 - c.appended) * (1.0 - c.gap_appended**2)))
        tie = np.where(seen.second, math.sqrt(1.0 - c.first_appended**2), 1.0)
        self._appended.draw(self._rng, tie * mean + self._from_first(), tie * sd)

    def _own_appended(self) -> Floats:
        """Scores of what was appended, without what the first prompt has to do with that of the second turn."""
        tie = np.where(self._seen.second, math.sqrt(1.0 - self._c.first_appended**2), 1.0)
        own: Floats = (self._appended.value - self._from_first()) / tie
        return own

    def _from_first(self) -> Floats:
        first = self._scores[self._seen.appended.row, FIRST]
        return np.where(self._seen.second, self._c.first_appended * first, 0.0)

    def _draw_open(self) -> None:
        """Answers under way: first what they will call for, by their length so far; then their length."""
        seen, share = self._seen, self._c.output
        mean, sd = math.sqrt(share) * self._scores[seen.open.row, OUTPUT], math.sqrt(1.0 - share)
        weight = seen.action * probability_between(mean[:, None], sd, seen.open.low, seen.open.high)
        action = pick(self._rng, np.where(weight.sum(axis=1, keepdims=True) > 0, weight, seen.action))
        at = np.arange(len(mean))
        self._open = truncated_normal(self._rng, mean, sd, seen.open.low[at, action], seen.open.high[at, action])


class SharedScores:
    """Draws of one score of each trajectory that siblings have partly in common: of sandboxes, of rewards.

    Args:
        correlation: between siblings.
        group: int64[N], dense from 0.
        low, high: float64[N], what has been seen of the scores; -inf and inf for nothing.
        rng: all randomness.
    """

    def __init__(self, correlation: float, group: Ints, low: Floats, high: Floats, rng: np.random.Generator) -> None:
        self._like = min(correlation, _MOST_ALIKE)
        self._group, self._count = group, int(group.max()) + 1
        self._low, self._high, self._rng = low, high, rng
        self._seen = np.isfinite(low) | np.isfinite(high)
        self._groups = np.zeros(self._count)
        self._value = np.zeros(len(group))
        for _ in range(_BURN_IN if self._like else 1):
            self.draw()

    def draw(self) -> Floats:
        """Scores float64[N]."""
        like = self._like
        mean = math.sqrt(like) * self._groups[self._group]
        self._value = truncated_normal(self._rng, mean, math.sqrt(1.0 - like), self._low, self._high)
        seen = self._group[self._seen]
        members = np.bincount(seen, minlength=self._count)
        sums = np.bincount(seen, self._value[self._seen], minlength=self._count)
        precision = 1.0 + members * like / (1.0 - like)
        noise = self._rng.standard_normal(self._count) / np.sqrt(precision)
        self._groups = sums * math.sqrt(like) / (1.0 - like) / precision + noise
        return self._value.copy()


class _Scores:
    """Scores within their bands; the narrow ones stay where they are."""

    def __init__(self, band: Band) -> None:
        width = band.high - band.low
        self._wide = np.flatnonzero(~(width < _NARROW))
        self._low, self._high = band.low[self._wide], band.high[self._wide]
        self.value = np.zeros(len(band.row))
        narrow = width < _NARROW
        self.value[narrow] = 0.5 * (band.low[narrow] + band.high[narrow])

    def draw(self, rng: np.random.Generator, mean: Floats, sd: Floats | float) -> None:
        spread = np.broadcast_to(sd, mean.shape)[self._wide]
        self.value[self._wide] = truncated_normal(rng, mean[self._wide], spread, self._low, self._high)


def _add(precision: Floats, pull: Floats, row: Ints, along: Sequence[float], variance: float, score: Floats) -> None:
    """Add what ``score`` = ``along`` · effects + noise of ``variance`` says, to the trajectories ``row``."""
    count = np.bincount(row, minlength=len(pull))
    total = np.bincount(row, score, minlength=len(pull))
    direction = np.array(along)
    precision += count[:, None, None] * np.outer(direction, direction) / variance
    pull += total[:, None] * direction / variance
