"""The fluid model against closed forms, and what plans may and may not change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.profile import load_profile
from prorsa.control.courses import Course, Flipping, courses, lay_out
from prorsa.control.fluid import Plans, PoolState, run_plans
from prorsa.control.poolstate import decode_places, decode_step_s, prefill_rate
from prorsa.control.solver import Bounds

SECONDS = 60
FREE = Flipping(parallel=2, flip_s=2.0, to_decode_lost=(), to_prefill_lost=0.0)
STATE = PoolState(
    away=0.0, waiting=0.0, waiting_tokens=0.0, decoding=0.0, new_tokens=1_000.0, prefix_tokens=9_000.0,
    output_tokens=100.0, places=20.0, requests=np.array([1.0, 20.0]), prefill_tokens_per_s=np.array([1e4, 1e4]),
    decode_step_s=np.array([0.05, 0.05]), cached_share=np.ones(9),
)  # fmt: skip


def staying(prefill: int, decode: int) -> Plans:
    return lay_out([Course(prefill)], prefill, prefill + decode, SECONDS, FREE)


def arrivals(requests_per_s: float) -> np.ndarray:
    return np.full((1, SECONDS), requests_per_s)


def test_prefill_works_a_backlog_off_at_its_rate() -> None:
    state = replace(STATE, waiting=1_000.0, waiting_tokens=1e6, places=1e6)
    answered = run_plans(replace(state, output_tokens=1e9), staying(2, 2), arrivals(0.0))
    # Two workers at 10,000 tokens a second, for a minute: more than the backlog holds, each worth its 0.1 s.
    assert answered.work_s[0, 0] == pytest.approx(1_000 * state.prefill_work_s, rel=0.01)


def test_decode_answers_at_the_rate_of_its_steps() -> None:
    state = replace(STATE, decoding=20.0, away=0.0)
    done = run_plans(state, staying(1, 1), arrivals(0.0))
    # A step of 0.05 s and 100 tokens: a request takes 5 s, so that a fifth of those that decode answers each second.
    assert done.answers[0, :3] == pytest.approx([4.0, 3.2, 2.56])


def test_what_decode_has_no_room_for_waits() -> None:
    state = replace(STATE, waiting=100.0, waiting_tokens=1e5, output_tokens=1e9)
    done = run_plans(state, staying(4, 1), arrivals(0.0))
    # Decode is full from the second on which follows, and does not get one answer out.
    assert done.work_s[0, 0] == pytest.approx(state.places * state.prefill_work_s + SECONDS - 1, rel=0.01)


def test_room_on_decode_is_held_from_before_prefill_on() -> None:
    state = replace(STATE, waiting=1_000.0, waiting_tokens=2e8, places=4.0, output_tokens=500.0)
    done = run_plans(state, staying(4, 1), arrivals(0.0))
    # 20 s of prefill and 25 s of decode are spent on one of four places.
    assert done.answers[0, -20:] == pytest.approx(4.0 / 45.0, rel=0.06)


def test_the_work_of_a_second_counts_as_often_as_it_weighs() -> None:
    state = replace(STATE, waiting=1_000.0, waiting_tokens=1e6, places=1e6)
    plans, twice = staying(2, 2), np.full(SECONDS, 2.0)
    once = run_plans(state, plans, arrivals(0.1)).work_s
    assert run_plans(state, plans, arrivals(0.1), twice).work_s == pytest.approx(2.0 * once)
    assert run_plans(state, plans, arrivals(0.1), np.zeros(SECONDS)).work_s == pytest.approx(0.0)


@given(prefill=st.integers(1, 7), then=st.integers(1, 7), places=st.floats(1.0, 50.0))
def test_no_course_gets_more_done_than_there_is(prefill: int, then: int, places: float) -> None:
    """Whoever waits is answered once where nobody returns, also on a course that first lags behind staying."""
    state = replace(STATE, waiting=300.0, waiting_tokens=3e5, places=places)
    plans = lay_out([Course(4), Course(prefill, 0, then, 20)], 4, 8, SECONDS, FREE)
    done = run_plans(state, plans, arrivals(0.0))
    most_s = 300.0 * (state.prefill_work_s + state.decode_work_s)
    assert (done.work_s <= most_s * (1.0 + 1e-9)).all()


def test_beyond_the_forecast_trajectories_return_as_they_did_at_its_end() -> None:
    # Of 100 away two return each second, are prefilled at once, and are answered in a few seconds: a steady cycle.
    state = replace(STATE, away=100.0, decoding=4.0, output_tokens=40.0)
    short, long = np.full((1, 30), 2.0), np.full((1, SECONDS), 2.0)
    both = [run_plans(state, staying(2, 2), arriving).answers[0, -1] for arriving in (short, long)]
    assert both[0] == pytest.approx(both[1], rel=0.05)


@given(requests_per_s=st.floats(0.0, 100.0), lost=st.floats(0.0, 1.0))
def test_losing_prefixes_never_gets_more_done(requests_per_s: float, lost: float) -> None:
    kept = staying(2, 2)
    cold = Plans(kept.prefill, kept.decode, kept.lost_share.copy(), kept.moved)
    cold.lost_share[0, 0] = lost
    state = replace(STATE, away=50.0)
    both = [run_plans(state, plan, arrivals(requests_per_s)).work_s[0, 0] for plan in (kept, cold)]
    assert both[1] <= both[0] * (1.0 + 1e-9)


@given(current=st.integers(1, 7), seconds=st.integers(5, 90))
def test_courses_never_have_more_workers_than_there_are(current: int, seconds: int) -> None:
    found = courses(current, Bounds(8, 1, 7), seconds, announced_s=7.0)
    plans = lay_out(found, current, 8, seconds, FREE)
    serving = plans.prefill + plans.decode
    assert found[0] == Course(current)
    assert (plans.prefill[0] == current).all()
    assert (plans.decode[0] == 8 - current).all()
    assert serving.max() <= 8
    assert serving.min() >= 8 - FREE.parallel
    assert plans.prefill.min() >= 0
    assert plans.decode.min() >= 0


def test_a_course_takes_its_flips_so_many_at_a_time() -> None:
    plans = lay_out([Course(2), Course(5)], 2, 8, 10, FREE)
    assert plans.decode[1].tolist() == [4, 4, 3, 3, 3, 3, 3, 3, 3, 3]
    assert plans.prefill[1].tolist() == [2, 2, 4, 4, 5, 5, 5, 5, 5, 5]


def test_a_flip_after_an_announced_flush_loses_no_prefix() -> None:
    flipping = Flipping(2, 2.0, to_decode_lost=(0.3,), to_prefill_lost=0.0, flush_s=5.0)
    plans = lay_out([Course(3), Course(2, at_s=0), Course(2, at_s=5)], 3, 8, 10, flipping)
    assert plans.lost_share[1].tolist() == [0.3] + [0.0] * 9
    assert plans.lost_share[2].sum() == 0.0


def test_a_prefill_step_of_one_rank_takes_nearly_as_long_as_one_of_eight() -> None:
    profile = load_profile("dsv32-h200-dp8")
    alone, full = (prefill_rate(profile, n, 1_000.0, 50_000.0) for n in (1, 256))
    assert 3.0 * alone < full < 8.0 * alone


def test_later_chunks_of_a_long_prompt_attend_to_those_before() -> None:
    profile = load_profile("qwen3-32b-h200-tp2")
    for new_tokens in (16_384.0, 40_960.0):
        assert prefill_rate(profile, 1, new_tokens, 0.0) == pytest.approx(
            profile.prefill_tokens_per_s(new_tokens), rel=0.05
        )


def test_tables_rise_with_the_requests() -> None:
    profile = load_profile("qwen3-32b-h200-tp2")
    rates = [prefill_rate(profile, n, 400.0, 50_000.0) for n in (1, 2, 4, 8, 64)]
    steps = [decode_step_s(profile, n, 50_000.0) for n in (1, 2, 4, 8, 64)]
    assert rates == sorted(rates)
    assert steps == sorted(steps)


def test_decode_places_are_those_of_each_rank() -> None:
    profile = load_profile("dsv32-h200-dp8")
    long, short = (decode_places(profile, profile.kv_capacity, context) for context in (75_000.0, 1_000.0))
    assert long == pytest.approx(8 * (profile.kv_tokens / 75_512 - 0.5))
    assert short == 8 * profile.max_running
