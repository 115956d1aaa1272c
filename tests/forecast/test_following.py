"""First requests wait for the first of their group, whoever that will be."""

from types import SimpleNamespace

import numpy as np
import pytest

from prorsa.forecast.beliefs import Places, slots_of
from prorsa.forecast.columns import Columns, State
from prorsa.forecast.following import held_back
from prorsa.forecast.models import DURATION_GRID, HazardTables

EDGES_S = np.array([1.0, 5.0, 10.0, 15.0, 30.0])
PROMPT = 40_000.0
TOKENS_PER_S = 4000.0
TAKES_S = PROMPT / TOKENS_PER_S
MEAN_S = 8.0


def exponential():
    """Start-ups that end at random."""
    edges = DURATION_GRID.edges
    survival = np.exp(-edges[None, :-1] / MEAN_S)
    return HazardTables(edges[None, :-1] / MEAN_S, survival, np.full((1, DURATION_GRID.bins), 1.0 / MEAN_S), edges)


def held(states, groups, *, prompts=PROMPT, line=(), homes=(), slack_s=0.0, new_wait_s=0.0):
    columns = Columns()
    for state, group in zip(states, groups, strict=True):
        slot = columns.take()
        columns.state[slot], columns.group[slot], columns.prompt_tokens[slot] = state, group, prompts
        columns.turn[slot] = -1 if state <= State.SANDBOX else 0
    for slot in homes:
        columns.home[slot, 0] = 3
    capacity = columns.capacity
    places = Places(np.zeros(capacity, np.int32), np.zeros(capacity), np.ones(capacity))
    slot, prefilled_s, tokens = np.array(line, float).reshape(-1, 3).T
    queue = SimpleNamespace(slot=slot.astype(np.intp), prefilled_s=prefilled_s, tokens=tokens, new_wait_s=new_wait_s)
    return held_back(slots_of(columns), places, queue, exponential(), EDGES_S, TOKENS_PER_S, slack_s)


def ready_by(edges_s):
    return 1.0 - np.exp(-edges_s / MEAN_S)


def test_siblings_wait_for_whichever_of_them_starts_first():
    requests, prompts = held([State.SANDBOX] * 8, [0] * 8)
    starts_s = np.random.default_rng(0).exponential(MEAN_S, (20_000, 8))
    first_s = starts_s.min(axis=1, keepdims=True)
    free_s = np.where(starts_s == first_s, starts_s, np.maximum(starts_s, first_s + TAKES_S))
    drawn = [((starts_s <= t) & (free_s > t)).sum(axis=1).mean() for t in EDGES_S]
    assert requests == pytest.approx(drawn, abs=0.05)
    assert prompts == pytest.approx(requests * PROMPT)


def test_who_begins_alone_waits_for_nobody():
    assert held([State.SANDBOX, State.DISPATCHED], [0, 1])[0] == pytest.approx(np.zeros(5), abs=1e-9)
    assert held([State.SANDBOX] * 3, [-1] * 3)[0] == pytest.approx(np.zeros(5), abs=1e-9)


def test_a_brief_prompt_is_computed_again_sooner_than_waited_for():
    assert held([State.SANDBOX] * 8, [0] * 8, prompts=2000.0)[0] == pytest.approx(np.zeros(5), abs=1e-9)


def test_where_the_first_is_being_computed_the_others_are_held_until_it_is():
    states, groups = [State.PREFILL, *[State.SANDBOX] * 3], [0] * 4
    requests, _ = held(states, groups, line=[(0, 12.0, 8000.0)], homes=(1, 2, 3))
    waits = EDGES_S < 12.0
    assert requests == pytest.approx(np.where(waits, 3.0 * ready_by(EDGES_S), 0.0))
    # No rank computes faster than it can, and routers send more a moment before it is through.
    assert held(states, groups, line=[(0, 0.5, 24_000.0)])[0][1] == pytest.approx(3.0 * ready_by(5.0))
    assert held(states, groups, line=[(0, 15.4, 8000.0)], slack_s=0.5)[0][3] == pytest.approx(0.0)
    # As long as that is what the queue takes they lose nothing by it.
    assert held(states, groups, line=[(0, 15.0, 8000.0)], new_wait_s=10.0)[0][1:] == pytest.approx(np.zeros(4))


@pytest.mark.parametrize("past", [State.DECODE, State.TOOL])
def test_what_has_been_computed_holds_nobody_back(past):
    assert held([past, State.SANDBOX], [0, 0], line=[])[0] == pytest.approx(np.zeros(5))
    assert held([State.SANDBOX] * 2, [0, 0], homes=(0, 1))[0] == pytest.approx(np.zeros(5))
