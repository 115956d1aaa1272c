"""From expected arrivals to prefill demand: means by source, and what its quantiles are made of."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.horizons import ByHorizon, Sums, arrived, widen
from prorsa.forecast.jit import compiled
from prorsa.forecast.learn import Learner
from prorsa.forecast.models import SIZE_GRID
from prorsa.forecast.sources import Outlook

Array = NDArray[np.float64]

BACKLOG_ERROR: Final = 0.06
"""How well the uncached tokens of what waits are known, as a share."""


class _Sizes(NamedTuple):
    """Sizes of what requests that come later must compute.

    Attributes:
        appended, contexts, first: float64[size bins], shares of sizes of what results append, of contexts that are
            lost and of first prompts.
        lost: chance that a context is lost; ``moved`` that it is left behind.
        answer, missed: bins of what is computed again of an answer, and of a context that is left behind;
            ``answered``: 1 where anything is of an answer, else 0.
    """

    appended: Array
    contexts: Array
    first: Array
    lost: float
    moved: float
    answer: int
    missed: int
    answered: float


@compiled
def _parts(known: Array, found: Array, appended: Array, come: ByHorizon, sizes: _Sizes) -> Array:
    """Expected parts by size: float64[H, size bins].

    Args:
        known: float64[H, size bins], parts of what lives whose sizes are known.
        found: float64[H, cells], requests of what lives that find their context; ``appended`` float64[cells, size
            bins], shares of sizes of what is appended to it.
    """
    counts = known.copy()
    for h in range(len(counts)):
        for cell in range(len(appended)):
            amount = found[h, cell]
            if amount > 0.0:
                for size in range(counts.shape[1]):
                    counts[h, size] += amount * appended[cell, size]
        back, begin = come.second[0, h], come.sampler[0, h]
        for size in range(counts.shape[1]):
            after_gap = (1.0 - sizes.lost) * sizes.appended[size] + sizes.lost * sizes.contexts[size]
            counts[h, size] += back * after_gap + begin * sizes.first[size]
        counts[h, sizes.answer] += back * (1.0 - sizes.lost) * sizes.answered
        counts[h, sizes.missed] += back * (1.0 - sizes.lost) * sizes.moved
    return counts


def scaled(shares: Array, mean: float, to: float) -> Array:
    """A distribution over size bins (float64[bins]) moved from one mean to another, by whole bins."""
    shift = SIZE_GRID.index(to) - SIZE_GRID.index(mean)
    return shares if shift == 0 else np.concatenate((shares[-shift:], shares[:-shift]))


class PrefillDemand:
    """Uncached tokens that become ready, by source and horizon.

    Attributes:
        by_source: float64[H] of expected tokens, by the name of the source.
        mean: float64[H], their sum.
        counts: float64[H, size bins], expected parts by size: what the sum's spread comes from.
    """

    def __init__(self, learner: Learner, outlook: Outlook, come: ByHorizon) -> None:
        self._outlook, self._come = outlook, come
        self._burst = come.burst_second[1] + come.burst_sampler[1]
        self.by_source = {
            "tool": come.tool[1],
            "sandbox": come.box[1],
            "second": come.second[1] + come.burst_second[1],
            "sampler": come.sampler[1] + come.burst_sampler[1],
        }
        self.mean: Array = sum(self.by_source.values(), np.zeros(len(self._burst)))
        expected = outlook.expected
        self.counts = _parts(expected.counts, expected.found, learner.appended.shares, come, self._sizes(learner))

    def _sizes(self, learner: Learner) -> _Sizes:
        outlook, cycle, contexts = self._outlook, self._outlook.cycle, self._outlook.expected.contexts
        number, moved, missed = outlook.expected.totals[4:7].tolist()
        lost, share = outlook.lost
        answer, mean = cycle.uncached_output * cycle.answer_tokens, outlook.mean_context_tokens
        if number > 0.0:
            gone = share * mean + cycle.answer_tokens + cycle.appended_tokens
            contexts = scaled(contexts / number, mean, gone)
        return _Sizes(
            outlook.appended,
            contexts,
            learner.classes @ learner.first_prompts.shares,
            lost,
            moved / number if number > 0.0 else 0.0,
            SIZE_GRID.index(answer),
            SIZE_GRID.index(missed / max(moved, 1e-9)),
            float(answer >= 1.0),
        )

    def quantiles(self, spread: Array, backlog_tokens: float) -> tuple[Sums, Sums]:
        """Arrivals; and the same with the uncertainty of a backlog (not the backlog) added to their spread.

        Args:
            spread: float64[H, 3], quantiles of the compound sum of ``counts``.
        """
        outlook, come = self._outlook, self._come
        later = come.second[1] + come.sampler[1]
        quantiles = arrived(spread, self.counts, self.mean, outlook.expected.sure, self._burst, outlook.burst_by, later)
        error = np.full(len(self.mean), BACKLOG_ERROR * backlog_tokens)
        return Sums(self.mean, quantiles), Sums(self.mean, widen(quantiles, error))
