"""Training: imitation finds what was shown; early stopping; what a run writes and says."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from prorsa.control.actions import ACTIONS, STAY
from prorsa.control.learn.checkpoint import load
from prorsa.control.learn.env import Demonstration, RoleAllocation
from prorsa.control.learn.imitation import imitate
from prorsa.control.learn.training import TrainingOptions, train
from prorsa.control.model import load_model, tensors_of
from prorsa.control.observation import FEATURES
from prorsa.errors import ConfigError
from tests.learn.test_env import DOMAIN


def learner() -> MaskablePPO:
    return MaskablePPO("MlpPolicy", DummyVecEnv([lambda: RoleAllocation(DOMAIN)]), seed=3, device="cpu")


def toy(count: int, seed: int) -> Demonstration:
    """What is right is known: to prefill where the backlog is long, to decode where KV is full, else stay."""
    rng = np.random.default_rng(seed)
    seen = rng.random((count, len(FEATURES)), np.float32)
    names = list(FEATURES)
    backlog, kv = seen[:, names.index("backlog")], seen[:, names.index("kv_held")]
    right = np.where(backlog > 0.7, ACTIONS.index("prefill:one"), np.where(kv > 0.7, ACTIONS.index("decode:one"), STAY))
    return Demonstration(seen, np.ones((count, len(ACTIONS)), np.bool_), right.astype(np.int64), backlog)


def test_imitation_finds_the_rule_that_was_shown():
    practised = learner()
    assert imitate(practised, toy(3000, 0), epochs=60, seed=0) > 0.95
    new = toy(500, 1)
    done, _ = practised.predict(new.observations, deterministic=True)
    assert (done == new.actions).mean() > 0.9
    worth = practised.policy.predict_values(torch.as_tensor(new.observations)).detach().numpy().flatten()
    assert np.corrcoef(worth, new.worth)[0, 1] > 0.9


def options(out, **changes) -> TrainingOptions:
    fields = {
        "domain": DOMAIN,
        "out": out,
        "experts": ("analytic",),
        "shown": 60,
        "epochs": 2,
        "rounds": 4,
        "environments": 2,
        "processes": False,
        "validate_every": 2,
        "rollout": 16,
        "validations": 1,
        "seed": 5,
    }
    return TrainingOptions(**fields | changes)


def weights(out) -> dict[str, np.ndarray]:
    learner = MaskablePPO.load(io.BytesIO(load(out).learner))
    return {name: tensor.numpy() for name, tensor in learner.policy.state_dict().items()}


def test_resumed_training_equals_uninterrupted_training(tmp_path):
    # Episodes of 10 decisions end within rounds of 8, so that the stop comes in the middle of an episode.
    fields = {"patience": 100, "rollout": 8, "decisions": 10, "shown": 20}
    train(options(tmp_path / "whole", **fields))
    train(options(tmp_path / "parts", rounds=3, **fields))
    before = weights(tmp_path / "parts")
    train(options(tmp_path / "parts", resume=True, **fields))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert any((before[name] != parts[name]).any() for name in parts)
    for name, array in whole.items():
        assert_array_equal(array, parts[name], err_msg=name)
    policies = [load_model(tmp_path / name / "learned.safetensors") for name in ("whole", "parts")]
    assert policies[0].card.sha256 == policies[1].card.sha256


def test_training_writes_a_policy_and_says_how_far_it_is(tmp_path):
    told = []
    model = train(options(tmp_path, rounds=1, validate_every=1, tensorboard=tmp_path / "board"), told.append)
    written = load_model(tmp_path / "learned.safetensors")
    assert tensors_of(written).keys() == tensors_of(model).keys()
    assert written.card.low[0] == 1.0
    assert {report.stage for report in told} == {"imitation", "practice", "validation"}
    assert told[-1].done == 1.0
    assert list((tmp_path / "board").iterdir())


def test_the_expert_that_does_best_is_imitated_and_named(tmp_path):
    told = []
    model = train(options(tmp_path, experts=("static:1:3", "analytic"), rounds=0, validations=2), told.append)
    (said,) = [report.text for report in told if report.stage == "experts"]
    scores = dict(re.findall(r"(static:1:3|analytic) (\d\.\d+)", said))
    assert scores["analytic"] == "1.000"
    assert model.card.trained["imitated"] == max(scores, key=lambda name: float(scores[name]))


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint"):
        train(options(tmp_path, resume=True))
    (tmp_path / "checkpoint.pickle").write_bytes(b"half of")
    with pytest.raises(ConfigError, match="damaged"):
        train(options(tmp_path, resume=True))
    with pytest.raises(ConfigError, match="at least 1 environment"):
        train(replace(options(tmp_path), environments=0))


def test_training_stops_early_when_validation_gets_no_better(tmp_path):
    told = []
    train(options(tmp_path, experts=(), rounds=50, validate_every=1, patience=1), told.append)
    assert sum(report.stage == "practice" for report in told) < 50
