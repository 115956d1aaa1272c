"""Online models of durations, sizes and what comes next: O(1) an observation, vectorised to ask.

All of them forget: an observation's weight halves after as many further ones of its key as the model's half-life says.
With few observations of a key they fall back on those of its group, and from there on a stated prior.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.integer]

_RENORMALISE_AT: Final = 1e12


@dataclass(frozen=True, slots=True)
class LogGrid:
    """Bins whose edges grow by a constant factor; the first begins at 0.

    Attributes:
        low: upper edge of the first bin.
        per_octave: bins in which the value doubles.
        bins: how many; larger values fall into the last.
    """

    low: float
    per_octave: int
    bins: int

    @property
    def edges(self) -> Array:
        """float64[bins + 1], ascending from 0."""
        return np.concatenate(([0.0], self.low * 2.0 ** (np.arange(self.bins) / self.per_octave)))

    def index(self, value: float) -> int:
        """The bin of one value."""
        if value <= self.low:
            return 0
        return min(int(math.log2(value / self.low) * self.per_octave) + 1, self.bins - 1)

    def indices(self, values: Array) -> NDArray[np.intp]:
        """The bins of an array of values."""
        logs = np.log2(np.maximum(values, self.low) / self.low)
        found = (logs * self.per_octave).astype(np.intp) + (values > self.low)
        return np.minimum(found, self.bins - 1)


class _Weights:
    """A forgetting histogram a key: newer observations weigh more, which is the same as older ones weighing less."""

    def __init__(self, bins: int, half_life: float, *, sums: bool = False) -> None:
        self._growth = 2.0 ** (1.0 / half_life)
        self._raw = np.zeros((0, bins))
        self._raw_sums = np.zeros((0, bins)) if sums else None
        self._weight: list[float] = []

    def add(self, key: int, index: int, value: float = 0.0) -> None:
        while key >= len(self._weight):
            self._grow()
        weight = self._weight[key]
        self._raw[key, index] += weight
        if self._raw_sums is not None:
            self._raw_sums[key, index] += weight * value
        weight *= self._growth
        if weight > _RENORMALISE_AT:
            self._raw[key] /= weight
            if self._raw_sums is not None:
                self._raw_sums[key] /= weight
            weight = 1.0
        self._weight[key] = weight

    def counts(self, keys: int) -> Array:
        """float64[keys, bins]: observations, the newest counting 1."""
        while keys > len(self._weight):
            self._grow()
        scale: Array = np.array(self._weight[:keys])[:, None]
        counts: Array = self._raw[:keys] * (self._growth / scale)
        return counts

    def sums(self, keys: int) -> Array:
        """float64[keys, bins]: sums of the observed values, weighted as :meth:`counts`."""
        assert self._raw_sums is not None
        while keys > len(self._weight):
            self._grow()
        sums: Array = self._raw_sums[:keys] * (self._growth / np.array(self._weight[:keys])[:, None])
        return sums

    def _grow(self) -> None:
        row = np.zeros((1, self._raw.shape[1]))
        self._raw = np.concatenate([self._raw, row])
        if self._raw_sums is not None:
            self._raw_sums = np.concatenate([self._raw_sums, row])
        self._weight.append(1.0)


@dataclass(frozen=True, slots=True)
class Prior:
    """A log-logistic survival ``1 / (1 + (x / median) ** shape)``, a power law in the tail, worth some waits."""

    median: float
    shape: float = 1.5
    strength: float = 2.0

    def bin_hazard(self, edges: Array) -> Array:
        """float64[bins]: probability to end in a bin if it is reached."""
        cumulative = np.log1p((edges / self.median) ** self.shape)
        return 1.0 - np.exp(-np.diff(cumulative))


DURATION_GRID: Final = LogGrid(low=2.0**-5, per_octave=4, bins=96)
"""From 31 ms (or 1/32 token) to 2^18.75, in steps of 19 %."""


class HazardModel:
    """How much longer something lasts that has lasted for ``x``, by key, from ended *and ongoing* waits.

    The hazard of each log bin is the Kaplan–Meier estimate: ends in the bin over waits that reached it, where ongoing
    waits count as reached up to where they are (half in their own bin, as actuaries do). Without these, early in a run
    only short waits would have been seen. A key's hazard is shrunk towards that of its group, and this towards the
    prior, bin by bin; so the far tail, where nothing was seen, is the prior's power law.

    Args:
        priors: by key; keys past its end are of the group ``pooled`` and share the last prior.
        half_life: ended waits of a key after which an observation counts half.
        shrinkage: how many waits of its own a key needs to count as much as its group.
    """

    def __init__(
        self,
        priors: tuple[Prior, ...],
        *,
        half_life: float = 2000.0,
        shrinkage: float = 6.0,
        grid: LogGrid = DURATION_GRID,
    ) -> None:
        self.grid = grid
        self._edges = grid.edges
        self._widths = np.diff(self._edges)
        self._priors = priors
        self._prior_hazard = np.array([prior.bin_hazard(self._edges) for prior in priors])
        self._strength = np.array([prior.strength for prior in priors])
        self._shrinkage = shrinkage
        self._ended = _Weights(grid.bins, half_life)
        self._cumulative = np.zeros((0, grid.bins))
        self._slope = np.zeros((0, grid.bins))
        self._last_prior = len(priors) - 1

    def add(self, key: int, x: float) -> None:
        """A wait of kind ``key`` has ended after ``x``."""
        self._ended.add(key, self.grid.index(x))

    def refresh(self, keys: int, ongoing_key: Ints, ongoing_x: Array) -> None:
        """Take in what has ended, and the waits under way (arrays of equal length), before asking for ``keys`` keys."""
        bins = self.grid.bins
        flat = ongoing_key.astype(np.intp) * bins + self.grid.indices(ongoing_x)
        ongoing = np.bincount(flat, minlength=keys * bins).reshape(keys, bins).astype(np.float64)
        ended = self._ended.counts(keys)
        reached = _at_or_after(ended) + _at_or_after(ongoing) - 0.5 * ongoing
        hazard = self._shrink(ended, reached)
        step = -np.log1p(-np.minimum(hazard, 1.0 - 1e-9))
        self._cumulative = np.cumsum(step, axis=1) - step
        self._slope = step / self._widths

    def _shrink(self, ended: Array, reached: Array) -> Array:
        """Bin hazards of all keys: own data, then the pooled tools, then the prior."""
        last = self._last_prior
        own = min(last, len(ended))
        strength = self._strength[:own, None]
        special = (ended[:own] + strength * self._prior_hazard[:own]) / (reached[:own] + strength)
        pooled_ended, pooled_reached = ended[last:].sum(axis=0), reached[last:].sum(axis=0)
        pooled = (pooled_ended + self._strength[last] * self._prior_hazard[last]) / (
            pooled_reached + self._strength[last]
        )
        tools = (ended[last:] + self._shrinkage * pooled) / (reached[last:] + self._shrinkage)
        return np.concatenate([special, tools])

    def cumulative(self, keys: Ints, x: Array) -> Array:
        """Cumulative hazard at ``x`` (any shape that broadcasts with ``keys``), linear within a bin."""
        x = np.maximum(x, 0.0)
        index = self.grid.indices(x)
        flat = keys * self.grid.bins + index
        return self._cumulative.take(flat) + self._slope.take(flat) * (x - self._edges.take(index))

    def ends_by(self, keys: Ints, x: Array, later: Array) -> Array:
        """Probability that a wait that has lasted ``x`` ends by ``later``: float64 of the shape of ``later``.

        Args:
            keys: int[n, 1].
            x: float64[n, 1].
            later: float64[n, m], not less than ``x``.
        """
        ends: Array = -np.expm1(self.cumulative(keys, x) - self.cumulative(keys, later))
        return ends

    def fresh(self, key: int, edges: Array) -> Array:
        """Probability that a wait that begins now ends between consecutive ``edges``."""
        survival = np.exp(-self.cumulative(np.array(key), edges))
        return survival[:-1] - survival[1:]

    def quantile(self, key: int, x: float, q: float) -> float:
        """The total length at which a wait that has lasted ``x`` has ended with probability ``q``."""
        target = float(self.cumulative(np.array(key), np.array(x))) - math.log1p(-q)
        index = max(int(np.searchsorted(self._cumulative[key], target, side="right")) - 1, 0)
        slope = float(self._slope[key, index])
        return float(self._edges[index]) + (target - float(self._cumulative[key, index])) / max(slope, 1e-12)

    def mean(self, key: int) -> float:
        """Mean of a fresh wait, cut off at the end of the grid."""
        survival = np.exp(-self._cumulative[key])
        return float(((survival[:-1] + survival[1:]) / 2 * self._widths[:-1]).sum())


SIZE_GRID: Final = LogGrid(low=1.0, per_octave=4, bins=84)
"""From 1 to 1.6 million tokens, in steps of 19 %."""


class SizeModel:
    """How large something is, by key: log-binned, so that a tail stays a tail, with exact means within the bins.

    Args:
        prior_tokens: size that is assumed, with the weight of one observation, before any was seen.
        half_life: observations of a key after which one counts half.
        shrinkage: observations of its own that a key needs to count as much as all keys together.
    """

    def __init__(self, prior_tokens: float, *, half_life: float = 1000.0, shrinkage: float = 20.0) -> None:
        self.grid = SIZE_GRID
        self._weights = _Weights(SIZE_GRID.bins, half_life, sums=True)
        self._shrinkage = shrinkage
        self._prior_index = SIZE_GRID.index(prior_tokens)
        edges = SIZE_GRID.edges
        self._centres = (edges[:-1] + edges[1:]) / 2
        self._prior_tokens = prior_tokens
        self.shares = np.zeros((0, SIZE_GRID.bins))
        self.means = np.zeros(0)
        self.sizes = self._centres

    def add(self, key: int, tokens: float) -> None:
        """Something of kind ``key`` had ``tokens``."""
        self._weights.add(key, self.grid.index(tokens), tokens)

    def refresh(self, keys: int) -> None:
        """Take in what was added. Then ``shares``: float64[keys, bins], the probability of each bin by key; ``sizes``:
        float64[bins], mean size within each bin; ``means``: float64[keys], mean size by key.
        """
        counts, sums = self._weights.counts(keys), self._weights.sums(keys)
        pooled, pooled_sums = counts.sum(axis=0), sums.sum(axis=0)
        self.sizes = np.where(pooled > 0, pooled_sums / np.maximum(pooled, 1e-12), self._centres)
        pooled[self._prior_index] += 1.0
        pooled /= pooled.sum()
        blend = counts + self._shrinkage * pooled
        self.shares = blend / blend.sum(axis=1, keepdims=True)
        self.means = self.shares @ self.sizes


class Share:
    """A forgetting mean of values by key, shrunk towards that of all keys and a prior."""

    def __init__(self, prior: float, keys: int, *, half_life: float = 200.0, strength: float = 4.0) -> None:
        self._growth = 2.0 ** (-1.0 / half_life)
        self._prior = prior
        self._strength = strength
        self._count = [0.0] * keys
        self._sum = [0.0] * keys

    def add(self, key: int, value: float) -> None:
        """One more value of ``key``."""
        self._count[key] = self._count[key] * self._growth + 1.0
        self._sum[key] = self._sum[key] * self._growth + value

    def means(self) -> Array:
        """float64[keys]: the mean of each key."""
        count, total = np.array(self._count), np.array(self._sum)
        pooled = (total.sum() + self._prior) / (count.sum() + 1.0)
        means: Array = (total + self._strength * pooled) / (count + self._strength)
        return means


class EvictionModel:
    """The share of a context that has gone from the caches when it is used again, by how long it lay idle.

    Caches drop what was used longest ago, so the share only rises with the idle time. Its classes are octaves. Those
    with few observations lean on a line through the others, from ``prior`` at no idle time at all; a longer wait than
    any seen counts as the longest seen. (Leaning on shorter waits alone would be a trap: where all wait for minutes and
    find nothing, a backlog taken for cached would let the waits look short, and so the backlog cached.)

    Args:
        half_life: observations of a class after which one counts half; short, since pressure on the caches moves.
    """

    _GRID: Final = LogGrid(low=1.0, per_octave=1, bins=12)
    _STRENGTH: Final = 3.0

    def __init__(self, prior: float = 0.02, *, half_life: float = 60.0) -> None:
        self._keep = 2.0 ** (-1.0 / half_life)
        self._prior = prior
        self._seen = [0.0] * self._GRID.bins
        self._gone = [0.0] * self._GRID.bins
        edges = self._GRID.edges
        self._centres = (edges[:-1] + edges[1:]) / 2
        self._share = np.full(self._GRID.bins, prior)

    def add(self, idle_s: float, gone: float) -> None:
        """Of a context that lay idle for ``idle_s``, the share ``gone`` was no longer cached."""
        at = self._GRID.index(idle_s)
        self._seen[at] = self._seen[at] * self._keep + 1.0
        self._gone[at] = self._gone[at] * self._keep + gone

    def refresh(self) -> None:
        """Take in what was added."""
        seen, gone = np.array(self._seen), np.array(self._gone)
        known = np.flatnonzero(seen >= 1.0)
        line = np.interp(np.arange(len(seen)), [-1, *known], [self._prior, *(gone[known] / seen[known])])
        self._share = np.maximum.accumulate((gone + self._STRENGTH * line) / (seen + self._STRENGTH))

    def by(self, idle_s: Array) -> Array:
        """Share that has gone after ``idle_s``."""
        share: Array = np.interp(idle_s, self._centres, self._share)
        return share

    def between(self, idle_s: Array, later_s: Array) -> Array:
        """Share of what is there after ``idle_s`` that has gone by ``later_s``."""
        now = self.by(idle_s)
        return np.maximum(self.by(later_s) - now, 0.0) / np.maximum(1.0 - now, 1e-6)


class Frequencies:
    """How often each of a few keys comes: forgetting counts."""

    def __init__(self, half_life: float = 1000.0) -> None:
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._raw: dict[int, float] = {}

    def add(self, key: int) -> None:
        """``key`` came once more."""
        self._raw[key] = self._raw.get(key, 0.0) + self._weight
        self._weight *= self._growth
        if self._weight > _RENORMALISE_AT:
            self._raw = {name: value / self._weight for name, value in self._raw.items()}
            self._weight = 1.0

    def frequencies(self) -> tuple[list[int], Array]:
        """Keys, and the probability of each; both empty before anything was seen."""
        keys = list(self._raw)
        values = np.array([self._raw[key] for key in keys])
        return keys, values / values.sum() if keys else values


class EndModel:
    """Whether a trajectory ends with a turn, by the turn's index (log bins), from all turns that did and did not."""

    _GRID: Final = LogGrid(low=1.0, per_octave=2, bins=24)

    def __init__(self, prior: float = 1 / 40, *, half_life: float = 4000.0) -> None:
        self._share = Share(prior, self._GRID.bins, half_life=half_life, strength=10.0)
        self.chance = self._share.means()

    def add(self, turn: int, *, ended: bool) -> None:
        """Turn ``turn`` (from 0) ended the trajectory, or did not."""
        self._share.add(self._GRID.index(turn + 1), float(ended))

    def refresh(self) -> None:
        """Take in what was added: then ``chance`` is float64[bins], the probability by bin of the turn."""
        self.chance = self._share.means()

    def bins(self, turns: Ints) -> NDArray[np.intp]:
        """The bins of turn indices."""
        return self._GRID.indices(np.asarray(turns, np.float64) + 1.0)


class Ratio:
    """A ratio of two sums that both fade with time, as in tokens over seconds.

    Args:
        prior: the ratio before anything was added, with the weight of ``prior_weight`` in the denominator.
        time_constant_s: after this long the influence of what was added has fallen to 1/e.
    """

    def __init__(self, prior: float, time_constant_s: float, prior_weight: float = 1.0) -> None:
        self._tau_s = time_constant_s
        self._below = prior_weight
        self._above = prior * prior_weight

    def add(self, above: float, below: float, elapsed_s: float) -> None:
        """Add to both sums what came in the last ``elapsed_s``; nothing fades while nothing comes."""
        if below <= 0:
            return
        keep = math.exp(-elapsed_s / self._tau_s)
        self._above = self._above * keep + above
        self._below = self._below * keep + below

    @property
    def value(self) -> float:
        """The ratio."""
        return self._above / self._below


def binned(index: Ints, weights: Array, bins: int) -> Array:
    """float64[bins], sums of ``weights`` by ``index``; zeros, and of the same type, where there is none."""
    return np.bincount(index, weights, bins).astype(np.float64)


def _at_or_after(counts: Array) -> Array:
    """Sums of ``counts`` from each bin to the last, along the last axis."""
    return np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
