"""Siblings tell of each other how soon they end, as far as they resemble each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.forecast.columns import Columns
from prorsa.forecast.fates import MAX_GROUPS, Fates


def rollouts(fates: Fates, columns: Columns, variance: float, groups: int, chance: float = 0.2, seed: int = 0) -> None:
    """Groups of 8 one after another, of each turn by turn, with a factor on the chance that a turn is the last."""
    rng = np.random.default_rng(seed)
    for number in range(groups):
        factor = rng.gamma(1.0 / variance, variance) if variance else 1.0
        live = [columns.take() for _ in range(8)]
        for slot in live:
            fates.dispatched(slot, f"group {seed} {number}")
        while live:
            for slot in list(live):
                ended = bool(rng.random() < min(factor * chance, 1.0))
                fates.turn_over(slot, chance, ended=ended)
                if ended:
                    fates.ended(slot)
                    columns.release(slot)
                    live.remove(slot)


def begun(fates: Fates, columns: Columns, group: str, number: int) -> list[int]:
    slots = [columns.take() for _ in range(number)]
    for slot in slots:
        fates.dispatched(slot, group)
    return slots


@pytest.mark.parametrize("variance", [0.0, 0.3])
def test_the_resemblance_of_siblings_is_learnt(variance):
    columns = Columns()
    fates = Fates(columns)
    assert fates.variance == 0.0
    rollouts(fates, columns, variance, groups=400)
    assert fates.variance == pytest.approx(variance, abs=0.12)


def test_who_has_siblings_that_ended_soon_is_expected_to_end_sooner():
    columns = Columns()
    fates = Fates(columns)
    rollouts(fates, columns, 0.3, groups=200)
    early, late, alone = begun(fates, columns, "early", 3), begun(fates, columns, "late", 3), columns.take()
    fates.dispatched(alone, None)
    fates.turn_over(early[0], 0.05, ended=True)
    for _ in range(20):
        fates.turn_over(late[0], 0.2, ended=False)
    assert columns.fate[late[1]] < columns.fate[alone] == 1.0 < columns.fate[early[1]]
    # What it did itself is in the chances by turn already.
    assert columns.fate[late[1]] < columns.fate[late[0]] == 1.0


def test_one_that_begins_later_knows_what_its_siblings_did():
    columns = Columns()
    fates = Fates(columns)
    rollouts(fates, columns, 0.3, groups=200)
    first, second = begun(fates, columns, "group", 1)[0], begun(fates, columns, "group", 1)[0]
    fates.turn_over(first, 0.05, ended=True)
    fates.ended(first)
    later = begun(fates, columns, "group", 1)[0]
    assert columns.fate[later] == columns.fate[second] > 1.0


def test_memory_is_bounded_and_a_forgotten_group_does_no_harm():
    columns = Columns()
    fates = Fates(columns)
    slots = [begun(fates, columns, f"group {number}", 1)[0] for number in range(MAX_GROUPS + 5)]
    for slot in slots[:10]:
        fates.turn_over(slot, 0.1, ended=False)
        fates.ended(slot)
    assert len(fates._groups) == MAX_GROUPS


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 1.0), st.booleans()), max_size=60))
def test_factors_stay_within_their_bounds(turns):
    columns = Columns()
    fates = Fates(columns)
    rollouts(fates, columns, 0.5, groups=20)
    slots = begun(fates, columns, "a", 3) + begun(fates, columns, "b", 3)
    for at, chance, ended in turns:
        fates.turn_over(slots[at], chance, ended=ended)
    assert np.all((columns.fate >= 1.0 / 3.0 - 1e-12) & (columns.fate <= 3.0 + 1e-12))
    assert fates.variance >= 0.0
