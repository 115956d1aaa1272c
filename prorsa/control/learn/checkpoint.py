"""Checkpoints of a training: what it takes to go on.

They are the trainer's own, hold pickled state and are never read from elsewhere; what is passed on is the policy file.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from prorsa.control.learn.export import SeenRange

_FOLDER: Final = "checkpoint"
_LEARNER: Final = "learner.zip"
_REST: Final = "rest.pickle"


@dataclass(slots=True)
class Progress:
    """How far a training is.

    Attributes:
        rounds: that have been practised.
        best_score: of the validations so far; None before the first.
        without_better: validations since that one.
    """

    rounds: int = 0
    best_score: float | None = None
    without_better: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that has been written."""

    folder: Path

    def restore(self, environments: VecEnv) -> tuple[MaskablePPO, Progress, SeenRange]:
        """The learner, going on in ``environments``, which get the states that they had."""
        rest: dict[str, Any] = pickle.loads((self.folder / _REST).read_bytes())  # noqa: S301 - the trainer's own
        learner = MaskablePPO.load(self.folder / _LEARNER, env=environments, device="cpu", force_reset=False)
        for index, snapshot in enumerate(rest["environments"]):
            environments.env_method("restore", snapshot, indices=index)
        torch.set_rng_state(rest["torch"])
        np.random.set_state(rest["numpy"])
        return learner, rest["progress"], rest["seen"]


def latest(out: Path) -> Checkpoint | None:
    """The newest checkpoint of the training in ``out``."""
    folder = out / _FOLDER
    return Checkpoint(folder) if (folder / _REST).exists() else None


def save(out: Path, learner: MaskablePPO, environments: VecEnv, progress: Progress, seen: SeenRange) -> None:
    """Write a checkpoint in the place of the last one."""
    folder = out / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    learner.save(folder / _LEARNER)
    rest = {
        "progress": progress,
        "seen": seen,
        "environments": environments.env_method("snapshot"),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
    }
    written = folder / f"{_REST}.new"
    written.write_bytes(pickle.dumps(rest))
    written.replace(folder / _REST)
