"""Small models with random weights, and with outputs that are given."""

import numpy as np

from prorsa.control.actions import ACTIONS
from prorsa.control.model import Card, Model
from prorsa.control.observation import FEATURES, VERSION

SIZE = len(FEATURES)


def card(**changes) -> Card:
    fields = {
        "name": "test",
        "observation": VERSION,
        "features": tuple(FEATURES),
        "actions": ACTIONS,
        "low": (0.0,) * SIZE,
        "high": (1.0,) * SIZE,
        "sha256": "",
    }
    return Card(**fields | changes)


def random_model(seed: int = 0, hidden: int = 8, **changes) -> Model:
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int):
        return rng.normal(size=(outputs, inputs)).astype(np.float32), rng.normal(size=outputs).astype(np.float32)

    return Model(
        card(**changes),
        (layer(SIZE, hidden), layer(hidden, len(ACTIONS))),
        (layer(SIZE, hidden), layer(hidden, 1)),
    )


def always(action: int, **changes) -> Model:
    """Prefers one action whatever it sees."""
    bias = np.zeros(len(ACTIONS), np.float32)
    bias[action] = 5.0
    zeros = np.zeros((len(ACTIONS), SIZE), np.float32)
    return Model(card(**changes), ((zeros, bias),), ((np.zeros((1, SIZE), np.float32), np.zeros(1, np.float32)),))
