"""Contexts that are left behind at a crowded home: told from evicted ones, learnt, and counted ahead of time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.forecast.learn import Learner
from prorsa.forecast.moves import MoveModel
from prorsa.forecast.ranks import Ranks
from prorsa.forecast.requests import Request
from prorsa.forecast.scoring import ScoreKeeper
from prorsa.forecast.waits import WaitKeys

CONTEXT = 40_000


def test_what_is_missed_is_learnt_by_how_crowded_home_is():
    model = MoveModel()
    for k in range(400):
        model.add(0.1, CONTEXT, 0.0)
        model.add(2.0, CONTEXT, 0.8 if k % 2 else 0.0)
    model.refresh()
    assert model.missing_of(0.1, CONTEXT) < 0.005
    assert model.missing_of(2.0, CONTEXT) == pytest.approx(0.4, abs=0.05)


def test_tokens_come_out_right_where_small_contexts_are_those_that_move():
    """Of a class with unlike contexts it is the tokens that must add up, not the turns."""
    model = MoveModel(half_life=1e9)
    small, large = 10_000.0, 90_000.0
    for k in range(1000):
        model.add(1.2, small, 1.0 if k % 2 else 0.0)
        model.add(1.2, large, 0.0)
    model.refresh()
    said = model.missing_of(1.2, small) * small + model.missing_of(1.2, large) * large
    assert said == pytest.approx(0.5 * small, rel=0.1)


def test_where_home_is_calm_it_counts_what_siblings_have_not_left_on_other_ranks():
    """A second turn has little but the prompt that its group begins with, which it finds wherever it goes."""
    model, first = MoveModel(), 20_000.0
    for _ in range(400):
        model.add(0.0, first + 50.0, 0.0, first_tokens=first)
        model.add(0.0, first + 8_000.0, 0.2, first_tokens=first)
    model.refresh()
    assert model.missing_of(0.0, first + 50.0, first) < 0.01
    assert model.missing_of(0.0, first + 8_000.0, first) == pytest.approx(0.2, abs=0.02)


def test_a_class_that_few_were_seen_of_leans_on_what_all_calm_homes_were_seen_to_lose():
    model = MoveModel()
    for _ in range(400):
        model.add(0.0, 9_000.0, 0.02, first_tokens=1_000.0)
    model.add(0.0, 2_000.0, 0.0, first_tokens=1_000.0)
    model.refresh()
    assert model.missing_of(0.0, 2_000.0, 1_000.0) == pytest.approx(0.02, abs=0.005)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 10.0), st.floats(1.0, 2e5), st.floats(0.0, 1.0), st.floats(0.0, 200.0)), max_size=50
    ),
    st.floats(0.0, 10.0),
    st.floats(1.0, 2e5),
)
def test_what_is_missed_is_never_more_than_there_was(seen, crowding, saved):
    model = MoveModel()
    for observation in seen:
        model.add(*observation)
    model.refresh()
    assert 0.0 <= model.missing_of(crowding, saved) <= 1.0


def test_crowding_is_what_a_home_is_behind_the_shortest_queue():
    ranks = Ranks()
    ranks.add_worker("p", 3)
    assert ranks.crowding(0, CONTEXT) == 0.0  # nothing is known yet
    ranks.note_work(np.array([60_000.0, 20_000.0, 0.0]), np.array([True, True, False]), 4000.0)
    assert ranks.crowding(0, CONTEXT) == 1.0
    assert ranks.crowding(1, CONTEXT) == 0.0
    assert ranks.crowding(-1, CONTEXT) == 0.0


def came_back(uncached, **changes):
    made = {
        "request_id": "r",
        "slot": 0,
        "turn": 5,
        "prompt_tokens": CONTEXT + 1000,
        "previous_prompt_tokens": CONTEXT,
        "previous_output_tokens": 0,
        "index_tokens": 1000,
        "ready_index_tokens": 1000,
        "answered_s": 10.0,
        "flushed": False,
        "ready_s": 20.0,
        "admitted_s": 40.0,
        "prefilled_s": 41.0,
        "uncached_tokens": uncached,
    }
    return Request(**{**made, **changes})


def learnt(*requests, repeat=200):
    keys = WaitKeys()
    learner = Learner(keys, ScoreKeeper((15.0,)))
    for _ in range(repeat):
        for request in requests:
            learner.prefilled(request.prefilled_s, request)
    learner.refresh(np.zeros((len(keys), 176)))
    return learner


def test_a_context_missed_away_from_a_crowded_home_is_not_taken_for_evicted():
    learner = learnt(came_back(CONTEXT + 1000, home=-1, crowding=2.0, crowding_sent=2.0))
    assert learner.moves.missing_of(2.0, CONTEXT) > 0.9
    assert learner.wait_losses.after(np.array(20.0)) < 0.05


def test_what_is_missed_after_a_wait_at_a_home_that_is_not_crowded_was_evicted():
    gone = came_back(CONTEXT + 1000, home=-1)
    learner = learnt(gone, came_back(CONTEXT + 1000, home=0))
    assert learner.wait_losses.after(np.array(20.0)) > 0.9
    assert learner.moves.missing_of(0.0, CONTEXT) < 0.05


def test_what_the_index_misses_when_a_prompt_becomes_ready_did_not_go_while_it_waited():
    learner = learnt(came_back(CONTEXT + 1000, ready_index_tokens=CONTEXT + 1000))
    tables = learner.losses.tables
    assert np.interp(10.0, tables.centres, tables.chance[1]) > 0.8
    assert learner.wait_losses.after(np.array(20.0)) < 0.05
