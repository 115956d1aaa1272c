"""Environments side by side: in this process, in processes of their own, or as actors on a Ray cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from prorsa.control.learn.env import DISCOUNT, RoleAllocation
from prorsa.control.learn.episodes import Source


class MeanRewards(VecEnvWrapper):
    """Scales rewards so that their discounted sum is a mean.

    The learner clips one gradient of both networks: sums of 1 / (1 - discount) decisions would leave nothing of the
    policy's part.
    """

    def reset(self) -> NDArray[np.float32]:
        """As the vector's."""
        observations = self.venv.reset()
        assert isinstance(observations, np.ndarray)
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        """The results of the steps that were begun."""
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, rewards * (1.0 - DISCOUNT), dones, infos


def in_this_process(count: int, domain: Source, decisions: int) -> VecEnv:
    """One after the other, here."""
    return DummyVecEnv(_makers(count, domain, decisions))


def in_processes(count: int, domain: Source, decisions: int) -> VecEnv:
    """A process each. They are forked from a clean server, since numba and torch have threads here."""
    return SubprocVecEnv(_makers(count, domain, decisions), start_method="forkserver")


def on_ray(count: int, domain: Source, decisions: int, address: str) -> VecEnv:
    """An actor each, on the cluster at ``address``.

    Raises:
        InputError: without Ray.
        UnavailableError: if there is no Ray cluster at the address.
    """
    from prorsa.control.learn.actors import RayVecEnv

    return RayVecEnv(_makers(count, domain, decisions), address)


def _makers(count: int, domain: Source, decisions: int) -> list[Callable[[], gym.Env[Any, Any]]]:
    return [partial(RoleAllocation, domain, decisions)] * count
