"""All randomness of generated workloads: counter-based streams, and how draws hang together.

Every trajectory has a Philox stream of its own, keyed by seed and trajectory, and spends the same number of draws on
every turn. So trajectory ``i`` of a seed is the same however many there are and whatever runs them. What belongs to a
group, or to a block of trajectories, comes from streams of theirs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from prorsa.cluster.workloads.fitted import Fitted, Siblings
from prorsa.cluster.workloads.limits import Floats, Ints

DRAWS_PER_TURN: Final = 6
"""Uniforms that each turn takes from its trajectory's stream: action, kind of prompt, and four that make normals."""

_HEAD_DRAWS: Final = 8
"""Uniforms at the head of each stream, for what belongs to the trajectory as a whole."""

GROUP_STREAM: Final = 1
CLASS_STREAM: Final = 2
SLOW_TOOL_STREAM: Final = 3
IMAGE_STREAM: Final = 4
PULL_STREAM: Final = 5
"""Top words of the counters of the streams that are not a trajectory's own (0), which keeps all of them apart."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draws of N trajectories of one class, as standard-normal scores but for two.

    Attributes:
        first: float64[N], of the first prompts (shared in a group).
        turns: int64[N], natural number of turns of each trajectory.
        effects: float64[N, 3], of a trajectory on its appended tokens, output tokens and gaps.
        sandbox, reward: float64[N].
        action, kind: float64[T], uniforms.
        normal: float64[T, 4], of output, appended, gap, and shares of rewritten prompts.
    """

    first: Floats
    turns: Ints
    effects: Floats
    sandbox: Floats
    reward: Floats
    action: Floats
    kind: Floats
    normal: Floats


def draw(fitted: Fitted, index: Ints, group: Ints, seed: int) -> Draws:
    """The draws of the trajectories ``index``; ``group`` int64[N] is -1 where there is none, else >= 0."""
    streams = [stream(seed, i) for i in index.tolist()]
    heads = _normals(np.array([own.random(_HEAD_DRAWS) for own in streams]))
    factor = np.linalg.cholesky(np.array(fitted.correlations.trajectory))
    if group[0] >= 0:
        heads = _like_siblings(heads, _group_heads(seed, group), sibling_correlations(factor, fitted.siblings))
    # The first score is a factor of all others, so that what hangs on the first prompt stays so where it is shared.
    scores = _mixed(heads[:, :5], factor)
    turns = np.maximum(1, np.rint(fitted.turns.at(scores[:, 1], np.array(fitted.scores)))).astype(np.int64)
    uniform = np.concatenate([own.random((n, DRAWS_PER_TURN)) for own, n in zip(streams, turns, strict=True)])
    return Draws(
        first=scores[:, 0],
        turns=turns,
        effects=scores[:, 2:],
        sandbox=heads[:, 5],
        reward=heads[:, 6],
        action=uniform[:, 0],
        kind=uniform[:, 1],
        normal=_normals(uniform[:, 2:]),
    )


def stream(seed: int, number: int, kind: int = 0) -> np.random.Generator:
    """The stream ``number`` of a kind: ``kind`` 0 are the trajectories' own, the others are named above."""
    key = np.array([seed, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, kind], dtype=np.uint64)))


def uniforms(seed: int, numbers: Iterable[int], kind: int, count: int) -> Floats:
    """The first ``count`` uniforms of each of the streams ``numbers`` of a kind: float64[numbers, count]."""
    return np.array([stream(seed, number, kind).random(count) for number in numbers]).reshape(-1, count)


def _group_heads(seed: int, group: Ints) -> Floats:
    """What the groups of the trajectories have drawn, float64[N, heads]."""
    numbers, place = np.unique(group, return_inverse=True)
    return _normals(uniforms(seed, numbers.tolist(), GROUP_STREAM, _HEAD_DRAWS))[place]


def _like_siblings(own: Floats, shared: Floats, correlations: Floats) -> Floats:
    """Heads of which each column correlates within a group by so much; each by itself stays standard normal."""
    blended = own.copy()
    columns = len(correlations)
    blended[:, :columns] = np.sqrt(correlations) * shared[:, :columns] + np.sqrt(1 - correlations) * own[:, :columns]
    return blended


def sibling_correlations(factor: Floats, siblings: Siblings) -> Floats:
    """Correlations float64[7] of the heads within a group, such that those of the mixed scores are as ``siblings`` say.

    Score k is the sum over j of ``factor[k, j]`` times head j: between siblings it correlates by the sum of
    ``factor[k, j]^2`` times the correlation of head j. The first head is shared in full.
    """
    wanted = (1.0, siblings.turns, siblings.appended, siblings.output, siblings.gap)
    heads: list[float] = []
    for row, correlation in zip(factor**2, wanted, strict=True):
        known = float(np.dot(row[: len(heads)], heads))
        heads.append(min(1.0, max(0.0, (correlation - known) / float(row[len(heads)]))))
    return np.array([*heads, siblings.sandbox, siblings.reward])


def _mixed(scores: Floats, factor: Floats) -> Floats:
    """``scores`` times the transposed ``factor``, row by row.

    A matrix product would round differently with the number of rows.
    """
    return np.asarray(sum(scores[:, [column]] * factor[:, column] for column in range(len(factor))))


def _normals(uniform: Floats) -> Floats:
    """Standard-normal scores of uniforms, pair by pair (Box and Muller 1958): as many as there are uniforms.

    NumPy's own normals are drawn by rejection, which would take a varying number of draws.
    """
    radius = np.sqrt(-2.0 * np.log1p(-uniform[..., 0::2]))
    angle = 2.0 * np.pi * uniform[..., 1::2]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)


def blend(share: float, effect: Floats, own: Floats) -> Floats:
    """Scores of which ``effect`` explains ``share`` of the variance."""
    return tied(math.sqrt(share), effect, own)


def tied(correlation: float, to: Floats, own: Floats) -> Floats:
    """Scores that correlate with the scores ``to``."""
    return np.asarray(correlation * to + math.sqrt(1 - correlation**2) * own)
