"""What the turns of generated trajectories bring: actions, outputs, appended tokens and gaps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prorsa.cluster.workloads.draws import Draws, blend, tied
from prorsa.cluster.workloads.fitted import Correlations, Fitted, Table
from prorsa.cluster.workloads.limits import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Scores float64[T] of what the turns bring."""

    output: Floats
    appended: Floats
    gap: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """What the turns bring before contexts are added up, [T] each.

    ``kind`` are uniforms that choose the kind of prompt, ``share`` scores of its shares, ``rewritten`` the probability
    that it keeps only a part of the context.
    """

    output: Ints
    appended: Ints
    gap_s: Floats
    kind: Floats
    share: Floats
    rewritten: Floats


def actions(fitted: Fitted, first_turn: Ints, uniform: Floats) -> Ints:
    """What each answer calls for: a Markov chain over the actions, int64[T]."""
    start = np.cumsum([action.start for action in fitted.actions])[:-1].tolist()
    after = [np.cumsum(action.next)[:-1].tolist() for action in fitted.actions]
    firsts = set(first_turn[:-1].tolist())
    chain: list[int] = []
    for k, u in enumerate(uniform.tolist()):
        chain.append(bisect_right(start if k in firsts else after[chain[-1]], u))
    return np.array(chain, dtype=np.int64)


def draw_sizes(fitted: Fitted, draws: Draws, first_turn: Ints, action: Ints) -> Sizes:
    position = np.arange(len(action)) - np.repeat(first_turn[:-1], draws.turns)
    bucket = np.searchsorted(fitted.buckets, position, side="right") - 1
    before = shifted(action, first_turn[:-1])
    scores = _scores(fitted.correlations, draws, position)
    gap_s = _by_action(fitted, [[a.gap_s] for a in fitted.actions], before, np.zeros_like(bucket), scores.gap)
    output = _by_action(fitted, [a.output for a in fitted.actions], action, bucket, scores.output)
    appended = _by_action(fitted, [a.appended for a in fitted.actions], before, bucket, scores.appended)
    rewritten = np.where(position == 1, fitted.first_rewritten, 0.0)
    for number, entry in enumerate(fitted.actions):
        later = (before == number) & (position > 1)
        rewritten[later] = entry.rewritten.at(gap_s[later])
    return Sizes(
        output=np.maximum(1, np.rint(output)).astype(np.int64),
        appended=np.maximum(1, np.rint(appended)).astype(np.int64),
        gap_s=gap_s,
        kind=draws.kind,
        share=draws.normal[:, 3],
        rewritten=rewritten,
    )


def _scores(correlations: Correlations, draws: Draws, position: Ints) -> _Scores:
    """Scores of every turn, from the trajectory's effects and the turn's own draws."""
    effects = np.repeat(draws.effects, draws.turns, axis=0)
    own_output, own_appended, own_gap = draws.normal[:, 0], draws.normal[:, 1], draws.normal[:, 2]
    with_gap = tied(correlations.gap_appended, own_gap, own_appended)
    appended = blend(correlations.appended, effects[:, 0], with_gap)
    # An agent that starts with a short prompt reads much before its second turn; one that resumes does not.
    with_first = tied(correlations.first_appended, np.repeat(draws.first, draws.turns), appended)
    return _Scores(
        output=blend(correlations.output, effects[:, 1], own_output),
        appended=np.where(position == 1, with_first, appended),
        gap=blend(correlations.gap, effects[:, 2], own_gap),
    )


def _by_action(fitted: Fitted, tables: Sequence[Sequence[Table]], action: Ints, bucket: Ints, scores: Floats) -> Floats:
    """Values at ``scores`` by the table of each turn's action and bucket; 0 where the action is -1: float64[T]."""
    grid = np.array(fitted.scores)
    values = np.zeros(len(scores))
    for number, by_bucket in enumerate(tables):
        for place, table in enumerate(by_bucket):
            here = (action == number) & (bucket == place)
            values[here] = table.at(scores[here], grid)
    return values


def shifted(action: Ints, starts: Ints) -> Ints:
    """The action of the answer before each turn; -1 for first turns."""
    before: Ints = np.roll(action, 1)
    before[starts] = -1
    return before
