"""The Gymnasium environment ``prorsa/RoleAllocation-v0``: which workers of a simulated pool prefill, which decode.

A step is one decision of the controller and the simulated seconds up to the next one. The controller, its predictor,
its guards and its executor are the ones that run live; the environment only takes the policy's place.

- **Observation**: `prorsa.control.observation`, float32.
- **Action**: `prorsa.control.actions`; :meth:`RoleAllocation.action_masks` says what the guards allow now. An action
  that they do not allow is what it would be live: the guards' business, who let nothing or a part of it through.
- **Reward**: output tokens since the last step, by those that a pool without queues, flips or lost caches would have
  put out (total work / workers). In an asynchronous run the sum of rewards over a fixed time is the throughput over
  that time, whose optimum is the optimum of ``steady_output_tokens_per_s``. In a synchronous run a step of the rollout
  always puts out the same tokens, so that the mean reward over whole steps is inverse to their mean time: the same sum
  has its optimum where ``step_s`` has it. Nothing is added for flips: what they cost is in the tokens.
- **End**: ``terminated`` with the run, ``truncated`` after ``decisions`` steps.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prorsa.clock import nanoseconds
from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.bound import work_s
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.actions import ACTIONS, ONLY_STAY, STAY, action_mask, shift_of
from prorsa.control.controller import Controller
from prorsa.control.learn.episodes import Episode, Source, practice
from prorsa.control.observation import FEATURES, observe
from prorsa.control.plan import Pool
from prorsa.control.policies.base import Policy
from prorsa.control.policies.names import make_policy
from prorsa.control.policies.ordered import Ordered
from prorsa.control.solver import Bounds
from prorsa.driving import Driver
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import profile_of
from prorsa.simulate import make_simulation

Observation = NDArray[np.float32]

DECISIONS: Final = 240
"""Decisions of an episode: 20 minutes of a run."""
_APPROACH_TICK_S: Final = 30.0
"""Time between two forecasts on the way to where an episode begins; a forecast there only keeps the series going."""

DISCOUNT: Final = 0.98
"""Of a decision: a reward four minutes ahead counts for a third; flips pay or do not within that time."""

_WANDERING: Final = 0.1
"""Share of a demonstration's moves that are made at random."""


class Demonstration(NamedTuple):
    """What an expert did: float32[N, features], bool[N, actions], int64[N], and what came of it.

    ``worth``: float32[N], mean reward from the decision on, discounted by :data:`DISCOUNT`.
    """

    observations: NDArray[np.float32]
    masks: NDArray[np.bool_]
    actions: NDArray[np.int64]
    worth: NDArray[np.float32]


class Snapshot(NamedTuple):
    """An episode, the actions taken in it so far, and the state of the generator that the next episodes come from."""

    episode: Episode
    actions: tuple[int, ...]
    random: Mapping[str, Any]


