"""Quantiles of sums of a random number of heavy-tailed sizes.

A horizon's demand is the sum of the sizes of the requests that arrive. Many trajectories with a small chance each make
a Poisson number of arrivals, so the sum is compound Poisson: with ``c[b]`` expected arrivals of size ``s[b]`` its
characteristic function is ``exp(sum_b c[b] (exp(i u s[b]) - 1))``. Evaluated by FFT on a grid that reaches
``RANGE_SD`` standard deviations past the mean, this is exact up to the grid, deterministic, and keeps the tail: where
2 % of the arrivals carry half of the tokens, the median lies far below the mean, which matching two moments would miss.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]

CELLS: Final = 512
RANGE_SD: Final = 7.0
NOTHING: Final = -60.0
"""The exponent from which on an exponential counts as 0: 1e-26, far below the rounding of what it is added to."""


def compound_quantiles(counts: Array, sizes: Array, q: Array) -> Array:
    """Quantiles of compound Poisson sums.

    Args:
        counts: float64[rows, bins], expected arrivals by size bin; each row is a sum of its own.
        sizes: float64[bins], tokens.
        q: float64[m], probabilities in (0, 1), ascending.

    Returns:
        float64[rows, m], tokens; 0 where a row expects nothing.
    """
    density, step = _on_grid(counts, sizes)
    transform = np.fft.rfft(density, axis=1)
    _exponentiate(transform)
    return _quantiles(np.fft.irfft(transform, CELLS, axis=1), step, q)


@compiled
def _exponentiate(transform: NDArray[np.complex128]) -> None:
    """In place: the characteristic functions of the sums, from the transforms of what is expected of each size."""
    for row in range(len(transform)):
        total = transform[row, 0].real
        for frequency in range(transform.shape[1]):
            value = transform[row, frequency]
            # With many arrivals nearly all of it is 0 to any precision, and exponentials are what a tick waits for.
            transform[row, frequency] = np.exp(value - total) if value.real - total > NOTHING else 0.0


@compiled
def _quantiles(masses: Array, step: Array, q: Array) -> Array:
    """The first cell at which each row's running sum reaches each probability (ascending), in tokens."""
    quantiles = np.empty((len(masses), len(q)))
    for row in range(len(masses)):
        cell, reached = 0, masses[row, 0]
        for k in range(len(q)):
            while reached < q[k] and cell < CELLS - 1:
                cell += 1
                reached += masses[row, cell]
            quantiles[row, k] = cell * step[row]
    return quantiles


@compiled
def _on_grid(counts: Array, sizes: Array) -> tuple[Array, Array]:
    """Counts spread over the two cells around each size, so that means are kept: float64[rows, CELLS]; and how many
    tokens a cell is apart from the next, float64[rows].
    """
    grid, step = np.zeros((len(counts), CELLS)), np.empty(len(counts))
    for row in range(len(counts)):
        mean = variance = 0.0
        for size in range(len(sizes)):
            mean += counts[row, size] * sizes[size]
            variance += counts[row, size] * sizes[size] * sizes[size]
        step[row] = max((mean + RANGE_SD * np.sqrt(variance)) / (CELLS - 2), 1e-9)
        for size in range(len(sizes)):
            position = min(sizes[size] / step[row], CELLS - 2.0)
            cell = int(position)
            upper = counts[row, size] * (position - cell)
            grid[row, cell] += counts[row, size] - upper
            grid[row, cell + 1] += upper
    return grid, step
