"""Checkpoints of a training: what it takes to go on, to the same weights as without a stop.

They are the trainer's own, hold pickled state and are never read from elsewhere; what is passed on is the policy file.
"""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from prorsa.control.learn.export import SeenRange
from prorsa.errors import ConfigError

_FILE: Final = "checkpoint.pickle"


@dataclass(slots=True)
class Progress:
    """How far a training is.

    Attributes:
        rounds: that have been practised.
        best_score: of the validations so far; None before the first.
        without_better: validations since that one.
        imitated: the policy that the warm start imitated; empty for none.
    """

    rounds: int = 0
    best_score: float | None = None
    without_better: int = 0
    imitated: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a training was when it was saved."""

    learner: bytes
    progress: Progress
    seen: SeenRange
    environments: list[Any]
    torch_random: torch.Tensor
    numpy_random: Any

    def restore(self, environments: VecEnv) -> MaskablePPO:
        """The learner, going on in ``environments``, which get the states that they had.

        Raises:
            ConfigError: if there are more or fewer environments than there were.
        """
        if len(self.environments) != environments.num_envs:
            raise ConfigError(
                f"--resume: that training had {len(self.environments)} environments, not {environments.num_envs}; "
                f"give --environments {len(self.environments)}"
            )
        learner = MaskablePPO.load(io.BytesIO(self.learner), env=environments, device="cpu", force_reset=False)
        for index, snapshot in enumerate(self.environments):
            environments.env_method("restore", snapshot, indices=index)
        torch.set_rng_state(self.torch_random)
        np.random.set_state(self.numpy_random)
        return learner


def load(out: Path) -> Checkpoint:
    """The checkpoint of the training in ``out``.

    Raises:
        ConfigError: if there is none, or it cannot be read.
    """
    path = out / _FILE
    if not path.exists():
        raise ConfigError(f"--resume: no checkpoint in {out}; leave it out to begin")
    try:
        found = pickle.loads(path.read_bytes())  # noqa: S301 - the trainer's own
    except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
        raise ConfigError(f"--resume: {path} is damaged or of another version ({error}); begin anew") from error
    assert isinstance(found, Checkpoint)
    return found


def save(out: Path, learner: MaskablePPO, environments: VecEnv, progress: Progress, seen: SeenRange) -> None:
    """Write a checkpoint in the place of the last one, which is there until the new one is whole."""
    buffer = io.BytesIO()
    learner.save(buffer)
    checkpoint = Checkpoint(
        learner=buffer.getvalue(),
        progress=progress,
        seen=seen,
        environments=environments.env_method("snapshot"),
        torch_random=torch.get_rng_state(),
        numpy_random=np.random.get_state(),
    )
    out.mkdir(parents=True, exist_ok=True)
    written = out / f"{_FILE}.new"
    written.write_bytes(pickle.dumps(checkpoint))
    written.replace(out / _FILE)
