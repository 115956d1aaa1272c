"""Training of a policy: imitation first, then practice (MaskablePPO), round by round.

A round is one rollout of all environments and the update that follows. After each a checkpoint holds the learner, what
the environments' states follow from and the random states, so that training that goes on from one comes to the very
weights that it would have come to without the stop.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.vec_env import VecEnv

from prorsa.control.learn.checkpoint import Progress, load, save
from prorsa.control.learn.env import DECISIONS, DISCOUNT, Demonstration, Observation, RoleAllocation
from prorsa.control.learn.episodes import Episode, Source
from prorsa.control.learn.export import SeenRange, export
from prorsa.control.learn.imitation import imitate
from prorsa.control.learn.vectors import MeanRewards, in_processes, in_this_process, on_ray
from prorsa.control.model import Model, load_model, save_model
from prorsa.control.policies.names import make_policy
from prorsa.errors import ConfigError

_NETWORK: Final = (64, 64)
_SETTINGS: Final[dict[str, Any]] = {
    "learning_rate": 2e-4,
    "n_epochs": 4,
    "batch_size": 128,
    "gae_lambda": 0.95,
    "clip_range": 0.15,
    "ent_coef": 0.003,
    "target_kl": 0.02,
}
_VALIDATION_DECISIONS: Final = 90
_VALIDATED, _COMPARED = 1, 2
"""Streams of the seed that runs are drawn from: for validation, and for the choice of whom to imitate."""
EXPERTS: Final = ("lookahead", "analytic")
"""Whom a training may imitate, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What a training is made of.

    Attributes:
        domain: what is practised on.
        experts: of these policies the one that does best on runs of the domain is imitated first; none for no warm
            start.
        shown: decisions of its.
        rounds: of practice, at most.
        budget_s: wall-clock seconds after which no further round begins; None for no limit.
        environments: that run side by side; each in a process of its own with ``processes``, in an actor with ``ray``.
        decisions: after which an episode is cut off.
        rollout: decisions of each environment in a round.
        validate_every: rounds between two validations.
        patience: validations without a better one after which training ends.
        validations: runs that a validation is made of.
    """

    domain: Source
    out: Path
    name: str = "learned"
    experts: tuple[str, ...] = EXPERTS
    shown: int = 24000
    epochs: int = 40
    rounds: int = 200
    budget_s: float | None = None
    environments: int = 2
    processes: bool = True
    ray: str | None = None
    decisions: int = DECISIONS
    rollout: int = 512
    validate_every: int = 5
    patience: int = 8
    validations: int = 12
    seed: int = 0
    tensorboard: Path | None = None
    resume: bool = False
    trained: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """How far training is, after a round or a part of the warm start.

    Attributes:
        done: share of the whole, by rounds or by the time that there is, whichever is further.
        left_s: seconds that are left at this pace; None while unknown.
    """

    stage: str
    done: float
    left_s: float | None
    text: str


Told = Callable[[Report], None]


def train(options: TrainingOptions, told: Told = lambda _: None) -> Model:
    """Train, and write the best policy so far to ``options.out`` whenever there is a better one.

    Raises:
        ConfigError: for numbers that make no training, or nothing to resume.
    """
    _check(options)
    environments = _environments(options)
    # The network is so small that threads only wait for one another: for minutes instead of a second, on busy cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _Training(options, environments, told).run()
    finally:
        torch.set_num_threads(threads)
        environments.close()


def _check(options: TrainingOptions) -> None:
    if min(options.environments, options.validate_every, options.validations) < 1 or options.rounds < 0:
        raise ConfigError("train: give at least 1 environment, 0 rounds, a validation every 1 round and 1 run for it")
    if options.experts and options.shown < options.environments:
        raise ConfigError(f"train: {options.shown} decisions to imitate are too few; give some thousands")


def _environments(options: TrainingOptions) -> VecEnv:
    count, domain, decisions = options.environments, options.domain, options.decisions
    if options.ray is not None:
        return MeanRewards(on_ray(count, domain, decisions, options.ray))
    return MeanRewards((in_processes if options.processes else in_this_process)(count, domain, decisions))


class _Training:
    def __init__(self, options: TrainingOptions, environments: VecEnv, told: Told) -> None:
        self._options, self._environments, self._told = options, environments, told
        self._seen = SeenRange()
        self._progress = Progress()
        self._began_s = time.monotonic()
        self._first_round = 0
        self._learner = _learner(options, environments)
        self._best: Model | None = None
        self._validation = Validation(options.domain, options.validations, options.seed)

    def run(self) -> Model:
        options = self._options
        if options.resume:
            checkpoint = load(options.out)
            self._learner = checkpoint.restore(self._environments)
            self._progress, self._seen = checkpoint.progress, checkpoint.seen
        else:
            self._warm_start()
        self._learner.set_logger(_logger(options.tensorboard))
        self._first_round = self._progress.rounds
        if self._progress.best_score is None:
            self._validate()
        while self._goes_on():
            self._round()
        return self._finish()

    def _goes_on(self) -> bool:
        options, progress = self._options, self._progress
        spent = options.budget_s is not None and time.monotonic() - self._began_s >= options.budget_s
        return progress.rounds < options.rounds and progress.without_better < options.patience and not spent

    def _warm_start(self) -> None:
        options, vector = self._options, self._environments
        if options.experts:
            self._progress.imitated = expert = self._best_expert()
            shown = _demonstrations(options, vector, expert)
            self._seen.see(shown.observations)
            same = imitate(self._learner, shown, epochs=options.epochs, seed=options.seed)
            self._tell("imitation", f"{len(shown.actions)} decisions shown, {same:.0%} decided alike")
        vector.seed(options.seed)

    def _best_expert(self) -> str:
        options = self._options
        if len(options.experts) == 1:
            return options.experts[0]
        runs = Validation(options.domain, options.validations, options.seed, _COMPARED)
        scores = {name: runs.score_of(name) for name in options.experts}
        said = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        self._tell("experts", f"by analytic's reward on {options.validations} runs: {said}")
        return max(scores, key=lambda name: scores[name])

    def _round(self) -> None:
        options, progress = self._options, self._progress
        watch = _Watch(self._seen)
        self._learner.learn(
            options.rollout * options.environments, callback=watch, reset_num_timesteps=progress.rounds == 0
        )
        progress.rounds += 1
        self._tell("practice", f"reward {watch.mean_reward / (1.0 - DISCOUNT):.3f}")
        if progress.rounds % options.validate_every == 0:
            self._validate()
        save(options.out, self._learner, self._environments, progress, self._seen)

    def _validate(self) -> None:
        score = self._validation.score(self._learner)
        progress = self._progress
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.without_better = score, 0
            self._write()
        else:
            progress.without_better += 1
        self._learner.logger.record("validation/by_analytic", score)
        self._tell("validation", f"{score:.4f} of analytic's reward, the best {progress.best_score:.4f}")

    def _write(self) -> None:
        options = self._options
        counts = {"rounds": self._progress.rounds, "decisions": self._learner.num_timesteps}
        trained = options.trained | {name: str(count) for name, count in counts.items()}
        if self._progress.imitated:
            trained["imitated"] = self._progress.imitated
        self._best = export(self._learner, self._seen, name=options.name, trained=trained)
        options.out.mkdir(parents=True, exist_ok=True)
        save_model(self._best, options.out / f"{options.name}.safetensors")

    def _finish(self) -> Model:
        options = self._options
        if self._best is None:
            return load_model(options.out / f"{options.name}.safetensors")
        return self._best

    def _tell(self, stage: str, text: str) -> None:
        options = self._options
        spent_s = time.monotonic() - self._began_s
        rounds = self._progress.rounds - self._first_round
        planned = max(options.rounds - self._first_round, 1)
        done = rounds / planned
        left_s = None if rounds == 0 else spent_s / rounds * (planned - rounds)
        if options.budget_s is not None:
            done = max(done, min(spent_s / options.budget_s, 1.0))
            rest_s = max(options.budget_s - spent_s, 0.0)
            left_s = rest_s if left_s is None else min(left_s, rest_s)
        self._told(Report(stage, done, left_s, f"round {self._progress.rounds}: {text}"))


def _demonstrations(options: TrainingOptions, vector: VecEnv, expert: str) -> Demonstration:
    # A vector's seeds take effect when it begins anew.
    vector.seed(options.seed)
    vector.reset()
    parts: list[Demonstration] = vector.env_method("demonstrate", expert, options.shown // options.environments)
    return Demonstration(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _logger(folder: Path | None) -> Logger:
    return configure(None, []) if folder is None else configure(str(folder), ["tensorboard"])


def _learner(options: TrainingOptions, environments: VecEnv) -> MaskablePPO:
    return MaskablePPO(
        "MlpPolicy",
        environments,
        n_steps=options.rollout,
        gamma=DISCOUNT,
        seed=options.seed,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": list(_NETWORK), "vf": list(_NETWORK)}},
        **_SETTINGS,
    )


class _Watch(BaseCallback):
    """What is seen and earned in a round."""

    def __init__(self, seen: SeenRange) -> None:
        super().__init__()
        self._seen = seen
        self._rewards: list[float] = []

    @property
    def mean_reward(self) -> float:
        return float(np.mean(self._rewards))

    def _on_step(self) -> bool:
        self._seen.see(self.locals["new_obs"])
        self._rewards.append(float(np.mean(self.locals["rewards"])))
        return True


class Validation:
    """Runs that are not practised on, the same each time, scored in relation to ``analytic``."""

    def __init__(self, domain: Source, runs: int, seed: int, stream: int = _VALIDATED) -> None:
        self._env = RoleAllocation(domain, _VALIDATION_DECISIONS)
        rng = np.random.default_rng((seed, stream))
        self._episodes = [domain.draw(rng) for _ in range(runs)]
        self._reference = self._rewards("analytic")

    def score(self, learner: MaskablePPO) -> float:
        """Geometric mean over the runs of the reward, the likeliest actions taken, by that of ``analytic``."""

        def choose(observation: Observation) -> int:
            masks = self._env.action_masks()
            return int(learner.predict(observation, action_masks=masks, deterministic=True)[0])

        return self._relative([self._play(episode, choose) for episode in self._episodes])

    def score_of(self, policy: str) -> float:
        """The same of a policy by its name."""
        return 1.0 if policy == "analytic" else self._relative(self._rewards(policy))

    def _rewards(self, name: str) -> list[float]:
        found = []
        for episode in self._episodes:
            policy = make_policy(name)
            found.append(self._play(episode, lambda _, policy=policy: self._env.order_of(policy)))  # type: ignore[misc]
        return found

    def _relative(self, rewards: list[float]) -> float:
        pairs = zip(rewards, self._reference, strict=True)
        return float(np.exp(np.mean([np.log(max(own, 1e-6) / max(other, 1e-6)) for own, other in pairs])))

    def _play(self, episode: Episode, choose: Callable[[Observation], int]) -> float:
        """Mean reward of a decision."""
        observation, _ = self._env.reset(seed=episode.seed, options={"episode": episode})
        rewards: list[float] = []
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = self._env.step(np.int64(choose(observation)))
            rewards.append(reward)
            over = terminated or truncated
        return float(np.mean(rewards))
