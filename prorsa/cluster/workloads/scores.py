"""Fitted tables in both directions, vectorised: values at standard-normal scores, and the scores that give a value."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from prorsa.cluster.workloads.fitted import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class TableStack:
    """Tables over one grid of scores, looked up by the index of each row's table.

    Args:
        tables: of non-decreasing values.
        grid: float64[G], the scores of their points.
    """

    def __init__(self, tables: Sequence[Table], grid: Sequence[float]) -> None:
        self._values = np.array([table.values for table in tables])
        self._grid = np.array(grid)

    def at(self, index: Ints, scores: Floats) -> Floats:
        """Values float64[n] of the tables ``index`` at ``scores``; constant beyond the grid."""
        inside = np.clip(scores, self._grid[0], self._grid[-1])
        cell = np.clip(np.searchsorted(self._grid, inside, side="right") - 1, 0, len(self._grid) - 2)
        share = (inside - self._grid[cell]) / (self._grid[cell + 1] - self._grid[cell])
        low, high = self._values[index, cell], self._values[index, cell + 1]
        values: Floats = low + share * (high - low)
        return values

    def reached(self, index: Ints, values: Floats) -> Floats:
        """Lowest scores float64[n] at which the tables reach ``values``: -inf where all do, inf where none does."""
        rows = self._values[index]
        first = (rows < values[:, None]).sum(axis=1)
        inner = np.clip(first, 1, len(self._grid) - 1)
        at = np.arange(len(index))
        low, high = rows[at, inner - 1], rows[at, inner]
        step = np.where(high > low, high - low, 1.0)
        scores = self._grid[inner - 1] + (values - low) / step * (self._grid[inner] - self._grid[inner - 1])
        return np.where(first == 0, -np.inf, np.where(first == len(self._grid), np.inf, scores))

    def whole(self, index: Ints, counts: Ints) -> tuple[Floats, Floats]:
        """Scores from and to which ``max(1, rint(value))`` is ``counts``."""
        low = self.reached(index, counts.astype(np.float64) - 0.5)
        return np.where(counts <= 1, -np.inf, low), self.reached(index, counts.astype(np.float64) + 0.5)


def truncated_normal(rng: np.random.Generator, mean: Floats, sd: Floats | float, low: Floats, high: Floats) -> Floats:
    """Normal draws float64[n] of the given mean and deviation, given that they lie in [``low``, ``high``)."""
    a, b = (low - mean) / sd, (high - mean) / sd
    # In the upper tail 1 - cdf keeps digits that the cdf has lost: draw the mirror image there.
    flip = a > 0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    p, q = ndtr(a), ndtr(b)
    with np.errstate(invalid="ignore"):
        draw = ndtri(p + rng.random(len(mean)) * (q - p))
    # Where the interval is too far out for the cdf to tell its ends apart, its inner end is as good as certain.
    draw = np.clip(np.where(np.isfinite(draw), draw, b), a, b)
    return np.asarray(mean + sd * np.where(flip, -draw, draw))


def probability_between(mean: Floats, sd: float, low: Floats, high: Floats) -> Floats:
    """Probabilities that normal draws of the given mean and deviation lie in [``low``, ``high``)."""
    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > 0
    return np.asarray(ndtr(np.where(flip, -a, b)) - ndtr(np.where(flip, -b, a)))


def pick(rng: np.random.Generator, weights: Floats) -> Ints:
    """An index for each row of ``weights`` float64[n, A], with chances in their proportion."""
    edges = np.cumsum(weights, axis=1)
    chosen: Ints = (rng.random(len(weights))[:, None] * edges[:, -1:] >= edges[:, :-1]).sum(axis=1)
    return chosen
