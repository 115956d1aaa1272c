"""Online models of durations, sizes and what comes next: O(1) an observation, vectorised to ask.

All of them forget: an observation's weight halves after as many further ones of its key as the model's half-life says.
With few observations of a key they fall back on those of its group, and from there on a stated prior.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.tables import hazard_tables, remember, size_tables

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
        self._growth = np.full(16, 2.0 ** (1.0 / half_life))
        self._half_life = half_life
        self.raw = np.zeros((16, bins))
        self.raw_sums = np.zeros((16, bins)) if sums else np.zeros((0, bins))
        self._sums = sums
        self._weight = np.ones(16)

    def add(self, key: int, index: int, value: float = 0.0) -> None:
        if key >= len(self._weight):
            self.reserve(key + 1)
        weight = float(self._weight[key])
        self.raw[key, index] += weight
        if self._sums:
            self.raw_sums[key, index] += weight * value
        weight *= float(self._growth[key])
        if weight > _RENORMALISE_AT:
            self.raw[key] /= weight
            if self._sums:
                self.raw_sums[key] /= weight
            weight = 1.0
        self._weight[key] = weight

    def scale(self, keys: int) -> Array:
        """float64[keys]: times ``raw``, observations of which the newest counts 1."""
        self.reserve(keys)
        scale: Array = self._growth[:keys] / self._weight[:keys]
        return scale

    def remember(self, going_on: Array, lives: float) -> None:
        """From now on let no key's half-life be below ``lives`` times what goes on of it: float64[keys, any]."""
        keys = len(going_on)
        self.reserve(keys)
        remember(self._growth[:keys], going_on, self._half_life, lives)

    def reserve(self, keys: int) -> None:
        """Make room for so many keys."""
        while keys > len(self._weight):
            self.raw = np.concatenate([self.raw, np.zeros_like(self.raw)])
            self.raw_sums = np.concatenate([self.raw_sums, np.zeros_like(self.raw_sums)])
            self._weight = np.concatenate([self._weight, np.ones_like(self._weight)])
            self._growth = np.concatenate([self._growth, np.full_like(self._growth, 2.0 ** (1.0 / self._half_life))])


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


DURATION_GRID: Final = LogGrid(low=2.0**-5, per_octave=8, bins=176)
"""From 31 ms (or 1/32 token) to 2^16.9, in steps of 9 %."""


class HazardTables(NamedTuple):
    """A hazard model as compiled loops read it: by key and bin the cumulative hazard and the survival where a bin
    begins, and the hazard's slope in it; and the bins' edges.
    """

    cumulative: Array
    survival: Array
    slope: Array
    edges: Array


_LIVES: Final = 100.0
"""Memory of a hazard in mean lengths of a wait, nearly: with m of them a hazard comes out about 1/m too low."""


