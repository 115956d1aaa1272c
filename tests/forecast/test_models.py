"""Duration, size and eviction models against distributions that are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.forecast.habits import (
    CONTEXT_GRID,
    TURN_GRID,
    AnswerLengths,
    EndModel,
    Growth,
    LossModel,
    Transitions,
)
from prorsa.forecast.models import (
    DURATION_GRID,
    SIZE_GRID,
    HazardModel,
    Prior,
    Ratio,
    SizeModel,
)
from prorsa.forecast.scan import EARLY_AGAIN, size_bin
from prorsa.forecast.siblings import FirstShare
from prorsa.forecast.speed import LoadedSpeed
from prorsa.forecast.tables import mixed_ends

PRIORS = (Prior(median=5.0), Prior(median=5.0))


def nothing(keys):
    return np.zeros((keys, DURATION_GRID.bins))


def remaining(model, key, x, ahead):
    keys = np.array([[key]])
    return float(model.ends_by(keys, np.array([[x]]), np.array([[x + ahead]]))[0, 0])


def fitted(samples, key=0, **options):
    model = HazardModel(PRIORS, half_life=1e9, **options)
    for sample in samples:
        model.add(key, float(sample))
    model.refresh(2, nothing(2))
    return model


@given(st.floats(0.0, 1e6))
def test_the_bin_of_a_value_holds_it(value):
    index, edges = DURATION_GRID.index(value), DURATION_GRID.edges
    assert index == DURATION_GRID.indices(np.array([value]))[0]
    assert edges[index] <= value * (1 + 1e-9)
    assert index == DURATION_GRID.bins - 1 or value <= edges[index + 1] * (1 + 1e-9)


@given(st.floats(0.0, 1e7))
@settings(deadline=None)  # the first one compiles
def test_the_bin_of_a_size_that_the_pass_over_the_live_finds_holds_it(tokens):
    index, edges = size_bin(tokens, SIZE_GRID.bins), SIZE_GRID.edges
    assert edges[index] <= tokens * (1 + 1e-9)
    assert index == SIZE_GRID.bins - 1 or tokens <= edges[index + 1] * (1 + 1e-9)


@pytest.mark.parametrize("elapsed", [0.0, 2.0, 10.0, 30.0])
@pytest.mark.parametrize("ahead", [1.0, 5.0, 15.0])
def test_an_exponential_forgets_how_long_it_has_lasted(elapsed, ahead):
    model = fitted(np.random.default_rng(1).exponential(10.0, 40_000))
    assert remaining(model, 0, elapsed, ahead) == pytest.approx(1 - math.exp(-ahead / 10.0), abs=0.025)


@pytest.mark.parametrize("elapsed", [2.0, 10.0, 60.0])
@pytest.mark.parametrize("ahead", [5.0, 30.0])
def test_a_pareto_lasts_the_longer_the_longer_it_has_lasted(elapsed, ahead):
    alpha = 1.3
    model = fitted(1.0 + np.random.default_rng(2).pareto(alpha, 40_000))
    expected = 1 - (elapsed / (elapsed + ahead)) ** alpha
    assert remaining(model, 0, elapsed, ahead) == pytest.approx(expected, abs=0.05)


def test_waits_under_way_correct_the_bias_of_what_has_ended():
    """Ten seconds into a run only short waits have ended; those that go on say that most are longer."""
    draws = np.random.default_rng(3).exponential(30.0, 4000)
    model = HazardModel(PRIORS, half_life=1e9)
    for draw in draws[draws < 10.0]:
        model.add(0, float(draw))
    going = int((draws >= 10.0).sum())
    ongoing = nothing(2)
    ongoing[0, DURATION_GRID.index(10.0)] = going
    model.refresh(2, ongoing)
    truth = 1 - math.exp(-5.0 / 30.0)
    assert remaining(model, 0, 3.0, 5.0) == pytest.approx(truth, abs=0.02)
    model.refresh(2, nothing(2))
    assert remaining(model, 0, 3.0, 5.0) > 2 * truth


def test_forgetting_within_a_few_waits_length_does_not_make_waits_seem_longer():
    """A hundred waits begin a second and last ten on average: a thousand are under way, as many as are remembered."""
    rng = np.random.default_rng(4)
    begins = np.sort(rng.uniform(0.0, 200.0, 20_000))
    ends = begins + rng.exponential(10.0, len(begins))
    model = HazardModel(PRIORS, half_life=700.0)
    for now in range(1, 201):
        for index in np.flatnonzero((now - 1 < ends) & (ends <= now)):
            model.add(0, float(ends[index] - begins[index]))
        going = now - begins[(begins <= now) & (ends > now)]
        ongoing = nothing(2)
        np.add.at(ongoing[0], DURATION_GRID.indices(going), 1.0)
        model.refresh(2, ongoing)
    for elapsed in (0.0, 10.0, 20.0):
        assert remaining(model, 0, elapsed, 5.0) == pytest.approx(1 - math.exp(-0.5), rel=0.04)


def test_without_data_the_prior_speaks_and_its_tail_is_a_power_law():
    model = HazardModel((Prior(median=20.0, shape=4.0), Prior(median=5.0)))
    model.refresh(2, nothing(2))
    assert model.quantile(0, 0.0, 0.5) == pytest.approx(20.0, rel=0.1)
    assert remaining(model, 1, 5_000.0, 5_000.0) == pytest.approx(1 - 0.5**1.5, abs=0.02)


def test_a_rare_tool_borrows_from_the_others():
    rng = np.random.default_rng(4)
    model = HazardModel(PRIORS)
    for draw in rng.exponential(100.0, 2000):
        model.add(1, float(draw))
    model.add(2, 90.0)
    model.refresh(4, nothing(4))
    common, rare, unseen = (remaining(model, key, 0.0, 20.0) for key in (1, 2, 3))
    assert rare == pytest.approx(common, abs=0.05)
    assert unseen == pytest.approx(common, abs=0.02)


def test_waits_of_several_keys_end_as_their_mixture_does():
    rng = np.random.default_rng(7)
    model = HazardModel(PRIORS, half_life=1e9)
    for fast, slow in zip(rng.exponential(2.0, 20_000), rng.exponential(50.0, 20_000), strict=True):
        model.add(0, float(fast))
        model.add(1, float(slow))
    model.refresh(2, nothing(2))
    times = np.array([0.0, 0.5, 3.0, 10.0, 10.0, 40.0])
    tables, keys = model.tables, np.array([0, 1], np.int32)
    weights, once = np.array([[0.25, 0.75]]), np.zeros(1, np.int32)
    ends = mixed_ends(tables.survival, tables.slope, tables.edges, keys, weights, times[None], once)[0]
    survival = 0.25 * np.exp(-times / 2.0) + 0.75 * np.exp(-times / 50.0)
    assert ends == pytest.approx(survival[:-1] - survival[1:], abs=0.01)
    assert ends[3] == 0.0


def test_durations_that_change_are_followed():
    model = HazardModel(PRIORS, half_life=100.0)
    for _ in range(3000):
        model.add(0, 50.0)
    for _ in range(1000):
        model.add(0, 2.0)
    model.refresh(2, nothing(2))
    assert remaining(model, 0, 0.0, 3.0) > 0.95


def test_renormalising_weights_loses_nothing():
    model = HazardModel(PRIORS, half_life=1.0)
    for _ in range(5000):
        model.add(0, 4.0)
    model.refresh(2, nothing(2))
    assert np.isfinite(model.cumulative(np.array(0), np.array([1.0, 10.0, 1e6]))).all()


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_probabilities_rise_with_time_and_stay_in_their_range(x, a, b):
    model = fitted([1.0, 3.0, 3.0, 80.0])
    near, far = sorted((a, b))
    first, second = remaining(model, 0, x, near), remaining(model, 0, x, far)
    assert 0.0 <= first <= second + 1e-12 <= 1.0 + 1e-9


def test_sizes_keep_their_mean_and_their_tail():
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.normal(6.5, 2.0, 20_000))
    model = SizeModel(500.0, half_life=1e9)
    for size in sizes:
        model.add(0, float(size))
    model.refresh(1)
    assert model.means[0] == pytest.approx(sizes.mean(), rel=0.02)
    assert model.shares[0].sum() == pytest.approx(1.0)
    tail = model.shares[0][SIZE_GRID.index(20_000.0) :].sum()
    assert tail == pytest.approx((sizes > 20_000).mean(), rel=0.2)


def test_a_size_key_without_data_is_that_of_all():
    model = SizeModel(500.0)
    for _ in range(200):
        model.add(0, 4000.0)
    model.refresh(2)
    assert model.means[1] == pytest.approx(4000.0, rel=0.05)


def test_a_size_key_leans_on_its_group_before_it_leans_on_all():
    model = SizeModel(500.0)
    for _ in range(300):
        model.add(0, 8000.0)
        model.add(1, 100.0)
    model.refresh(4, np.array([0, 1, 0, 1], np.int32))
    assert model.means[2] > 10 * model.means[3]


def test_what_long_gaps_bring_is_told_from_what_short_ones_do():
    growth = Growth()
    for k in range(600):
        growth.add(40.0 if k % 2 else 3.0, 3000.0 if k % 2 else 1000.0, 2000.0)
    growth.refresh()
    assert np.interp([3.0, 48.0], growth.centres, growth.factor) == pytest.approx([0.55, 1.45], abs=0.05)
    assert growth.factor[-1] == pytest.approx(1.0)


def test_tokens_lost_come_out_right_where_large_contexts_are_those_that_are_cut():
    model = LossModel()
    for k in range(400):
        model.add(3.0, float(k % 4 == 0), 90_000.0, second=False)
        model.add(3.0, 0.0, 10_000.0, second=False)
    model.refresh()
    tables = model.tables
    share = np.interp(3.0, tables.centres, tables.chance[1] * tables.share[1])
    said = share * (90_000.0 + 10_000.0) / 2
    assert said == pytest.approx(0.25 * 90_000.0 / 2, rel=0.15)


def lost(model, idle_s, *, second=False):
    tables = model.tables
    return np.interp(idle_s, tables.centres, tables.chance[0 if second else 1])


def test_losses_rise_with_idle_time():
    rng = np.random.default_rng(6)
    model = LossModel()
    for _ in range(4000):
        idle_s = float(rng.uniform(0.0, 200.0))
        model.add(idle_s, float(idle_s > 70.0), 1e4, second=False)
    model.refresh()
    chances = lost(model, np.array([5.0, 20.0, 100.0, 150.0]))
    assert chances[0] < 0.1
    assert chances[-1] > 0.9
    assert (np.diff(chances) >= 0).all()


def test_where_all_wait_long_and_find_nothing_shorter_waits_are_not_taken_for_safe():
    model = LossModel()
    for _ in range(50):
        model.add(160.0, 1.0, 1e4, second=False)
    model.refresh()
    assert lost(model, 90.0) > 0.7
    assert lost(model, 1e4) > 0.9
    assert lost(model, 1.0) < 0.2


def test_second_prompts_that_are_rewritten_say_nothing_of_later_ones():
    model = LossModel()
    for k in range(300):
        model.add(4.0, 0.8 * (k % 4 == 0), 1e4, second=True)
        model.add(4.0, 0.0, 1e4, second=False)
    model.refresh()
    assert lost(model, 4.0, second=True) == pytest.approx(0.25, abs=0.05)
    assert lost(model, 60.0, second=True) > 0.15
    assert lost(model, 60.0) < 0.02


def test_ends_are_judged_by_turn_and_by_turns_that_did_not_end():
    model = EndModel()
    for turn in range(12):
        for _ in range(300):
            model.add(0, turn, 10_000.0, ended=turn == 11)
    model.refresh()
    early, late = (model.tables.by_turn[0, TURN_GRID.index(turn + 1)] for turn in (2, 11))
    assert early < 0.02
    assert late > 0.3


def test_a_limit_of_context_is_no_habit_of_a_turn():
    """Half of the trajectories are cut off near 100k tokens, at any turn; none ends of its own."""
    model = EndModel()
    for turn in range(40):
        for _ in range(50):
            model.add(0, turn, 40_000.0, ended=False)
            model.add(0, turn, 100_000.0, ended=True, truncated=True)
    model.refresh()
    assert (model.tables.by_turn[0, : TURN_GRID.index(40)] < 0.01).all()
    assert model.tables.by_context[0, CONTEXT_GRID.index(40_000.0)] < 0.01
    assert model.tables.by_context[0, CONTEXT_GRID.index(100_000.0)] > 0.9


def test_what_follows_depends_on_what_was_before():
    model = Transitions()
    for _ in range(50):
        model.add(1, 2)
        model.add(2, 3)
    model.add(3, 2)
    model.refresh(5, np.array([0, 1, 1, 1, 1], np.int32))
    assert model.chance.sum(axis=1) == pytest.approx(np.ones(5))
    assert model.chance[1, 2] > 0.9
    assert model.chance[2, 3] > 0.9
    assert model.chance[4, 2] == pytest.approx(0.5, abs=0.1)


def test_siblings_compute_a_share_of_short_first_prompts_and_little_of_long_ones():
    share = FirstShare()
    short, long = share.of_siblings(np.array([1500.0, 40_000.0]), 64.0) / np.array([1500.0, 40_000.0])
    assert 0.4 < short < 0.7
    assert long < 0.1


@given(st.floats(1.0, 1e6), st.floats(0.0, 1.0))
def test_siblings_never_compute_more_than_the_prompt(prompt_tokens, computed):
    share = FirstShare()
    for _ in range(20):
        share.prefilled(computed * prompt_tokens, prompt_tokens, sibling=True, starts=8.0)
    assert 0.0 <= float(share.of_siblings(np.array(prompt_tokens), 8.0)) <= prompt_tokens


def test_first_prompts_of_siblings_are_computed_once():
    share = FirstShare()
    assert share.shares(4000.0, 8.0)[0] == 1.0
    for number in range(800):
        share.dispatched(sibling=number % 8 > 0)
        share.prefilled(3600 if number % 8 == 0 else 400, 4000, sibling=number % 8 > 0, starts=8.0)
    alone, _, of_all = share.shares(4000.0, 8.0)
    assert alone == pytest.approx(0.9, abs=0.02)
    assert float(share.of_siblings(np.array(4000.0), 8.0)) == pytest.approx(400.0, rel=0.3)
    assert of_all == pytest.approx(0.2, abs=0.03)


@given(st.integers(1, 40), st.lists(st.floats(1.0, 500.0), min_size=2, max_size=8))
def test_the_more_first_requests_start_together_the_more_siblings_compute_again(siblings, starts):
    """From none of a group of which each comes alone to all that ever do of one that comes at once."""
    share = FirstShare()
    for _ in range(3):
        share.dispatched(sibling=False)
        for _ in range(siblings):
            share.dispatched(sibling=True)
    tokens = [float(share.of_siblings(np.array(2000.0), together)) for together in sorted(starts)]
    assert sorted(tokens) == pytest.approx(tokens)
    assert float(share.of_siblings(np.array(2000.0), 1.0)) < 10.0
    assert float(share.of_siblings(np.array(2000.0), 4000.0)) == pytest.approx(EARLY_AGAIN * 2000.0)


def test_siblings_that_trickle_in_find_what_those_of_a_burst_compute_again():
    """What a burst showed is not expected of a trickle that was seen to compute nothing, nor the other way round."""
    share = FirstShare()
    for _ in range(200):
        share.prefilled(1200.0, 2000.0, sibling=True, starts=512.0)
        share.prefilled(0.0, 2000.0, sibling=True, starts=2.0)
    burst, trickle = (float(share.of_siblings(np.array(2000.0), starts)) for starts in (512.0, 2.0))
    assert burst == pytest.approx(1200.0, rel=0.05)
    assert trickle < 0.1 * burst


def test_first_requests_start_together_while_one_of_them_is_not_computed():
    share = FirstShare()
    for second in range(100):
        share.ready(float(second))
    assert share.starts(50.0, 0.1) == 1.0
    assert share.starts(50.0, 3.0) == 7.0
    assert share.starting(3.0) == 7.0  # as many are still to come as came before it
    assert share.at_rate(1.0, 3.0) == pytest.approx(7.0)


def test_answers_are_as_long_as_the_turn_makes_them_whatever_is_usual():
    """Turns past the thirtieth answer half as long; how much is usual does not drift with the factor."""
    lengths = AnswerLengths()
    for _ in range(3000):
        for turn, tokens in ((5, 400.0), (40, 200.0)):
            lengths.add(1, turn, tokens, 300.0)
        lengths.refresh()
    assert lengths.of(1, 40) / lengths.of(1, 5) == pytest.approx(0.5, rel=0.05)
    assert lengths.of(1, 0) == lengths.of(2, 40) == 1.0


def test_requests_decode_slower_in_a_larger_batch():
    speed = LoadedSpeed(40.0, memory=300.0, prior_weight=4.0)
    rng = np.random.default_rng(3)
    for _ in range(300):
        batch = float(rng.integers(50, 250))
        speed.add(batch / (0.015 + 0.0001 * batch), batch, batch, 1.0)
    for _ in range(20):
        speed.add(100.0 / 0.025, 100.0, 100.0, 1.0)
    assert speed.value == pytest.approx(40.0, rel=0.05)
    assert speed.at(200.0) == pytest.approx(1.0 / 0.035, rel=0.05)
    assert speed.at(100.0) == pytest.approx(40.0, rel=0.05)


def test_a_batch_that_never_changed_says_nothing_of_others():
    speed = LoadedSpeed(40.0, memory=300.0, prior_weight=4.0)
    for _ in range(100):
        speed.add(100.0 * 30.0, 100.0, 100.0, 1.0)
    assert speed.at(300.0) == pytest.approx(speed.value, rel=0.01)


def test_what_is_assumed_of_a_slope_holds_until_loads_were_seen_to_differ():
    """A token takes a third longer at a load of 100,000 than at 50,000 if 1e-5 a load of one is right, else as long."""
    speed = LoadedSpeed(4000.0, memory=30.0, prior_weight=1.0, relative_slope=1e-5)
    for _ in range(40):
        speed.add(4000.0 * 5.0, 5.0, 50_000.0, 1.0)
    assert speed.at(100_000.0) == pytest.approx(4000.0 * 1.5 / 2.0, rel=0.02)
    for second in range(200):
        speed.add(4000.0 * 5.0, 5.0, 20_000.0 + 400.0 * second, 1.0)
    assert speed.at(200_000.0) == pytest.approx(4000.0, rel=0.05)


def test_ratio():
    ratio = Ratio(prior=5.0, time_constant_s=10.0)
    for _ in range(100):
        ratio.add(20.0, 10.0, 1.0)
    assert ratio.value == pytest.approx(2.0, abs=0.01)
    ratio.add(0.0, 0.0, 100.0)
    assert ratio.value == pytest.approx(2.0, abs=0.01)
