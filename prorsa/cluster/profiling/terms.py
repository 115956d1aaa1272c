"""Fitting the terms of a profile to what a source answers on a grid, by least squares on relative errors.

Coefficients are kept at 0 or above: a term that would shorten a step is noise of the source.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Fit, Point, windowed_pairs
from prorsa.errors import ConfigError

PREFILL_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREFIXES = (0, 1024, 4096, 16384, 32768, 65536, 131072)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131072)

PER_TOKEN, PER_PAIR = 1e-3, 1e-6
"""Sizes that put the columns of a fit near one another, so that the solver is well conditioned."""


@dataclass(frozen=True, slots=True)
class Error:
    """Relative error of a fit over its grid: median and largest."""

    median: float
    largest: float

    def __str__(self) -> str:
        return f"median {self.median:.1%}, at most {self.largest:.0%}"


def fit_prefill(
    answer_ms: Callable[[int, int], float], chunk_tokens: int, context_tokens: int, window_tokens: int = 0
) -> tuple[Fit, Error]:
    """Fit a rank's attention in a prefill step.

    Args:
        answer_ms: the source: (new tokens, cached prefix) → milliseconds.
        chunk_tokens: largest number of new tokens in a step.
        context_tokens: longest prefix + new tokens.
        window_tokens: tokens that each token attends to, with sparse attention; 0 without.
    """
    sizes = [n for n in PREFILL_TOKENS if n <= chunk_tokens]
    grid = [(n, p) for n, p in product(sizes, PREFIXES) if n + p <= context_tokens + sizes[-1]]
    columns = [[1.0, n * PER_TOKEN, n * (n / 2 + p) * PER_PAIR] for n, p in grid]
    if window_tokens:
        columns = [
            [*row, windowed_pairs(n, p, window_tokens) * PER_PAIR] for row, (n, p) in zip(columns, grid, strict=True)
        ]
    solution, error = _solve(columns, [answer_ms(n, p) for n, p in grid])
    a, b, c, *d = solution
    fit = Fit(
        a_ms=a, b_ms=b * PER_TOKEN, c_ms=c * PER_PAIR, d_ms=d[0] * PER_PAIR if d else 0.0, window_tokens=window_tokens
    )
    return fit, error


def fit_decode(answer_ms: Callable[[int, int], float], max_running: int, kv_tokens: int) -> tuple[Fit, Error]:
    """Fit a rank's attention in a decode step.

    Args:
        answer_ms: the source: (batch, context of each) → milliseconds.
        max_running: largest batch.
        kv_tokens: KV of a rank; what does not fit is not asked.
    """
    grid = [(b, ctx) for b, ctx in product(BATCHES, CONTEXTS) if b <= max_running and b * ctx <= kv_tokens]
    columns = [[1.0, b * PER_TOKEN, b * ctx * PER_PAIR] for b, ctx in grid]
    (a, b, c), error = _solve(columns, [answer_ms(batch, ctx) for batch, ctx in grid])
    return Fit(a_ms=a, b_ms=b * PER_TOKEN, c_ms=c * PER_PAIR), error


def tabulate(answer_ms: Callable[[int], float], first: int, last: int) -> tuple[Point, ...]:
    """A table by powers of two from ``first`` to ``last`` tokens that never falls, to a hundredth of a millisecond."""
    tokens = [first]
    while tokens[-1] < last:
        tokens.append(min(2 * tokens[-1], last))
    rising = accumulate((answer_ms(count) for count in tokens), max)
    return tuple((count, round(ms, 2)) for count, ms in zip(tokens, rising, strict=True))


def _solve(columns: Sequence[Sequence[float]], answers_ms: Sequence[float]) -> tuple[list[float], Error]:
    design, answers = np.array(columns), np.array(answers_ms)
    weighted: NDArray[np.float64] = design / answers[:, None]
    solution = solve_nonnegative(weighted, np.ones(len(answers)))
    errors = np.abs(weighted @ solution - 1)
    return [float(f"{value:.4g}") for value in solution], Error(float(np.median(errors)), float(errors.max()))


def solve_nonnegative(design: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with coefficients of 0 or more.

    Raises:
        ConfigError: if SciPy is not installed.
    """
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as error:
        raise ConfigError("fitting a profile needs scipy: pip install 'prorsa[profile]'") from error
    solution: NDArray[np.float64] = nnls(design, target)[0]
    return solution
