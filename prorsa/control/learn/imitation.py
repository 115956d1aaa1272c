"""Warm start: a network learns to do what experts do, before it learns what pays."""

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from torch.nn.functional import cross_entropy, mse_loss

from prorsa.control.actions import ACTIONS
from prorsa.control.learn.env import Demonstration

_BATCH: Final = 256
_LEARNING_RATE: Final = 1e-3
_FORBIDDEN: Final = -1e8
_RARE_WEIGHT: Final = 0.5
"""Power of the inverse frequency by which an action counts: nearly all decisions are to stay, and a network that always
stayed would be right most of the time."""


def imitate(
    learner: MaskablePPO,
    shown: Demonstration,
    *,
    epochs: int,
    seed: int,
    told: Callable[[float], None] = lambda _: None,
) -> float:
    """Fit the policy to what was shown, and the value network to what came of it.

    Practice that began with a value network that knows nothing would soon spoil the policy that it starts from.

    Returns:
        The share of decisions in which the policy then does the same.
    """
    optimiser = torch.optim.Adam(learner.policy.parameters(), lr=_LEARNING_RATE)
    rng = np.random.default_rng(seed)
    weights = _weights(shown.actions)
    for epoch in range(epochs):
        order = rng.permutation(len(shown.actions))
        for begin in range(0, len(order), _BATCH):
            some = order[begin : begin + _BATCH]
            loss = cross_entropy(_logits(learner, shown, some), torch.as_tensor(shown.actions[some]), weight=weights)
            loss = loss + _value_loss(learner, shown, some)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        told((epoch + 1) / epochs)
    with torch.no_grad():
        chosen = _logits(learner, shown, np.arange(len(shown.actions))).argmax(1).numpy()
    return float((chosen == shown.actions).mean())


def _weights(actions: np.ndarray) -> torch.Tensor:
    counts = np.bincount(actions, minlength=len(ACTIONS)).astype(np.float64)
    return torch.as_tensor(np.maximum(counts, 1.0) ** -_RARE_WEIGHT, dtype=torch.float32)


def _value_loss(learner: MaskablePPO, shown: Demonstration, some: np.ndarray) -> torch.Tensor:
    values = learner.policy.predict_values(torch.as_tensor(shown.observations[some])).flatten()
    return mse_loss(values, torch.as_tensor(shown.worth[some]))


def _logits(learner: MaskablePPO, shown: Demonstration, some: np.ndarray) -> torch.Tensor:
    observations = torch.as_tensor(shown.observations[some])
    latent, _ = learner.policy.mlp_extractor(learner.policy.extract_features(observations))
    logits: torch.Tensor = learner.policy.action_net(latent)
    return logits.masked_fill(~torch.as_tensor(shown.masks[some]), _FORBIDDEN)
