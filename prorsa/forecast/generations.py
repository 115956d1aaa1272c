"""What the next turns are like, one generation after the other: of what lives now, and of what begins.

At the start of a run, or of a step, all are at their first turns: what comes back twice within a horizon brings what
third turns bring, not what second ones do, and ends as often as those. Classes of requests are therefore told apart
(:data:`~prorsa.forecast.flow.CLASSES`): the first, second, ... request from now on of what lives, then the first,
second, ... of what is dispatched from now on; and what waits now.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Beliefs, Slots
from prorsa.forecast.columns import State
from prorsa.forecast.flow import CLASSES, FIRST, GENERATIONS, WAITING
from prorsa.forecast.habits import TURN_GRID
from prorsa.forecast.jit import compiled
from prorsa.forecast.scan import length_class, turn_bucket

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

_SINGLE: Final = 32
"""Turns below this have a cell each; later ones share those of the turn grid, where a few turns more change little."""
_LATER: Final = range(TURN_GRID.index(_SINGLE + 1), TURN_GRID.bins)
_TURNS: Final = np.array([*range(_SINGLE), *(int(np.ceil(TURN_GRID.edges[index])) - 1 for index in _LATER)], np.int32)
"""The first turn of each cell."""
_BUCKET: Final = np.array([turn_bucket(int(turn)) for turn in _TURNS], np.int32)
_LENGTH: Final = np.array([length_class(int(turn)) for turn in _TURNS], np.int32)
_END_BIN: Final = TURN_GRID.indices(np.asarray(_TURNS + 1, np.float64)).astype(np.int32)
_READY, _PREFILL, _DECODE, _TOOL = (int(of) for of in (State.READY, State.PREFILL, State.DECODE, State.TOOL))


class Generations(NamedTuple):
    """By class of requests.

    Attributes:
        actions: float64[C, actions], shares of the actions that come before it.
        appended: float64[C], tokens that these append.
        second: float64[C], the share that are second turns.
        end: float64[C], chance that its answer is the last.
        answer: float64[C], tokens of its answer; ``length`` float64[C], over what is usual after its action.
        slower: float64[C], how much longer its tool takes than usual.
    """

    actions: Array
    appended: Array
    second: Array
    end: Array
    answer: Array
    length: Array
    slower: Array


_APPENDED, _SECOND, _END, _ANSWER, _LENGTH_OF, _SLOWER, _ACTIONS = 0, 1, 2, 3, 4, 5, 6
"""Columns of what the classes are like; from the last on the actions."""


@compiled
def _where(state: NDArray[np.int8], action: Ints, turn: Ints, actions: int, turns: Ints, single: int) -> Array:
    """float64[3, actions, cells]: what decodes, what waits, and what will be ready when its tool has run; by the action
    before its next answer and the turn of that.
    """
    out = np.zeros((3, actions, len(turns)))
    for i in range(len(state)):
        kind = -1
        if state[i] == _DECODE:
            kind = 0
        elif state[i] == _READY or state[i] == _PREFILL:
            kind = 1
        elif state[i] == _TOOL and turn[i] >= 0:
            kind = 2
        if kind < 0:
            continue
        at = max(turn[i], 0) + (kind == 2)
        cell = at if at <= single else np.searchsorted(turns, at, side="right") - 1
        out[kind, action[i], cell] += 1.0
    return out


@compiled
def _habits(
    state: NDArray[np.int8], turn: Ints, longer: Array, slower: Array, larger: Array
) -> tuple[float, float, float]:
    """How much longer, slower and larger than usual what lives is expected to be, on average."""
    number, longer_sum, slower_sum, larger_sum = 0, 0.0, 0.0, 0.0
    for i in range(len(state)):
        if turn[i] >= 0 and (state[i] == _DECODE or state[i] == _READY or state[i] == _PREFILL):
            number += 1
            longer_sum += longer[i]
            slower_sum += slower[i]
            larger_sum += larger[i]
    if number == 0:
        return 1.0, 1.0, 1.0
    return longer_sum / number, slower_sum / number, larger_sum / number


@compiled
def _next(at: Array, chance: Array, end: Array, single: int) -> Array:
    """The generation after ``at``, float64[actions, cells]: what goes on after its answer, by its next action."""
    actions, cells = at.shape
    out = np.zeros((actions, cells))
    for before in range(actions):
        for cell in range(cells):
            goes_on = at[before, cell] * (1.0 - end[before, cell])
            if goes_on <= 0.0:
                continue
            later = cell + 1 if cell < single else cell
            for after in range(actions):
                out[after, later] += goes_on * chance[before, after]
    return out


@compiled
def _sum_up(
    at: Array, output_mean: Array, appended: Array, end: Array, length: Array, cut: float, bucket: Ints, out: Array
) -> None:
    """Write down what a generation is like, as that of a class."""
    actions, cells = at.shape
    weight, buckets = at.sum(), len(appended) // actions
    if weight <= 0.0:
        return
    ends = usual = 0.0
    for action in range(actions):
        for cell in range(cells):
            share = at[action, cell] / weight
            if share <= 0.0:
                continue
            out[_ACTIONS + action] += share
            out[_APPENDED] += share * appended[action * buckets + bucket[cell]]
            out[_SECOND] += share * (cell == 1)
            out[_ANSWER] += share * output_mean[action] * length[action, cell]
            usual += share * output_mean[action]
            ends += share * end[action, cell]
    out[_END] = 1.0 - (1.0 - ends) * (1.0 - cut)
    out[_LENGTH_OF] = out[_ANSWER] / max(usual, 1e-9)


@compiled
def _follow(
    state: NDArray[np.int8],
    action: Ints,
    turn: Ints,
    habits: tuple[float, float, float],
    first: Array,
    chance: Array,
    workload_of: Ints,
    output_mean: Array,
    appended: Array,
    ends_by_turn: Array,
    lengths: Array,
    ended: float,
    turns: Ints,
    bucket: Ints,
    end_bin: Ints,
    length_class_of: Ints,
    single: int,
) -> Array:
    """What the classes are like, float64[C, columns]; see :func:`generations`."""
    actions, cells = len(first), len(turns)
    end, length = np.empty((actions, cells)), np.empty((actions, cells))
    for a in range(actions):
        for cell in range(cells):
            end[a, cell] = ends_by_turn[workload_of[a], end_bin[cell]]
            length[a, cell] = lengths[workload_of[a], length_class_of[cell]]
    at = _where(state, action, turn, actions, turns, single)
    under_way = at[0] + at[1]
    by_turn = (under_way * end).sum() / max(under_way.sum(), 1e-12)
    cut = min(max(1.0 - (1.0 - ended) / max(1.0 - by_turn, 1e-9), 0.0), 1.0)
    out = np.zeros((WAITING + 1, _ACTIONS + actions))
    out[:, _LENGTH_OF] = out[:, _SLOWER] = 1.0
    longer, slower, larger = habits
    _sum_up(at[1], output_mean, appended, end, length, cut, bucket, out[WAITING])
    generation = _next(under_way, chance, end, single)
    if generation.sum() <= 0.0:
        generation = at[2]
    for number in range(GENERATIONS):
        _sum_up(generation, output_mean, appended, end, length, cut, bucket, out[number])
        if number < GENERATIONS - 1:
            generation = _next(generation, chance, end, single)
    out[:GENERATIONS, _ANSWER] *= longer
    out[:GENERATIONS, _LENGTH_OF] *= longer
    out[:GENERATIONS, _SLOWER] = slower
    out[:GENERATIONS, _APPENDED] *= larger
    begins = np.zeros((actions, cells))
    begins[:, 0] = first
    for number in range(FIRST, CLASSES):
        _sum_up(begins, output_mean, appended, end, length, 0.0, bucket, out[number])
        if number < CLASSES - 1:
            begins = _next(begins, chance, end, single)
    return out


def generations(s: Slots, m: Beliefs, first: Array, chance: Array, workload_of: Ints, ended: float) -> Generations:
    """What the classes are like.

    Args:
        s: the live trajectories.
        m: what the models say.
        first: float64[actions], shares of the beginnings of what is dispatched.
        chance: float64[actions, actions], which action follows which.
        workload_of: int32[actions].
        ended: of the answers that are under way or waited for, the share that are expected to be the last, contexts and
            all; what of it the turns do not explain, contexts do, and will in the turns after.
    """
    out = _follow(
        s.state,
        s.action,
        s.turn,
        _habits(s.state, s.turn, s.longer, s.slower, s.larger),
        first,
        chance,
        workload_of,
        m.output_mean,
        m.appended,
        m.ends_by_turn,
        m.lengths,
        ended,
        _TURNS,
        _BUCKET,
        _END_BIN,
        _LENGTH,
        _SINGLE - 1,
    )
    return Generations(out[:, _ACTIONS:], *(out[:, column] for column in range(_ACTIONS)))


@compiled
def convolved(rows: Array, second: Array) -> Array:
    """Each row (float64[n, K]) as the distribution of its sum with another number of seconds (float64[K])."""
    out = np.zeros(rows.shape)
    for row in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            for j in range(k + 1):
                out[row, k] += rows[row, k - j] * second[j]
    return out
