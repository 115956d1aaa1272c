"""How long waits take that begin now, or later, in whole seconds."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.flow import FIRST, WAITING
from prorsa.forecast.generations import Generations
from prorsa.forecast.learn import Learner
from prorsa.forecast.steps import Steps
from prorsa.forecast.tables import mixed_ends

Array = NDArray[np.float64]

_HEADS: Final = np.array([0, FIRST, FIRST + 1, WAITING])
"""The first of the classes of requests whose answers are of a length: those from one on to the next."""
_SCALE: Final = (np.searchsorted(_HEADS, np.arange(WAITING + 1), side="right") - 1).astype(np.int32)

_ALONE: Final = np.ones((1, 1))


class FreshWaits:
    """Distributions over the seconds of the time axis, of what has not begun yet; by the learner's present tables."""

    def __init__(self, steps: Steps, learner: Learner) -> None:
        self._steps, self._learner = steps, learner

    def of(self, key: int) -> Array:
        """float64[K]: a wait."""
        ends: Array = self.mixed(np.array([key], np.int32), _ALONE, self._steps.rounded_s)[0]
        return ends

    def by_class(self, keys: list[int]) -> Array:
        """float64[K]: a wait of those that are kept by workload class, as these are dispatched."""
        weights = self._learner.classes[None]
        ends: Array = self.mixed(np.array(keys, np.int32), weights, self._steps.rounded_s)[0]
        return ends

    def gaps(self, of: Generations) -> Array:
        """float64[C, K]: the tools of each class of requests."""
        x = self._steps.rounded_s / of.slower[_HEADS][:, None]
        return self.mixed(self._learner.keys.gap_key, of.actions, x, _SCALE)

    def outputs(self, of: Generations, put_out: Array) -> Array:
        """float64[C, K]: answers of each class, where so many tokens are put out by each second (float64[C, K + 1])."""
        x = put_out[_HEADS] / np.maximum(of.length[_HEADS], 1e-9)[:, None]
        return self.mixed(self._learner.keys.output_key, of.actions, x, _SCALE)

    def mixed(self, keys: NDArray[np.int32], weights: Array, x: Array, scale: NDArray[np.int32] | None = None) -> Array:
        """float64[mixtures, K]: waits of several keys by their weights that end between consecutive ``x``; of several
        rows of these, those of each mixture's ``scale``.
        """
        tables = self._learner.waits.tables
        if scale is None:
            x, scale = x[None], np.zeros(len(weights), np.int32)
        ends: Array = mixed_ends(tables.survival, tables.slope, tables.edges, keys, weights, x, scale)
        return ends
