"""The time axis of a forecast."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_COARSE_S: Final = (
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    15.0,
    20.0,
    25.0,
    30.0,
    40.0,
    50.0,
    60.0,
    90.0,
    120.0,
)


class Steps:
    """The time axis: coarse edges at which trajectories are evaluated, and bins of one second.

    Args:
        horizons_s: horizons; all become edges. Bins reach to the longest.
    """

    def __init__(self, horizons_s: tuple[float, ...]) -> None:
        self.horizons_s: Array = np.array(horizons_s)
        longest = int(np.ceil(max(horizons_s)))
        coarse = [t for t in _COARSE_S if t < longest]
        self.edges_s = np.array(sorted({*coarse, *horizons_s, float(longest)}))
        self.bins = longest
        self.ends_s = np.arange(1, longest + 1, dtype=np.float64)
        self.middles_s = self.ends_s - 0.5
        self.rounded_s = np.concatenate(([0.0], np.arange(longest) + 0.5))
        """Edges that round a duration to whole seconds, so that sums of durations are not biased."""
        self.at = np.searchsorted(self.edges_s, self.horizons_s)
        """Index of each horizon among the edges."""
        self.bin_at = np.minimum(np.ceil(self.horizons_s).astype(np.intp), longest) - 1
        """Index of the bin that each horizon ends with."""
        self.spread = self._make_spread()
        """float64[edges, K], the share of what lies between an edge and the one before that each bin has."""

    def _make_spread(self) -> Array:
        begins = np.concatenate(([0.0], self.edges_s[:-1]))
        first, last = self.ends_s - 1.0, self.ends_s
        overlap = np.minimum(self.edges_s[:, None], last) - np.maximum(begins[:, None], first)
        spread: Array = np.maximum(overlap, 0.0) / (self.edges_s - begins)[:, None]
        return spread

    def to_bins(self, between: Array) -> Array:
        """Amounts between edges (last axis) as amounts a bin."""
        amounts: Array = between @ self.spread
        return amounts
