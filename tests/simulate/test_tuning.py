"""Policies that are found by trying: the best of a full sweep, on seeds that are not scored."""

from collections.abc import Sequence

import pytest

from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.control.policies import colocated_settings
from prorsa.run import RunPlan, make_plan, profile_of
from prorsa.simulate import simulate
from prorsa.tuning import INTERVALS, SEEDS, other_seeds, settle

QUICK = load_scenario("quick")


def plan(policy: str, seed: int = 0, scenario: Scenario = QUICK) -> RunPlan:
    return make_plan(scenario, policy=policy, run_id="test", seed=seed, scored=False, batch=True)


class Scripted:
    """Runs nothing: a policy's figure is what the script says, and every try is noted."""

    def __init__(self, step_s: dict[str, float]) -> None:
        self.step_s = step_s
        self.tried: list[tuple[str, int]] = []

    def __call__(self, plans: Sequence[RunPlan]) -> list[dict[str, object]]:
        self.tried += [(plan.control.policy, plan.seed) for plan in plans]
        return [
            {
                "step_s": self.step_s.get(plan.control.policy, 10.0),
                "steady_output_tokens_per_s": None,
                "makespan_s": 1.0,
            }
            for plan in plans
        ]


def test_the_best_split_of_all_is_taken_by_its_mean() -> None:
    script = Scripted({"static:4:2": 5.0})
    (settled,) = settle([plan("static:best")], script)
    assert settled.control.policy == "static:4:2"
    assert {policy for policy, _ in script.tried} == {f"static:{p}:{6 - p}" for p in range(1, 6)}
    assert settled.tuning is not None
    assert settled.asked == "static:best"
    assert settled.tuning.tried["static:4:2"] == 5.0


def test_no_seed_that_is_scored_is_tried() -> None:
    script = Scripted({})
    seeds = (1001, 0, 1003)
    settle([plan("static:best", seed) for seed in seeds], script)
    tried = {seed for _, seed in script.tried}
    assert len(tried) == SEEDS
    assert not tried & set(seeds)


def test_one_sweep_serves_all_seeds() -> None:
    script = Scripted({})
    settled = settle([plan("static:best", seed) for seed in range(5)], script)
    assert len(script.tried) == 5 * SEEDS
    assert len({one.control.policy for one in settled}) == 1


def test_colocation_is_tuned_in_interval_then_chunk() -> None:
    script = Scripted({"colocated:8": 5.0, "colocated:8:4096": 4.0})
    (settled,) = settle([plan("colocated:tuned")], script)
    assert settled.control.policy == "colocated:8:4096"
    assert len(script.tried) == (len(INTERVALS) + 2) * SEEDS
    assert profile_of(settled).chunk_tokens == 4096
    mixed = colocated_settings(settled.control.policy)
    assert mixed is not None
    assert mixed.prefill_interval == 8


def test_other_policies_stay_as_they_are() -> None:
    plans = [plan("static:3:3"), plan("clairvoyant"), plan("colocated:4")]
    assert settle(plans, Scripted({})) == plans


@pytest.mark.parametrize("scored", [(), (1001,), (1002, 1001, 1004, 1005)])
def test_there_are_always_enough_other_seeds(scored: tuple[int, ...]) -> None:
    found = other_seeds(scored)
    assert len(set(found)) == SEEDS
    assert not set(found) & set(scored)


def test_the_interval_reaches_the_engine() -> None:
    plain, tuned = (simulate(plan(policy)) for policy in ("colocated", "colocated:16"))
    assert plain["makespan_s"] != tuned["makespan_s"]
    assert plain["output_tokens"] == tuned["output_tokens"]
