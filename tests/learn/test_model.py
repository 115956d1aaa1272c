"""Policy files: what was saved comes back, what is not whole or not for this Prorsa is refused in one line."""

import json
import pickle
import struct

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv

from prorsa.control.learn.env import RoleAllocation
from prorsa.control.learn.export import SeenRange, export
from prorsa.control.model import load_model, save_model, tensors_of
from prorsa.control.policies.names import make_policy
from prorsa.errors import ConfigError
from tests.learn.models import SIZE, random_model
from tests.learn.test_env import DOMAIN


def refused(path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_model(random_model(), path)
    return path


def test_what_was_saved_comes_back(file):
    model, again = random_model(), load_model(file)
    for name, tensor in tensors_of(model).items():
        assert_array_equal(tensors_of(again)[name], tensor)
    seen = np.random.default_rng(1).random(SIZE, np.float32)
    assert_array_equal(model.logits(seen), again.logits(seen))
    assert model.worth(seen) == again.worth(seen)
    assert make_policy(f"learned:{file}").name == f"learned:{file}"


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "none.safetensors")
    with pytest.raises(ConfigError, match="no such file"):
        make_policy(f"learned:{tmp_path}/none.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(file, keep):
    file.write_bytes(file.read_bytes()[:keep])
    assert "not a whole safetensors file" in refused(file)


def test_a_changed_weight_is_found(file):
    data = bytearray(file.read_bytes())
    data[-2] ^= 0x10
    file.write_bytes(data)
    assert "not those that its card was written for" in refused(file)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = tmp_path / "policy.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    assert "not a whole safetensors file" in refused(path)
    assert not (tmp_path / "sprung").exists()


def test_another_observation_is_refused(tmp_path):
    path = tmp_path / "old.safetensors"
    save_model(random_model(observation=0), path)
    assert "observation 0" in refused(path)


def test_layers_that_do_not_fit_are_refused(tmp_path):
    model = random_model()
    path = tmp_path / "odd.safetensors"
    save_model(type(model)(model.card, model.policy[1:], model.value), path)
    assert "do not fit" in refused(path)


def test_a_file_without_a_card_is_refused(file):
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert "no card" in refused(file)


def test_numpy_and_torch_say_the_same():
    learner = MaskablePPO("MlpPolicy", DummyVecEnv([lambda: RoleAllocation(DOMAIN)]), seed=1, device="cpu")
    model = export(learner, SeenRange(), name="test", trained={})
    for seen in np.random.default_rng(2).random((50, SIZE), np.float32) * 4:
        tensor = learner.policy.obs_to_tensor(seen)[0]
        distribution = learner.policy.get_distribution(tensor).distribution
        ours = model.logits(seen)
        assert_allclose(ours - np.log(np.exp(ours).sum()), distribution.logits.detach().numpy()[0], atol=1e-5)
        assert model.worth(seen) == pytest.approx(learner.policy.predict_values(tensor).item(), abs=1e-5)


def test_ranges_are_those_of_what_was_seen():
    seen = SeenRange(size=64)
    rows = np.tile(np.linspace(0.0, 1.0, 1001, dtype=np.float32)[:, None], (1, SIZE))
    rows[:, 0] = 1.0
    seen.see(rows)
    seen.see(np.zeros((10, SIZE), np.float32))  # nothing was known
    low, high = seen.percentiles()
    assert low[1] < 0.1
    assert high[1] > 0.9
    assert low[0] == 1.0
