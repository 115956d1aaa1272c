"""From expected arrivals to tokens: means by source, and quantiles of the sums."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import State
from prorsa.forecast.compound import compound_quantiles
from prorsa.forecast.learn import GAPS, Learner
from prorsa.forecast.models import SIZE_GRID, binned
from prorsa.forecast.sources import Outlook, Rows, Steps, gap_classes
from prorsa.forecast.waits import Wait

Array = NDArray[np.float64]

LATER_ERROR: Final = 0.15
"""How well the number of requests that come back is known, as a share: the models' own error, not chance."""
BACKLOG_ERROR: Final = 0.03
"""How well the uncached tokens of what waits are known, as a share."""
_Z90: Final = 1.2816
QUANTILES: Final = np.array([0.1, 0.5, 0.9])
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
    low, middle, high = quantiles.T
    extra = (_Z90 * deviation) ** 2
    down, up = np.sqrt((middle - low) ** 2 + extra), np.sqrt((high - middle) ** 2 + extra)
    widened: Array = np.stack([middle - down, middle, middle + up], axis=1)
    return widened


class PrefillDemand:
    """Uncached tokens that become ready, by source and horizon.

    Attributes:
        by_source: float64[H] of expected tokens, by the name of the source.
        arrivals: their sum, with its quantiles.
        mean_new_tokens: of the next requests.
        per_bin: float64[K], expected tokens a second.
    """

    def __init__(self, steps: Steps, learner: Learner, rows: Rows, outlook: Outlook) -> None:
        self._steps, self._learner, self._rows, self._outlook = steps, learner, rows, outlook
        self._first_share = float(learner.first_share.means()[0])
        self._first_mean = float(learner.first_prompts.means[0]) * self._first_share
        self._counts = np.zeros((len(steps.at), SIZE_GRID.bins))
        self._sure = np.zeros(len(steps.at))
        self.by_source: dict[str, Array] = {}
        self._add_waits()
        self._add_second()
        self._add_sampler()
        self.arrivals = self._sum_up()
        self.per_bin = self._per_bin()

    # --- sources ----------------------------------------------------------------------------------------------------

    def _add_waits(self) -> None:
        """Trajectories in a tool or a start-up: each with its own chance and its own context."""
        rows, outlook = self._rows, self._outlook
        first = (rows.state == State.DISPATCHED) | (rows.state == State.SANDBOX) | (rows.turn < 0)
        self.by_source["sandbox"] = self._add_first(np.where(first[:, None], outlook.arrives, 0.0))
        tool = np.where(((rows.state == State.TOOL) & ~first)[:, None], outlook.arrives, 0.0)
        self.by_source["tool"] = self._add_tools(tool)

    def _add_first(self, arrives: Array) -> Array:
        size = self._rows.prompt_tokens * self._first_share
        # A sum of yes-or-no's of known size varies less than a Poisson sum: the sure part is a shift.
        self._sure += (arrives * arrives).T @ size
        self._spread_sizes(arrives * (1.0 - arrives), size)
        tokens: Array = arrives.T @ size
        return tokens

    def _add_tools(self, arrives: Array) -> Array:
        """What a tool brings is new; of the context before it, what was evicted must be computed again."""
        tokens = np.zeros(len(self._steps.at))
        rows, hits, wait_s = self._rows, self._learner.hits, self._outlook.queue.new_wait_s
        for h, at in enumerate(self._steps.at):
            chance, horizon_s = arrives[:, h], float(self._steps.edges_s[at])
            gone = self._learner.evicted.by(rows.idle_s + horizon_s / 2 + wait_s)
            gone = np.where(rows.flushed, 1.0, gone)
            key = np.maximum(rows.tool - Wait.UNKNOWN_TOOL, 0) * GAPS + gap_classes(rows, horizon_s)
            found = binned(key, chance * (1.0 - gone), len(hits.means))
            again = rows.prompt_tokens + hits.means[key]
            self._counts[h] += found @ hits.shares
            self._spread_sizes((chance * gone)[:, None], again, slice(h, h + 1))
            tokens[h] = found @ hits.means + (chance * gone) @ again
        return tokens

    def _add_second(self) -> None:
        """Requests that come back later: a typical tool and a typical context of those that live."""
        bin_at, second = self._steps.bin_at, self._outlook.second
        shares, mean = self._learner.typical_hits()
        context, contexts = self._contexts()
        gone = self._learner.typical_eviction(self._outlook.queue.new_wait_s)
        flushed = np.where(np.arange(self._steps.bins) >= self._outlook.flush_from, 1.0, gone)
        again = np.cumsum(second * flushed)[bin_at]
        found = np.cumsum(second)[bin_at] - again
        self._counts += found[:, None] * shares + again[:, None] * contexts
        self.by_source["second"] = found * mean + again * (context + mean)
        self.mean_new_tokens = mean + gone * context
        self.mean_context_tokens = context

    def _add_sampler(self) -> None:
        at, outlook = self._steps.bin_at, self._outlook
        firsts = self._learner.first_prompts
        count = np.cumsum(outlook.sampler)[at]
        self._counts += count[:, None] * firsts.shares[0] * self._first_share
        burst = np.cumsum(outlook.burst)[at] * self._first_mean
        self._burst = burst
        self.by_source["sampler"] = count * self._first_mean + burst

    def _per_bin(self) -> Array:
        """Each source's tokens over the longest horizon, spread like its requests."""
        outlook, tokens = self._outlook, np.zeros(self._steps.bins)
        for name in ("tool", "sandbox", "second", "sampler"):
            requests = getattr(outlook, name) + (outlook.burst if name == "sampler" else 0.0)
            total = float(requests.sum())
            if total > 0:
                tokens += requests * (self.by_source[name][-1] / total)
        return tokens

    # --- sizes ------------------------------------------------------------------------------------------------------

    def _contexts(self) -> tuple[float, Array]:
        """Mean context of the live trajectories past their start, and its distribution over size bins."""
        size = self._rows.prompt_tokens[self._rows.turn >= 0]
        if not len(size):
            return self._first_mean, self._learner.first_prompts.shares[0]
        counts = np.bincount(SIZE_GRID.indices(size), minlength=SIZE_GRID.bins) / len(size)
        return float(size.mean()), counts

    def _spread_sizes(self, chance: Array, size: Array, horizons: slice = slice(None)) -> None:
        index = SIZE_GRID.indices(size)
        for h, column in zip(range(*horizons.indices(len(self._counts))), chance.T, strict=True):
            self._counts[h] += binned(index, column, SIZE_GRID.bins)

    def _sum_up(self) -> Sums:
        mean = sum(self.by_source.values(), np.zeros(len(self._steps.at)))
        quantiles = compound_quantiles(self._counts, SIZES, QUANTILES) + self._sure[:, None]
        # A burst comes as a whole or not at all: it is part of a quantile if it is likelier than that.
        comes = self._outlook.burst_by[:, None] > 1.0 - QUANTILES
        later = self.by_source["second"] + self.by_source["sampler"] - self._burst
        return Sums(mean, widen(quantiles + comes * self._burst[:, None], LATER_ERROR * later))

    def total(self, backlog_tokens: float) -> Sums:
        """Arrivals, with the uncertainty of a backlog of so many tokens added to their spread (not the backlog)."""
        error = np.full(len(self._steps.at), BACKLOG_ERROR * backlog_tokens)
        return Sums(self.arrivals.mean, widen(self.arrivals.quantiles, error))
