"""The ratio formula: within bounds, defined in every case, and never worse than it could be."""

import math

from hypothesis import given
from hypothesis import strategies as st

from prorsa.control.solver import TOLERANCE, Bounds, Need, solve

needs = st.builds(Need, prefill=st.floats(0, 100), decode=st.floats(0, 100))


@st.composite
def pools(draw: st.DrawFn) -> tuple[Bounds, int]:
    workers = draw(st.integers(2, 64))
    low = draw(st.integers(1, workers - 1))
    high = draw(st.integers(low, workers - 1))
    return Bounds(workers, low, high), draw(st.integers(0, workers))


@given(needs, pools())
def test_the_solution_is_in_bounds_and_adds_up(need: Need, pool: tuple[Bounds, int]) -> None:
    bounds, current = pool
    solution = solve(need, bounds, current)
    assert bounds.low <= solution.prefill <= bounds.high
    assert solution.prefill + solution.decode == bounds.workers
    assert solution.load == need.load(solution.prefill, solution.decode)


@given(needs, pools())
def test_a_split_that_fits_is_found_whenever_there_is_one(need: Need, pool: tuple[Bounds, int]) -> None:
    bounds, current = pool
    solution = solve(need, bounds, current)
    least = min(alternative.cost or 0.0 for alternative in solution.alternatives)
    assert (round(solution.load, 4) <= 1.0) == (least <= 1.0)
    assert (solution.case == "overload") == (solution.load > 1.0)


@given(needs, pools())
def test_an_overloaded_pool_shares_the_shortage(need: Need, pool: tuple[Bounds, int]) -> None:
    bounds, current = pool
    solution = solve(need, bounds, current)
    if solution.case == "overload":
        loads = [need.load(p, bounds.workers - p) for p in range(bounds.low, bounds.high + 1)]
        assert solution.load <= min(loads) * (1.0 + TOLERANCE)


@given(needs, pools())
def test_solving_again_from_the_solution_stays(need: Need, pool: tuple[Bounds, int]) -> None:
    bounds, current = pool
    solution = solve(need, bounds, current)
    assert solve(need, bounds, solution.prefill).prefill == solution.prefill


def test_room_to_spare_keeps_the_present_split() -> None:
    solution = solve(Need(prefill=1.5, decode=2.0), Bounds(8, 1, 7), current_prefill=4)
    assert (solution.prefill, solution.case) == (4, "slack")


def test_the_nearest_split_that_fits_is_chosen() -> None:
    solution = solve(Need(prefill=5.2, decode=1.0), Bounds(8, 1, 7), current_prefill=4)
    assert (solution.prefill, solution.decode, solution.case) == (6, 2, "move")


def test_a_demand_beyond_the_pool_is_shared_in_proportion() -> None:
    solution = solve(Need(prefill=12.0, decode=4.0), Bounds(8, 1, 7), current_prefill=4)
    assert (solution.prefill, solution.decode, solution.case) == (6, 2, "overload")
    assert math.isclose(solution.load, 2.0)


def test_no_demand_at_all_is_room_to_spare() -> None:
    assert solve(Need(0.0, 0.0), Bounds(4, 1, 3), current_prefill=1).case == "slack"
