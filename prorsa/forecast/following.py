"""First requests that wait for the first of their group: it computes their prompt, and they follow it to its rank.

Where a prompt takes a rank long, no sibling is admitted before it has been computed there once. When that will be
depends on who of the group starts first, of whom nothing may be known yet but how long start-ups take.
"""

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Places, Slots
from prorsa.forecast.columns import State
from prorsa.forecast.jit import compiled
from prorsa.forecast.models import HazardModel
from prorsa.forecast.waiting import BRIEF_S, Queue

Array = NDArray[np.float64]

_DISPATCHED, _SANDBOX = int(State.DISPATCHED), int(State.SANDBOX)


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


def held_back(
    s: Slots, at: Places, queue: Queue, waits: HazardModel, edges_s: Array, tokens_per_s: float, slack_s: float
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
    group, prompt = s.group[slots], s.prompt_tokens[slots, None]
    computed_s = _computed_s(s, queue, slots, tokens_per_s)[group][:, None]
    takes_s = np.maximum(prompt / tokens_per_s - slack_s, 0.0)
    ready = _ready_by(at, slots, waits, edges_s)
    earlier = _ready_by(at, slots, waits, np.maximum(edges_s - takes_s, 0.0))
    number = np.bincount(group)[group][:, None]
    # It is the first of its group itself; or that has been ready for so long.
    first = ((1.0 - earlier) ** number - (1.0 - ready) ** number) / number
    free = ready - (ready - earlier) * (1.0 - earlier) ** (number - 1) + first
    # Who arrives at a queue waits in it meanwhile, as does one who comes first.
    known = ready * (edges_s >= computed_s - slack_s - queue.new_wait_s)
    free = np.where(np.isfinite(computed_s), known, free)
    held = np.maximum(ready - free, 0.0)
    return np.stack((held.sum(axis=0), (held * prompt).sum(axis=0)))


def _computed_s(s: Slots, queue: Queue, slots: NDArray[np.intp], tokens_per_s: float) -> Array:
    """float64[groups], when the prompt of each group will have been computed; infinite where none of it is ready."""
    computed_s = np.full(int(s.group.max()) + 1, np.inf)
    first = (s.turn[queue.slot] == 0) & (s.group[queue.slot] >= 0)
    # No rank computes faster, whatever else is known of it.
    done_s = np.maximum(queue.prefilled_s, queue.tokens / tokens_per_s)
    np.minimum.at(computed_s, s.group[queue.slot[first]], done_s[first])
    # Ranks are known to hold a prompt from the moment on that they begin with it.
    group, held = s.group[slots], s.home[slots, 0] >= 0
    computed_s[group[held & np.isinf(computed_s[group])]] = 0.0
    past = (s.group >= 0) & ((s.turn > 0) | ((s.turn == 0) & (s.state >= State.DECODE)))
    computed_s[s.group[past]] = 0.0
    return computed_s


def _ready_by(at: Places, slots: NDArray[np.intp], waits: HazardModel, ahead_s: Array) -> Array:
    """float64[slots, edges], the chance that each is ready so many seconds from now."""
    x, speed = at.x[slots, None], at.speed[slots, None]
    return waits.ends_by(at.key[slots, None], x, x + speed * ahead_s)