class HazardModel:
    """How much longer something lasts that has lasted for ``x``, by key, from ended *and ongoing* waits.

    The hazard of each log bin is the Kaplan–Meier estimate: ends in the bin over waits that reached it, where ongoing
    waits count as reached up to where they are (half in their own bin, as actuaries do). Without these, early in a run
    only short waits would have been seen. A key's hazard is shrunk towards that of its kind, and this towards the
    kind's prior, bin by bin; so the far tail, where nothing was seen, is the prior's power law. What has ended is
    forgotten, what is under way is not: if the first went within a few waits' length, long waits would have outlived
    those that began with them, and seem longer than they are. So a key remembers many times what is under way of it.

    Args:
        priors: by kind; the first keys are the kinds themselves, and others are of the last kind unless told otherwise.
        half_life: ended waits of a key after which an observation counts half, or ``_LIVES`` times those under way.
        shrinkage: how many waits of its own a key needs to count as much as its kind.
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
        self._prior_hazard = np.array([prior.bin_hazard(self._edges) for prior in priors])
        self._prior_step = -np.log1p(-self._prior_hazard)
        self._strength = np.array([prior.strength for prior in priors])
        self._shrinkage = shrinkage
        self._ended = _Weights(grid.bins, half_life)
        self.means = np.zeros(0)
        nothing = np.zeros((0, grid.bins))
        self.tables = HazardTables(nothing, nothing, nothing, self._edges)

    def add(self, key: int, x: float) -> None:
        """A wait of kind ``key`` has ended after ``x``."""
        self._ended.add(key, self.grid.index(x))

    def expect(self, key: int, counts: Array) -> None:
        """Take ``counts``, float64[bins], for waits that have ended."""
        self._ended.reserve(key + 1)
        self._ended.raw[key] += counts

    def refresh(self, keys: int, ongoing: Array, kinds: NDArray[np.int32] | None = None) -> None:
        """Take in what has ended, and the waits under way, before asking for ``keys`` keys.

        Args:
            ongoing: float64[keys, bins], the number of waits under way by where they are now.
            kinds: int32[keys], the kind of each key.
        """
        if kinds is None:
            kinds = np.minimum(np.arange(keys), len(self._strength) - 1).astype(np.int32)
        scale = self._ended.scale(keys)
        self._ended.remember(ongoing, _LIVES)
        cumulative, survival, slope, self.means = hazard_tables(
            self._ended.raw[:keys],
            scale,
            ongoing,
            kinds,
            self._prior_hazard,
            self._prior_step,
            self._strength,
            self._shrinkage,
            self._widths,
        )
        self.tables = HazardTables(cumulative, survival, slope, self._edges)

    def counts(self, keys: Ints, x: Array) -> Array:
        """float64[max key + 1, bins], how many of the waits at ``x`` are in each bin: for :meth:`refresh`."""
        out = np.zeros((int(keys.max(initial=-1)) + 1, self.grid.bins))
        np.add.at(out, (keys, self.grid.indices(x)), 1.0)
        return out

    def cumulative(self, keys: Ints, x: Array) -> Array:
        """Cumulative hazard at ``x`` (any shape that broadcasts with ``keys``), linear within a bin."""
        x = np.maximum(x, 0.0)
        index = self.grid.indices(x)
        tables = self.tables
        return tables.cumulative[keys, index] + tables.slope[keys, index] * (x - self._edges.take(index))

    def ends_by(self, keys: Ints, x: Array, later: Array) -> Array:
        """Probability that a wait that has lasted ``x`` ends by ``later``: float64 of the shape of ``later``.

        Args:
            keys: int[n, 1].
            x: float64[n, 1].
            later: float64[n, m], not less than ``x``.
        """
        ends: Array = -np.expm1(self.cumulative(keys, x) - self.cumulative(keys, later))
        return ends

    def quantile(self, key: int, x: float, q: float) -> float:
        """The total length at which a wait that has lasted ``x`` has ended with probability ``q``."""
        cumulative, slope = self.tables.cumulative[key], self.tables.slope[key]
        target = float(self.cumulative(np.array(key), np.array(x))) - math.log1p(-q)
        index = max(int(np.searchsorted(cumulative, target, side="right")) - 1, 0)
        return float(self._edges[index]) + (target - float(cumulative[index])) / max(float(slope[index]), 1e-12)

    def mean(self, key: int) -> float:
        """Mean of a fresh wait, cut off at the end of the grid."""
        return float(self.means[key])


SIZE_GRID: Final = LogGrid(low=1.0, per_octave=4, bins=84)
"""From 1 to 1.6 million tokens, in steps of 19 %."""


class SizeModel:
    """How large something is, by key: log-binned, so that a tail stays a tail, with exact means within the bins.

    Args:
        prior_tokens: size that is assumed, with the weight of one observation, before any was seen.
        half_life: observations of a key after which one counts half.
        shrinkage: observations of its own that a key (a group) needs to count as much as its group (all).
    """

    def __init__(self, prior_tokens: float, *, half_life: float = 1000.0, shrinkage: float = 20.0) -> None:
        self.grid = SIZE_GRID
        self._weights = _Weights(SIZE_GRID.bins, half_life, sums=True)
        self._shrinkage = shrinkage
        self._prior_index = SIZE_GRID.index(prior_tokens)
        edges = SIZE_GRID.edges
        self._centres = (edges[:-1] + edges[1:]) / 2
        self.shares = np.zeros((0, SIZE_GRID.bins))
        self.means = np.zeros(0)
        self.sizes = self._centres

    def add(self, key: int, tokens: float) -> None:
        """Something of kind ``key`` had ``tokens``."""
        self._weights.add(key, self.grid.index(tokens), tokens)

    def expect(self, key: int, counts: Array, sums: Array) -> None:
        """Take these for observations, by bin (float64[bins] each)."""
        self._weights.reserve(key + 1)
        self._weights.raw[key] += counts
        self._weights.raw_sums[key] += sums

    def refresh(self, keys: int, groups: NDArray[np.int32] | None = None) -> None:
        """Take in what was added. Then ``shares``: float64[keys, bins], the probability of each bin by key; ``sizes``:
        float64[bins], mean size within each bin; ``means``: float64[keys], mean size by key.

        Args:
            groups: int32[keys], towards which keys are shrunk; by default each is its own.
        """
        weights = self._weights
        scale = weights.scale(keys)
        self.shares, self.means, self.sizes = size_tables(
            weights.raw[:keys],
            weights.raw_sums[:keys],
            scale,
            np.arange(keys, dtype=np.int32) if groups is None else groups,
            self._shrinkage,
            self._prior_index,
            self._centres,
        )


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


class Recent:
    """A ratio of two sums that remembers so much of the denominator: the busier it is, the faster it follows.

    Args:
        prior: the ratio before anything was added, with the weight of ``prior_weight`` in the denominator.
        memory: when so much has been added to the denominator, what was before has faded to 1/e.
    """

    def __init__(self, prior: float, memory: float, prior_weight: float = 1.0) -> None:
        self._memory = memory
        self._below = prior_weight
        self._above = prior * prior_weight

    def add(self, above: float, below: float) -> None:
        """Add to both sums."""
        keep = math.exp(-below / self._memory)
        self._above = self._above * keep + above
        self._below = self._below * keep + below

    @property
    def value(self) -> float:
        """The ratio."""
        return self._above / self._below
