"""First requests that wait for the first of their group: it computes their prompt, and they follow it to its rank.

Where a prompt takes a rank long, no sibling is admitted before it has been computed there once. When that will be
depends on who of the group starts first, of whom nothing may be known yet but how long start-ups take.
"""

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Places, Slots
from prorsa.forecast.columns import State
from prorsa.forecast.jit import compiled
from prorsa.forecast.models import HazardTables
from prorsa.forecast.waiting import BRIEF_S, Queue

Array = NDArray[np.float64]

_DISPATCHED, _SANDBOX, _DECODE = int(State.DISPATCHED), int(State.SANDBOX), int(State.DECODE)


@compiled
def _starting(
    state: NDArray[np.int8], group: NDArray[np.int32], prompt_tokens: Array, brief_tokens: float
) -> NDArray[np.intp]:
    """Slots of what is still to start, of a group and with a prompt that is no brief one."""
    slots, number = np.empty(len(state), np.intp), 0
    for i in range(len(state)):
        if state[i] in (_DISPATCHED, _SANDBOX) and group[i] >= 0 and prompt_tokens[i] > brief_tokens:
            slots[number] = i
            number += 1
    return slots[:number]


@compiled
def _by_group(
    state: NDArray[np.int8],
    turn: NDArray[np.int32],
    group: NDArray[np.int32],
    home: NDArray[np.int32],
    slots: NDArray[np.intp],
    waiting: NDArray[np.intp],
    done_s: Array,
) -> tuple[Array, Array]:
    """How many of each group are still to start (``slots``), and when its prompt will have been computed, infinite
    where none of it is ready: float64[groups] each. Slots that are ``waiting`` have been prefilled in ``done_s``.
    """
    number, computed_s = np.zeros(group.max() + 1), np.full(group.max() + 1, np.inf)
    for n in range(len(waiting)):
        of = group[waiting[n]]
        if turn[waiting[n]] == 0 and of >= 0:
            computed_s[of] = min(computed_s[of], done_s[n])
    for i in slots:
        number[group[i]] += 1.0
        # Ranks are known to hold a prompt from the moment on that they begin with it.
        if home[i, 0] >= 0 and computed_s[group[i]] == np.inf:
            computed_s[group[i]] = 0.0
    for i in range(len(state)):
        if group[i] >= 0 and (turn[i] > 0 or (turn[i] == 0 and state[i] >= _DECODE)):
            computed_s[group[i]] = 0.0
    return number, computed_s


@compiled
def _ready_by(waits: HazardTables, key: int, x: float, speed: float, ahead_s: Array, out: Array) -> None:
    """The chance that a wait is over so many seconds (which never fall) from now; see
    :meth:`~prorsa.forecast.models.HazardModel.ends_by`.
    """
    last = waits.slope.shape[1] - 1
    index = min(max(np.searchsorted(waits.edges, x, side="right") - 1, 0), last)
    now = waits.cumulative[key, index] + waits.slope[key, index] * (x - waits.edges[index])
    for e in range(len(ahead_s)):
        later = x + speed * ahead_s[e]
        while index < last and later > waits.edges[index + 1]:
            index += 1
        then = waits.cumulative[key, index] + waits.slope[key, index] * (later - waits.edges[index])
        out[e] = -np.expm1(now - then)


@compiled
def _held(
    slots: NDArray[np.intp],
    group: NDArray[np.int32],
    prompt_tokens: Array,
    number: Array,
    computed_s: Array,
    at: Places,
    waits: HazardTables,
    edges_s: Array,
    tokens_per_s: float,
    slack_s: float,
    queue_s: float,
) -> Array:
    """See :func:`held_back`; ``queue_s`` is how long those wait in the queue that arrive now."""
    out, ready, earlier = np.zeros((2, len(edges_s))), np.empty(len(edges_s)), np.empty(len(edges_s))
    for i in slots:
        prompt, siblings, computed = prompt_tokens[i], number[group[i]], computed_s[group[i]]
        _ready_by(waits, at.key[i], at.x[i], at.speed[i], edges_s, ready)
        if computed == np.inf:
            takes_s = max(prompt / tokens_per_s - slack_s, 0.0)
            _ready_by(waits, at.key[i], at.x[i], at.speed[i], np.maximum(edges_s - takes_s, 0.0), earlier)
        for e in range(len(edges_s)):
            # Who arrives at a queue waits in it meanwhile, as does one who comes first.
            free = ready[e] if edges_s[e] >= computed - slack_s - queue_s else 0.0
            if computed == np.inf:
                # It is the first of its group itself; or that has been ready for so long.
                none = (1.0 - earlier[e]) ** (siblings - 1.0)
                first = (none * (1.0 - earlier[e]) - (1.0 - ready[e]) ** siblings) / siblings
                free = ready[e] - (ready[e] - earlier[e]) * none + first
            held = max(ready[e] - free, 0.0)
            out[0, e] += held
            out[1, e] += held * prompt
    return out


def held_back(
    s: Slots, at: Places, queue: Queue, waits: HazardTables, edges_s: Array, tokens_per_s: float, slack_s: float
) -> Array:
    """Of the first requests that become ready by each edge, those that wait for the first of their group then, beyond
    what they wait in the queue.

    Args:
        edges_s: float64[edges], from now.
        tokens_per_s: that a busy rank computes; ``slack_s``: how much it has to do when it is sent more.

    Returns:
        float64[2, edges]: requests, and tokens of their prompts.
    """
    slots = _starting(s.state, s.group, s.prompt_tokens, BRIEF_S * tokens_per_s)
    if len(slots) == 0:
        return np.zeros((2, len(edges_s)))
    # No rank computes faster, whatever else is known of it.
    done_s = np.maximum(queue.prefilled_s, queue.tokens / tokens_per_s)
    number, computed_s = _by_group(s.state, s.turn, s.group, s.home, slots, queue.slot, done_s)
    prompt_tokens, queue_s = s.prompt_tokens, queue.new_wait_s
    return _held(slots, s.group, prompt_tokens, number, computed_s, at, waits, edges_s, tokens_per_s, slack_s, queue_s)
