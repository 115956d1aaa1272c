"""Training with environments as actors on a Ray cluster: the same policy as with environments in one process.

Ray warns about itself in many ways, at import and at exit; the warnings of its own modules are let pass here alone.
"""

from pathlib import Path

import numpy as np
import pytest

from prorsa.control.learn.training import train
from prorsa.control.learn.vectors import in_this_process, on_ray
from prorsa.errors import UnavailableError
from tests.learn.test_env import DOMAIN
from tests.learn.test_training import options, weights

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SHORT = {"rounds": 2, "rollout": 8, "shown": 20, "decisions": 10}


@pytest.fixture(autouse=True)
def nodes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # actors need the code of these tests
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def test_training_on_ray_comes_to_the_policy_of_one_process_and_can_be_resumed_there(tmp_path):
    train(options(tmp_path / "here", **SHORT))
    train(options(tmp_path / "ray", **SHORT | {"rounds": 1}, ray="local"))
    begun = weights(tmp_path / "ray")
    train(options(tmp_path / "ray", **SHORT, ray="local", resume=True))
    here, there = weights(tmp_path / "here"), weights(tmp_path / "ray")
    assert any((begun[name] != there[name]).any() for name in there)
    for name, array in here.items():
        np.testing.assert_array_equal(array, there[name], err_msg=name)


def test_actors_step_as_environments_do():
    vectors = [in_this_process(2, DOMAIN, 5), on_ray(2, DOMAIN, 5, "local")]
    try:
        for vector in vectors:
            vector.seed(4)
        seen = [vector.reset() for vector in vectors]
        np.testing.assert_array_equal(*seen)
        for _ in range(7):  # beyond the end of an episode
            results = [vector.step(np.array([2, 2])) for vector in vectors]
            for name, (one, other) in zip(
                ("seen", "reward", "over"), zip(*(r[:3] for r in results), strict=True), strict=True
            ):
                np.testing.assert_array_equal(one, other, err_msg=name)
        masks = [vector.env_method("action_masks") for vector in vectors]
        np.testing.assert_array_equal(*masks)
    finally:
        for vector in vectors:
            vector.close()


def test_a_cluster_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(UnavailableError, match="ray start --head"):
        train(options(tmp_path, **SHORT, ray="127.0.0.1:1"))
