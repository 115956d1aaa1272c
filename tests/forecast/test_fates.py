"""Siblings tell of each other how soon they end, as far as they resemble each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.forecast.columns import Columns
from prorsa.forecast.fates import MAX_GROUPS, Fates


def rollouts(
    fates: Fates, columns: Columns, variance: float, groups: int, hazard: float = 0.2, seed: int = 0
) -> tuple[float, int]:
    """Groups of 8 one after another, of each turn by turn, with a factor on the hazard of an end; chances by turn are
    those of what still lives. Returns how many ends were expected, and how many came.
    """
    rng = np.random.default_rng(seed)
    expected, came = 0.0, 0
    for number in range(groups):
        factor = rng.gamma(1.0 / variance, variance) if variance else 1.0
        live = begun(fates, columns, f"group {seed} {number}", 8)
        turn = 0
        while live:
            chance = 1.0 - lives(hazard * (turn + 1), variance) / lives(hazard * turn, variance)
            for slot in list(live):
                expected += chance * columns.fate[slot]
                ended = bool(rng.random() < 1.0 - np.exp(-factor * hazard)) or turn >= 100
                came += ended
                fates.turn_over(slot, chance, ended=ended)
                if ended:
                    fates.ended(slot)
                    columns.release(slot)
                    live.remove(slot)
            turn += 1
    return expected, came


def lives(hazard: float, variance: float) -> float:
    """Share of all that live past so much hazard, where factors of such a variance are drawn for each group."""
    return float((1.0 + variance * hazard) ** (-1.0 / variance) if variance else np.exp(-hazard))


def begun(fates: Fates, columns: Columns, group: str, number: int) -> list[int]:
    slots = [columns.take() for _ in range(number)]
    for slot in slots:
        fates.dispatched(slot, group)
    return slots


@pytest.mark.parametrize("variance", [0.0, 0.3, 1.0])
def test_the_resemblance_of_siblings_is_learnt(variance):
    columns = Columns()
    fates = Fates(columns)
    assert fates.variance < 0.001
    rollouts(fates, columns, variance, groups=200)
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
    assert columns.fate[late[1]] < 0.8 < columns.fate[alone] == 1.0 < 1.2 < columns.fate[early[1]]
    # What it did itself is in the chances by turn already.
    assert columns.fate[late[0]] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("variance", [0.3, 1.0])
def test_as_many_ends_are_expected_as_come(variance):
    columns = Columns()
    fates = Fates(columns)
    rollouts(fates, columns, variance, groups=200)
    expected, came = rollouts(fates, columns, variance, groups=200, seed=1)
    assert expected == pytest.approx(came, rel=0.07)


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
