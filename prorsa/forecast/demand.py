"""From expected arrivals to prefill demand: means by source, and what its quantiles are made of."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.learn import Learner
from prorsa.forecast.models import SIZE_GRID
from prorsa.forecast.sources import Outlook
from prorsa.forecast.steps import Steps

Array = NDArray[np.float64]

LATER_ERROR: Final = 0.12
"""How well what comes back later is known, as a share: the models' own error, not chance."""
BACKLOG_ERROR: Final = 0.06
"""How well the uncached tokens of what waits are known, as a share."""
_Z90: Final = 1.2816
QUANTILES: Final = np.array([0.1, 0.5, 0.9])
_SIDES: Final = np.array([-1.0, 0.0, 1.0])
SIZES: Final = (SIZE_GRID.edges[:-1] + SIZE_GRID.edges[1:]) / 2


@dataclass(frozen=True, slots=True)
class Sums:
    """A demand over each horizon: ``mean`` float64[H] and ``quantiles`` float64[H, 3] (p10, p50, p90), in tokens."""

    mean: Array
    quantiles: Array


def widen(quantiles: Array, deviation: Array) -> Array:
    """Quantiles (float64[H, 3]) of a sum with something independent and normal of a deviation (float64[H]).

    The lowest may be negative: whoever adds a known part bounds the whole.
    """
    middle = quantiles[:, 1]
    distance = quantiles - middle[:, None]
    wider = np.sqrt(distance * distance + ((_Z90 * deviation) ** 2)[:, None])
    widened: Array = middle[:, None] + _SIDES * wider
    return widened


def matched(spread: Array, counts: Array, mean: Array) -> Array:
    """Quantiles (float64[H, 3]) of the sums of ``counts``, scaled to ``mean``: bins round sizes, means are exact."""
    rounded = np.maximum(counts @ SIZES, 1e-9)
    exact: Array = spread * (np.maximum(mean, 0.0) / rounded)[:, None]
    return exact


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
        sure: float64[H], tokens that come in any case.
        requests: float64[K], that become ready a second, the burst included.
        per_bin: float64[K], expected tokens a second.
    """

    def __init__(self, steps: Steps, learner: Learner, outlook: Outlook) -> None:
        self._outlook = outlook
        streams, burst, at = outlook.streams, outlook.burst, steps.bin_at
        self._second = streams.second.cumsum(axis=1)[:, at]
        self._firsts = streams.sampler.cumsum(axis=1)[:, at]
        second, sampler = streams.second + burst.second, streams.sampler + burst.sampler
        arriving = {"tool": streams.tool, "sandbox": streams.box, "second": second, "sampler": sampler}
        self.by_source = {name: rows[1].cumsum()[at] for name, rows in arriving.items()}
        everything = streams.tool + streams.box + second + sampler
        self.requests: Array = everything[0]
        self.per_bin: Array = everything[1]
        self.mean: Array = self.per_bin.cumsum()[at]
        self._burst_tokens = (burst.second[1] + burst.sampler[1]).cumsum()[at]
        self.sure = outlook.expected.sure.copy()
        self.counts = self._counts(learner)

    def _counts(self, learner: Learner) -> Array:
        outlook, cycle = self._outlook, self._outlook.cycle
        counts = outlook.expected.counts + outlook.expected.found @ learner.appended.shares
        second = self._second[0]
        lost, share = outlook.lost
        found = second * (1.0 - lost)
        counts += found[:, None] * outlook.appended
        answer = cycle.uncached_output * cycle.answer_tokens
        counts[:, SIZE_GRID.index(answer)] += found * (answer >= 1.0)
        contexts, (number, moved, missed) = outlook.expected.contexts, outlook.expected.totals[4:7]
        if number > 0:
            counts[:, SIZE_GRID.index(missed / max(moved, 1e-9))] += found * moved / number
            mean = outlook.mean_context_tokens
            missed = share * mean + cycle.answer_tokens + cycle.appended_tokens
            counts += (second * lost)[:, None] * scaled(contexts / number, mean, missed)
        first = learner.classes @ learner.first_prompts.shares
        counts += self._firsts[0][:, None] * first
        return counts

    def quantiles(self, spread: Array, backlog_tokens: float) -> tuple[Sums, Sums]:
        """Arrivals; and the same with the uncertainty of a backlog (not the backlog) added to their spread.

        Args:
            spread: float64[H, 3], quantiles of the compound sum of ``counts``.
        """
        # A burst comes as a whole or not at all: it is part of a quantile if it is likelier than that.
        burst_by = self._outlook.burst_by
        comes = burst_by[:, None] > 1.0 - QUANTILES
        whole = np.where(burst_by > 0.0, self._burst_tokens / np.maximum(burst_by, 1e-9), 0.0)
        later = self._second[1] + self._firsts[1]
        random = self.mean - self.sure - self._burst_tokens
        middle = matched(spread, self.counts, random) + self.sure[:, None] + comes * whole[:, None]
        quantiles = widen(middle, LATER_ERROR * later)
        error = np.full(len(self.mean), BACKLOG_ERROR * backlog_tokens)
        return Sums(self.mean, quantiles), Sums(self.mean, widen(quantiles, error))