class RoleAllocation(gym.Env[Observation, np.int64]):
    """One pool at a time, drawn from a domain at each reset.

    Args:
        domain: what episodes are drawn from; None for :func:`~prorsa.control.learn.episodes.practice`.
        decisions: after how many steps an episode is cut off.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - declared so by gymnasium

    def __init__(self, domain: Source | None = None, decisions: int = DECISIONS) -> None:
        self.observation_space = gym.spaces.Box(0.0, 4.0, (len(FEATURES),), np.float32)
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self._domain = domain or practice()
        self._decisions = decisions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw an episode, or take the one that ``options`` holds as ``episode``, and go to its first decision."""
        super().reset(seed=seed)
        episode = (options or {}).get("episode") or self._domain.draw(self.np_random)
        self._start(episode)
        return self._observe(), {"episode": episode}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide, and simulate up to the next decision."""
        driver, simulation = self._driver, self._driver.simulation
        tokens, began_s = simulation.output_tokens, simulation.now_s
        self._policy.shift = shift_of(int(action), self._pool().parallel_flips)
        driver.tick()
        driver.advance()
        self._actions.append(int(action))
        expected = self._limit_tokens_per_s * (driver.due_s - began_s)
        reward = (simulation.output_tokens - tokens) / expected
        done = simulation.done
        info = {"report": simulation.report()} if done else {}
        return self._observe(), reward, done, not done and len(self._actions) >= self._decisions, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions the guards would carry out in full at the decision that is due."""
        bounds = self._bounds()
        return ONLY_STAY.copy() if bounds is None else action_mask(self._pool(), bounds)

    def order_of(self, policy: Policy) -> int:
        """The action that comes nearest to what ``policy`` wants at the decision that is due, of those allowed."""
        if self._bounds() is None:
            return STAY
        context = self._driver.controller.context(self._due_ns)
        wanted = policy.decide(context).split.prefill - context.current.prefill
        shifts = [shift_of(action, context.parallel_flips) for action in range(len(ACTIONS))]
        # Of those in its direction the largest that does not overshoot: a guard that masks it says wait.
        allowed = self.action_masks()
        within = [
            a for a, shift in enumerate(shifts) if allowed[a] and shift * wanted > 0 and abs(shift) <= abs(wanted)
        ]
        return max(within, key=lambda action: abs(shifts[action]), default=STAY)

    def demonstrate(self, expert: str, decisions: int) -> Demonstration:
        """``decisions`` of the policy ``expert``, from the states that they lead to.

        Some moves are made at random instead, so that what it does in states that it avoids is seen too.
        """
        seen, masks, actions, worth = [], [], [], []
        rewards: list[float] = []
        rng = self.np_random
        observation, _ = self.reset()
        policy = make_policy(expert)
        for _ in range(decisions):
            mask, action = self.action_masks(), self.order_of(policy)
            seen.append(observation)
            masks.append(mask)
            actions.append(action)
            made = rng.choice(np.flatnonzero(mask)) if rng.random() < _WANDERING else action
            observation, reward, done, cut, _ = self.step(np.int64(made))
            rewards.append(reward)
            if done or cut:
                worth += _worth(rewards, done)
                rewards = []
                observation, _ = self.reset()
                policy = make_policy(expert)
        worth += _worth(rewards, over=False)
        return Demonstration(np.array(seen), np.array(masks), np.array(actions), np.array(worth, np.float32))

    def snapshot(self) -> Snapshot:
        """What determines the state that it is in, to go on from with :meth:`restore`."""
        return Snapshot(self._episode, tuple(self._actions), self.np_random.bit_generator.state)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where :meth:`snapshot` was taken: the episode runs again up to there, to the same last digit."""
        self._start(snapshot.episode)
        self._observe()
        for action in snapshot.actions:
            self.step(np.int64(action))
        self.np_random.bit_generator.state = snapshot.random

    def _start(self, episode: Episode) -> None:
        plan = episode.plan()
        workload, profile = episode.workload(), profile_of(plan)
        self._policy = Ordered()
        controller = Controller(plan.control, Predictor(ForecastConfig()), self._policy)
        # Whatever workers report between two decisions, a decision goes by the last report before it.
        simulation = make_simulation(plan, workload, report_s=round(plan.control.decide_s))
        self._driver = Driver(simulation, controller, _APPROACH_TICK_S)
        self._approach(episode.ended, plan.control.tick_s)
        self._limit_tokens_per_s = _limit_tokens_per_s(profile, workload, episode.scenario.workers)
        self._episode = episode
        self._actions: list[int] = []
        self._driver.advance()

    def _approach(self, ended: int, tick_s: float) -> None:
        """Hold the roles until so many trajectories have ended; from then on a tick is a decision."""
        driver = self._driver
        while driver.simulation.ended < ended and not driver.simulation.done:
            driver.advance()
            driver.tick()
        driver.ticks = math.floor(driver.simulation.now_s / tick_s)
        driver.tick_s = tick_s

    def _observe(self) -> Observation:
        """At the decision that is due, after whose forecast nothing changes before it is made."""
        controller = self._driver.controller
        controller.look(self._due_ns)
        if self._bounds() is None:
            return np.zeros(len(FEATURES), np.float32)
        return observe(controller.context(self._due_ns))

    def _bounds(self) -> Bounds | None:
        controller = self._driver.controller
        return controller.overrides.bounds(controller.registry)

    def _pool(self) -> Pool:
        return self._driver.controller.pool(self._due_ns)

    @property
    def _due_ns(self) -> int:
        return nanoseconds(self._driver.due_s)


def _worth(rewards: list[float], over: bool) -> list[float]:
    """Discounted mean rewards from each decision on; a run that is not over goes on with the mean of its rewards."""
    ahead = 0.0 if over or not rewards else float(np.mean(rewards))
    found = []
    for reward in reversed(rewards):
        ahead = (1.0 - DISCOUNT) * reward + DISCOUNT * ahead
        found.append(ahead)
    return found[::-1]


def _limit_tokens_per_s(profile: Profile, workload: Workload, workers: int) -> float:
    """Output of a pool that only does the work there is, each token once, in steps as full as they can be."""
    return float(workload.output_tokens.sum() / (work_s(profile, workload, profile).sum() / workers))
