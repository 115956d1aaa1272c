"""Compiled: what comes by the end of each horizon, and quantiles of that."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled
from prorsa.forecast.models import SIZE_GRID

Array = NDArray[np.float64]

LATER_ERROR: Final = 0.12
"""How well what comes back later is known, as a share: the models' own error, not chance."""
Z90: Final = 1.2816
QUANTILES: Final = np.array([0.1, 0.5, 0.9])
SIZES: Final = (SIZE_GRID.edges[:-1] + SIZE_GRID.edges[1:]) / 2


@dataclass(frozen=True, slots=True)
class Sums:
    """A demand over each horizon: ``mean`` float64[H] and ``quantiles`` float64[H, 3] (p10, p50, p90), in tokens."""

    mean: Array
    quantiles: Array


class ByHorizon(NamedTuple):
    """What has become ready by each horizon, float64[3, H]: requests, uncached tokens and prompt tokens, by where they
    come from; ``second`` and ``sampler`` if no burst comes, and what ``burst_second`` and ``burst_sampler`` add.

    Attributes:
        requests, tokens: float64[K], all that becomes ready a second, and uncached tokens of that.
    """

    tool: Array
    box: Array
    second: Array
    sampler: Array
    burst_second: Array
    burst_sampler: Array
    requests: Array
    tokens: Array


@compiled
def _upto(rows: Array, at: NDArray[np.intp]) -> Array:
    out = np.empty((len(rows), len(at)))
    for row in range(len(rows)):
        so_far = rows[row].cumsum()
        for h in range(len(at)):
            out[row, h] = so_far[at[h]]
    return out


@compiled
def upto(rows: Array, at: NDArray[np.intp]) -> Array:
    """Sums of each row (float64[n, K], a second) up to the last second ``at`` of each horizon: float64[n, H]."""
    return _upto(rows, at)


@compiled
def by_horizon(
    tool: Array,
    box: Array,
    second: Array,
    sampler: Array,
    burst_second: Array,
    burst_sampler: Array,
    at: NDArray[np.intp],
) -> ByHorizon:
    """What has become ready by the last second ``at`` of each horizon, of what does so a second (float64[3, K])."""
    requests = tool[0] + box[0] + second[0] + sampler[0] + burst_second[0] + burst_sampler[0]
    tokens = tool[1] + box[1] + second[1] + sampler[1] + burst_second[1] + burst_sampler[1]
    return ByHorizon(
        _upto(tool, at),
        _upto(box, at),
        _upto(second, at),
        _upto(sampler, at),
        _upto(burst_second, at),
        _upto(burst_sampler, at),
        requests,
        tokens,
    )


@compiled
def _widen(quantiles: Array, deviation: Array) -> Array:
    out = quantiles.copy()
    for h in range(len(out)):
        low, middle, high = quantiles[h]
        variance = (Z90 * deviation[h]) ** 2
        out[h, 0] = middle - np.sqrt((low - middle) ** 2 + variance)
        out[h, 2] = middle + np.sqrt((high - middle) ** 2 + variance)
    return out


@compiled
def widen(quantiles: Array, deviation: Array) -> Array:
    """Quantiles (float64[H, 3]) of a sum with something independent and normal of a deviation (float64[H]).

    The lowest may be negative: whoever adds a known part bounds the whole.
    """
    return _widen(quantiles, deviation)


@compiled
def arrived(
    spread: Array, counts: Array, mean: Array, sure: Array, burst: Array, burst_by: Array, later: Array
) -> Array:
    """Quantiles of what arrives: float64[H, 3].

    Args:
        spread: float64[H, 3], quantiles of the compound sums of ``counts`` (float64[H, size bins]). Bins round sizes:
            the sums are scaled to what is left of the mean.
        mean: float64[H], of all tokens; ``sure`` float64[H], of those that come in any case.
        burst: float64[H], tokens of a burst, weighted by the probability that it comes: ``burst_by`` float64[H].
        later: float64[H], tokens that are known as well as :data:`LATER_ERROR` says.
    """
    out = np.empty(spread.shape)
    for h in range(len(out)):
        scale = max(mean[h] - sure[h] - burst[h], 0.0) / max((counts[h] * SIZES).sum(), 1e-9)
        for q in range(len(QUANTILES)):
            # A burst comes as a whole or not at all: it is part of a quantile if it is likelier than that.
            comes = burst_by[h] > 1.0 - QUANTILES[q]
            out[h, q] = spread[h, q] * scale + sure[h] + (burst[h] / burst_by[h] if comes else 0.0)
    return _widen(out, LATER_ERROR * later)
