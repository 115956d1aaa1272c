"""Environments as actors on a Ray cluster."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from prorsa.runner.on_ray import RayExecutor

Maker = Callable[[], gym.Env[Any, Any]]


class _One:
    """One environment in an actor; it begins anew by itself, as stable-baselines3 expects of a vector's."""

    def __init__(self, make: Maker) -> None:
        self._vector = DummyVecEnv([make])

    def do(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the vector's method takes
        return getattr(self._vector, method)(*args, **kwargs)

    def attribute(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._vector, name)

    def seed_it(self, seed: int | None, options: Any) -> None:  # noqa: ANN401
        self._vector._seeds, self._vector._options = [seed], [options]  # noqa: SLF001 - as every vector of theirs


class RayVecEnv(VecEnv):
    """As stable-baselines3's ``SubprocVecEnv``, with an actor for each process.

    Args:
        makers: make the environments, each where it will be.
        address: of the cluster.

    Raises:
        InputError: without Ray.
        UnavailableError: if there is no Ray cluster at the address.
    """

    def __init__(self, makers: Sequence[Maker], address: str) -> None:
        self._cluster = RayExecutor(address)
        self._ray: Any = self._cluster.ray
        remote = self._ray.remote(num_cpus=1)(_One)
        self._actors = [remote.remote(make) for make in makers]
        self._waiting: list[Any] = []
        spaces = self._all("attribute", "observation_space")[0], self._all("attribute", "action_space")[0]
        super().__init__(len(makers), *spaces)

    def reset(self) -> NDArray[np.float32]:
        """Begin all anew, with the seeds that :meth:`seed` gave."""
        for actor, seed, options in zip(self._actors, self._seeds, self._options, strict=True):
            actor.seed_it.remote(seed, options)
        self._reset_seeds()
        self._reset_options()
        observations = self._all("do", "reset")
        self.reset_infos = [infos[0] for infos in self._all("attribute", "reset_infos")]
        return np.concatenate(observations)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Begin a step of each."""
        self._waiting = [
            actor.do.remote("step", np.array([action])) for actor, action in zip(self._actors, actions, strict=True)
        ]

    def step_wait(self) -> VecEnvStepReturn:
        """The results of the steps that were begun."""
        observations, rewards, dones, infos = zip(*self._ray.get(self._waiting), strict=True)
        return np.concatenate(observations), np.concatenate(rewards), np.concatenate(dones), [i[0] for i in infos]

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._cluster.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401 - as in the base class
        """An attribute of each environment."""
        return self._call(indices, "get_attr", attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ANN401
        """Set an attribute of each environment."""
        self._call(indices, "set_attr", attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:  # noqa: ANN401
        """Call a method of each environment."""
        return self._call(indices, "env_method", method_name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ANN401
        """Whether each has a wrapper."""
        return self._call(indices, "env_is_wrapped", wrapper_class)

    def _call(self, indices: Any, method: str, *args: Any, **kwargs: Any) -> list[Any]:  # noqa: ANN401
        chosen = [self._actors[index] for index in self._get_indices(indices)]
        answers = self._ray.get([actor.do.remote(method, *args, **kwargs) for actor in chosen])
        return [None if answer is None else answer[0] for answer in answers]

    def _all(self, call: str, *args: Any) -> list[Any]:  # noqa: ANN401
        return list(self._ray.get([getattr(actor, call).remote(*args) for actor in self._actors]))
