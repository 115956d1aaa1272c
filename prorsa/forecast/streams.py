"""Compiled: what is known of the next seconds before the flow begins, from where each trajectory stands."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Expected
from prorsa.forecast.flow import Streams
from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]
Ints = NDArray[np.intp]


class Line(NamedTuple):
    """Requests that wait now.

    Attributes:
        admitted_bin, prefilled_bin: int[n], the seconds in which each is admitted and prefilled; K for later ones.
        admitted: bool[n], whether decode holds KV for each already.
        prompt_tokens: float64[n]; ``ends`` float64[n], chance that its answer is the last.
    """

    admitted_bin: Ints
    prefilled_bin: Ints
    admitted: NDArray[np.bool_]
    prompt_tokens: Array
    ends: Array


@compiled
def _to_bins(between: Array, spread: Array) -> Array:
    """Amounts between edges (float64[rows, edges]) as amounts a second; see :class:`~prorsa.forecast.steps.Steps`."""
    out = np.zeros((len(between), spread.shape[1]))
    for row in range(len(between)):
        for edge in range(len(spread)):
            amount = between[row, edge]
            if amount != 0.0:
                for k in range(spread.shape[1]):
                    out[row, k] += amount * spread[edge, k]
    return out


@compiled
def _freed(box: Array, held: Array) -> Array:
    """Requests and prompt tokens that become free to be admitted between edges: float64[2, edges]."""
    out = np.empty(held.shape)
    for row, of in ((0, 0), (2, 1)):
        before = 0.0
        for edge in range(held.shape[1]):
            out[of, edge] = max(box[row, edge] + before - held[of, edge], 0.0)
            before = held[of, edge]
    return out


@compiled
def streams_of(
    e: Expected, held: Array, spread: Array, line: Line, dispatched: Array, burst_new: float, prompt: float
) -> Streams:
    """What moves, a second, as far as that is known.

    Args:
        held: float64[2, edges], of ``box``, requests that are not free to be admitted at each edge, and prompt tokens.
        spread: float64[edges, K], the share of what lies between edges that each second has.
        dispatched: float64[K], first requests of what has been or is to be dispatched at once; each has a ``prompt`` of
            so many tokens, and ``burst_new`` of them are not cached.
    """
    seconds = spread.shape[1]
    ends = _to_bins(np.stack((e.ending, e.rewarded, e.released)), spread)
    sampler, starts, admitted = np.zeros((3, seconds)), np.zeros((3, seconds)), np.zeros((4, seconds))
    sampler[0], sampler[1], sampler[2] = dispatched, dispatched * burst_new, dispatched * prompt
    for i in range(len(line.ends)):
        at = line.prefilled_bin[i]
        if at < seconds:
            starts[0, at] += 1.0 - line.ends[i]
            starts[1, at] += line.ends[i]
            starts[2, at] += line.prompt_tokens[i]
        at = line.admitted_bin[i]
        if at < seconds and not line.admitted[i]:
            admitted[2, at] += line.prompt_tokens[i]
    ending = np.zeros((2, seconds))
    ending[0] = ends[0]
    return Streams(
        tool=_to_bins(e.tool, spread),
        box=_to_bins(e.box, spread),
        free=_to_bins(_freed(e.box, held), spread),
        second=np.zeros((3, seconds)),
        sampler=sampler,
        going=_to_bins(e.going, spread),
        ending=ending,
        rewarded=ends[1].copy(),
        starts=starts,
        admitted=admitted,
        released=ends[2].copy(),
        ended=np.zeros(seconds),
        kv=np.zeros(seconds),
        batch=np.zeros(seconds),
    )
