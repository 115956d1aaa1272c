"""The environment: what people expect of Gymnasium, and that masks, rewards and forecasts are what they claim."""

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.testing import assert_array_equal

from prorsa.cluster.scenario import Scenario
from prorsa.control.actions import ACTIONS, STAY, shift_of
from prorsa.control.learn import ENVIRONMENT, Domain, Episode, practice
from prorsa.control.learn.env import RoleAllocation
from prorsa.control.observation import FEATURES
from prorsa.control.plan import make_plan
from prorsa.control.policies.base import Want
from prorsa.events import Split

SMALL = Scenario(
    name="small",
    profile="qwen3-32b-h200-tp2",
    workers=4,
    concurrency=16,
    mode="async",
    workload="coding",
    trajectories=24,
    max_turns=4,
)
DOMAIN = Domain((SMALL,), workers=(4, 6), live_per_worker=(2, 6), fault_share=0.0, shift_share=0.0)


def make(decisions: int = 20) -> RoleAllocation:
    return RoleAllocation(DOMAIN, decisions)


def play(env: RoleAllocation, seed: int, steps: int) -> list[tuple[np.ndarray, float]]:
    """Observations and rewards under random allowed actions."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    said = [(observation, 0.0)]
    for _ in range(steps):
        allowed = np.flatnonzero(env.action_masks())
        observation, reward, terminated, truncated, _ = env.step(rng.choice(allowed))
        said.append((observation, reward))
        if terminated or truncated:
            break
    return said


def test_it_keeps_gymnasium_s_rules():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # it warns of what cannot be checked without a spec
        check_env(make(), skip_render_check=True)


def test_it_is_registered():
    env = gym.make(ENVIRONMENT, domain=DOMAIN, decisions=3)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)


def test_the_same_seed_and_actions_give_the_same_run():
    first, second, other = play(make(), 3, 12), play(make(), 3, 12), play(make(), 4, 12)
    for (seen, reward), (again, reward_again) in zip(first, second, strict=True):
        assert_array_equal(seen, again)
        assert reward == reward_again
    assert any((seen != different).any() for (seen, _), (different, _) in zip(first, other, strict=False))


def test_an_episode_is_cut_off_after_its_decisions():
    assert len(play(make(5), 0, 50)) == 6


def test_observations_stay_in_the_space_and_do_not_depend_on_the_pool_s_size():
    for seed in range(3):
        for seen, _ in play(make(), seed, 15):
            assert seen.shape == (len(FEATURES),)
            assert np.isfinite(seen).all()
            assert seen.min() >= 0.0
            assert seen.max() <= 4.0


def test_the_mask_allows_what_the_guards_carry_out_in_full_and_nothing_else():
    env, rng = make(60), np.random.default_rng(0)
    masked = 0
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(25):
            mask, pool, bounds = env.action_masks(), env._pool(), env._bounds()
            assert mask[STAY]
            for action in range(len(ACTIONS)):
                shift = shift_of(action, pool.parallel_flips)
                prefill = pool.registry.destined().prefill + shift
                if action == STAY or prefill < 0 or prefill > bounds.workers:
                    continue
                want = Want(Split(prefill=prefill, decode=bounds.workers - prefill), reason="test")
                plan = make_plan(want, pool, bounds, economy=True)
                doubled = abs(shift) == 1 and ACTIONS[action].endswith("many")
                in_full = plan.chosen == want.split and len(plan.moves) == abs(shift)
                assert mask[action] == (in_full and not doubled), (seed, ACTIONS[action])
                masked += not mask[action]
            _, _, terminated, truncated, _ = env.step(rng.integers(len(ACTIONS)))
            if terminated or truncated:
                break
    assert masked > 20


def test_an_allowed_action_moves_that_many_workers():
    env = make()
    env.reset(seed=2)
    controller = env._driver.controller
    for _ in range(10):
        mask, before = env.action_masks(), controller.registry.destined().prefill
        action = int(np.flatnonzero(mask)[-1])
        shift = shift_of(action, env._pool().parallel_flips)
        env.step(np.int64(action))
        assert len(controller.last_decision.moves) == abs(shift)
        assert controller.last_decision.chosen.prefill == before + shift


def test_rewards_add_up_to_the_tokens_of_the_run():
    env = make(2000)
    env.reset(seed=5)
    total, before, done = 0.0, env._driver.simulation.output_tokens, False
    while not done:
        _, reward, done, _, info = env.step(np.int64(STAY))
        total += reward
    simulation = env._driver.simulation
    period_s = env._driver.tick_s
    assert total * env._limit_tokens_per_s * period_s == pytest.approx(simulation.output_tokens - before)
    assert simulation.output_tokens == info["report"]["output_tokens"]


def test_it_runs_in_a_vector():
    vector = gym.vector.SyncVectorEnv([make, make])
    observations, _ = vector.reset(seed=[1, 2])
    assert observations.shape == (2, len(FEATURES))
    observations, rewards, *_ = vector.step(np.array([STAY, STAY]))
    assert rewards.shape == (2,)


def test_the_domain_draws_every_kind_of_pool_and_the_same_for_the_same_seed():
    domain = practice()
    drawn = [domain.draw(np.random.default_rng(seed)) for seed in range(60)]
    scenarios = [episode.scenario for episode in drawn]
    assert {scenario.cache for scenario in scenarios} == {"cold", "retained", "l3"}
    assert {scenario.profile for scenario in scenarios} == set(domain.profiles)
    assert {episode.forecast for episode in drawn} == {"lifecycle", "ewma"}
    assert {scenario.mode for scenario in scenarios} == {"async", "sync"}
    assert any(scenario.faults for scenario in scenarios)
    assert any(scenario.mix for scenario in scenarios)
    assert all(4 <= scenario.workers <= 12 for scenario in scenarios)
    assert {episode.ended > 0 for episode in drawn if episode.scenario.mode == "async"} == {True, False}
    assert all(episode.ended == 0 for episode in drawn if episode.scenario.mode == "sync")
    assert domain.draw(np.random.default_rng(7)) == drawn[7]


def test_an_episode_may_begin_in_the_midst_of_a_run_and_is_the_same_each_time():
    episode = Episode(SMALL, 1, "lifecycle", ended=10)
    env = make(3)
    first, _ = env.reset(seed=0, options={"episode": episode})
    assert 10 <= env._driver.simulation.ended < SMALL.trajectories
    assert env._driver.due_s % 5.0 == 0.0
    began_s = env._driver.due_s
    env.step(np.int64(STAY))
    assert env._driver.due_s == began_s + 5.0
    again, _ = env.reset(seed=0, options={"episode": episode})
    assert first[0] == 1.0
    assert_array_equal(first, again)


def test_the_longest_runs_of_the_domain_can_be_made():
    episode = Episode(msgspec.structs.replace(SMALL, concurrency=8, trajectories=8), 1, "ewma")
    env = make(3)
    env.reset(seed=0, options={"episode": episode})
    _, _, _, truncated, _ = [env.step(np.int64(STAY)) for _ in range(3)][-1]
    assert truncated
