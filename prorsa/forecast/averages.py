"""Compiled: averages over the turns to come."""

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import State
from prorsa.forecast.flow import WAITING
from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]

_READY, _DECODE = int(State.READY), int(State.DECODE)


@compiled
def following_cells(coming: Array, chance: Array, buckets: int) -> Array:
    """Shares of the cells of the next results: float64[cells].

    Args:
        coming: float64[cells], turns that go on, by the action before them and the class of the turn; not all 0.
        chance: float64[actions, actions], which action follows which.
        buckets: classes of turns.
    """
    following = np.zeros(len(coming))
    for before in range(len(chance)):
        for bucket in range(buckets):
            count = coming[before * buckets + bucket]
            if count > 0.0:
                for after in range(len(chance)):
                    following[after * buckets + bucket] += count * chance[before, after]
    following /= coming.sum()
    return following


@compiled
def put_out_by(output_rate: float, latency_s: float, edges_s: Array) -> tuple[Array, Array]:
    """Tokens of an answer since it was admitted, or, of what waits now, since its prefill ended.

    Args:
        edges_s: float64[K + 1], of the seconds.

    Returns:
        float64[C, K + 1], at the edges; float64[C, K], in the middle of the seconds.
    """
    at_edge = np.empty((WAITING + 1, len(edges_s)))
    for of in range(len(at_edge)):
        after_s = 0.0 if of == WAITING else latency_s
        for k in range(len(edges_s)):
            at_edge[of, k] = output_rate * max(edges_s[k] - after_s, 0.0)
    return at_edge, 0.5 * (at_edge[:, :-1] + at_edge[:, 1:])


@compiled
def mean_loss(gap: Array, lost: Array, share: Array) -> tuple[float, float]:
    """Chance that a context is lost over gaps, and the share of it that goes then.

    Args:
        gap: float64[K], probability of each length; of the first one where none is within the seconds.
        lost, share: float64[K], by length.
    """
    chance = gone = 0.0
    for k in range(len(gap)):
        chance += gap[k] * lost[k]
        gone += gap[k] * lost[k] * share[k]
    if gap.sum() <= 0.0:
        return float(lost[0]), float(share[0])
    return chance / gap.sum(), gone / max(chance, 1e-12)


@compiled
def means_of_first(batch: Array, box: Array, sampler: Array, seconds: int) -> tuple[float, float]:
    """Requests that decode, and first requests that become ready a second, on average over the first ``seconds``.

    Args:
        batch: float64[K]; ``box`` and ``sampler`` float64[3, K], see :class:`~prorsa.forecast.flow.Streams`.
    """
    number = min(seconds, len(batch))
    decoding = begin = 0.0
    for k in range(number):
        decoding += batch[k]
        begin += box[0, k] + sampler[0, k]
    return decoding / number, begin / number


@compiled
def held_by_decode(
    state: NDArray[np.int8], admitted: NDArray[np.bool_], prompt_tokens: Array, output_tokens: Array
) -> tuple[float, float]:
    """Requests that decode holds KV for, and tokens of that."""
    number = tokens = 0.0
    for i in range(len(state)):
        if admitted[i] and _READY <= state[i] <= _DECODE:
            number += 1.0
            tokens += prompt_tokens[i] + output_tokens[i]
    return number, tokens
