"""From a trained network to a policy file."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from torch import nn

from prorsa.control.actions import ACTIONS
from prorsa.control.model import Array, Card, Model
from prorsa.control.observation import FEATURES, VERSION


class SeenRange:
    """The ranges of the features over everything that was seen in training, and a sample to take percentiles of.

    Args:
        size: observations that are kept; once there are as many, every second goes and half as many are taken.
    """

    def __init__(self, size: int = 1 << 15) -> None:
        self._size = size
        self._every = 1
        self._count = 0
        self._kept: list[NDArray[np.float32]] = []

    def see(self, observations: Iterable[NDArray[np.float32]]) -> None:
        """Take some observations; those of a pool without a forecast say nothing of demand and are left out."""
        for observation in observations:
            if not observation[0]:
                continue
            self._count += 1
            if self._count % self._every == 0:
                self._kept.append(np.array(observation))
            if len(self._kept) >= self._size:
                self._kept, self._every = self._kept[::2], self._every * 2

    def percentiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The 0.1 and 99.9 percentiles of each feature."""
        kept = np.array(self._kept) if self._kept else np.zeros((1, len(FEATURES)))
        low, high = np.percentile(kept, (0.1, 99.9), axis=0)
        return tuple(map(float, low)), tuple(map(float, high))


def export(learner: MaskablePPO, seen: SeenRange, *, name: str, trained: dict[str, str]) -> Model:
    """The policy and value networks as plain arrays, with their card; its hash is computed when it is saved."""
    extractor = learner.policy.mlp_extractor
    low, high = seen.percentiles()
    card = Card(
        name=name,
        observation=VERSION,
        features=tuple(FEATURES),
        actions=ACTIONS,
        low=low,
        high=high,
        sha256="",
        trained=trained,
    )
    policy = (*_layers(extractor.policy_net), _layer(learner.policy.action_net))
    value = (*_layers(extractor.value_net), _layer(learner.policy.value_net))
    return Model(card, policy, value)


def _layers(stack: nn.Sequential) -> tuple[tuple[Array, Array], ...]:
    return tuple(_layer(module) for module in stack if isinstance(module, nn.Linear))


def _layer(module: nn.Module) -> tuple[Array, Array]:
    assert isinstance(module, nn.Linear)
    return module.weight.detach().cpu().numpy().copy(), module.bias.detach().cpu().numpy().copy()
