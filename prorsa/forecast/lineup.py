"""Compiled: requests that wait, in their order, from the columns of the live trajectories."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import State
from prorsa.forecast.jit import compiled
from prorsa.forecast.scan import AGAIN_TOKENS, EARLY_AGAIN

Array = NDArray[np.float64]

_READY, _PREFILL = int(State.READY), int(State.PREFILL)


class Lineup(NamedTuple):
    """Requests that wait, in their order: their slots, prompts, chunks already computed, uncached tokens as index or
    siblings tell, ``tokens`` of these that are still to compute, what of the rest may be lost and the share of it that
    has not been yet, homes and what these hold, and how long each waits. Of those not admitted, how many there are and
    the longest wait.
    """

    slot: NDArray[np.intp]
    prompt_tokens: Array
    computed: Array
    uncached: Array
    tokens: Array
    losable: Array
    kept: Array
    admitted: NDArray[np.bool_]
    retried: NDArray[np.bool_]
    home: NDArray[np.int32]
    held_tokens: Array
    group: NDArray[np.int32]
    waited_s: Array
    waiting: int
    longest_s: float


@compiled
def line_up(
    state: NDArray[np.int8],
    ready_s: Array,
    prompt_tokens: Array,
    uncached_tokens: Array,
    computed_tokens: Array,
    answered_s: Array,
    flags: tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]],
    home: NDArray[np.int32],
    held_tokens: Array,
    turn: NDArray[np.int32],
    group: NDArray[np.int32],
    t_s: float,
    typical_tokens: float,
    scale: float,
    brief_tokens: float,
) -> Lineup:
    """The columns of what waits; ``flags`` are whether each is admitted, comes behind a sibling, was flushed, and was
    prefilled before.
    """
    admitted, sibling, flushed, retried = flags
    waits = np.flatnonzero((state == _READY) | (state == _PREFILL))
    slot = waits[np.argsort(ready_s[waits], kind="mergesort")]
    n = len(slot)
    uncached, tokens, losable, kept, waited_s = np.empty(n), np.empty(n), np.zeros(n), np.ones(n), np.empty(n)
    follows = np.full(n, -1, np.int32)
    waiting, longest_s = 0, 0.0
    for i in range(n):
        at = slot[i]
        prompt, index = prompt_tokens[at], uncached_tokens[at]
        uncached[i] = min(typical_tokens, prompt) if np.isnan(index) else index
        if sibling[at]:
            again = min(scale * min(EARLY_AGAIN * prompt, AGAIN_TOKENS), prompt)
            shared = max(prompt - held_tokens[at, 0], 1.0) if home[at, 0] >= 0 else again
            uncached[i] = min(uncached[i], shared)
        if turn[at] == 0 and prompt > brief_tokens:
            follows[i] = group[at]
        if flushed[at]:
            kept[i] = 0.0
        if not admitted[at] and (flushed[at] or not np.isnan(answered_s[at])):
            losable[i] = prompt - uncached[i]
        tokens[i] = max(uncached[i] - computed_tokens[at], 0.0)
        waited_s[i] = t_s - ready_s[at]
        if not admitted[at]:
            waiting += 1
            longest_s = max(longest_s, waited_s[i])
    return Lineup(
        slot,
        prompt_tokens[slot],
        computed_tokens[slot],
        uncached,
        tokens,
        losable,
        kept,
        admitted[slot],
        retried[slot],
        home[slot],
        held_tokens[slot],
        follows,
        waited_s,
        waiting,
        longest_s,
    )


@compiled
def sum_up(tokens: Array, computed: Array, retried: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Tokens still to compute of first prefills, chunks already computed of these, and tokens of others."""
    first = done = again = 0.0
    for i in range(len(tokens)):
        if retried[i]:
            again += tokens[i]
        else:
            first += tokens[i]
            done += computed[i]
    return first, done, again


@compiled
def in_order(
    tokens: Array, admitted: NDArray[np.bool_], tokens_per_s: float, latency_s: float
) -> tuple[float, float, Array, Array]:
    """Requests go one after the other, at the rate at which admission lets them through.

    Returns:
        Tokens of those that are admitted and of those that are not; float64[n] when each is, and is prefilled.
    """
    outstanding, ahead, due_s = 0.0, 0.0, np.zeros(len(tokens))
    for i in range(len(tokens)):
        if admitted[i]:
            outstanding += tokens[i]
        else:
            due_s[i] = ahead / tokens_per_s
            ahead += tokens[i]
    return outstanding, ahead, due_s, due_s + latency_s
