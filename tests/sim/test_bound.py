"""The physical limit: below every run, and reached where nothing is in the way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import Experts
from prorsa.cluster.sim.bound import limit_makespan_s
from prorsa.cluster.sim.limits import alone_s
from prorsa.events import Role
from tests.sim.pools import Trip, Turn, make_profile, make_workload, one, pool, run

TURNS = st.builds(Turn, st.integers(1, 4_000), st.integers(1, 60), st.floats(0, 3))
FIRST = st.builds(Turn, st.integers(1, 4_000), st.integers(1, 60))
TRIPS = st.lists(
    st.builds(
        lambda first, others, sandbox_s: Trip((first, *others), sandbox_s),
        FIRST,
        st.lists(TURNS, max_size=2),
        st.floats(0, 2),
    ),
    min_size=1,
    max_size=12,
)
ROLES: tuple[tuple[Role, ...], ...] = (("prefill", "decode"), ("mixed", "mixed"), ("prefill", "prefill", "decode"))


@settings(deadline=None, max_examples=40)
@given(TRIPS, st.sampled_from(ROLES), st.integers(1, 12), st.sampled_from([1, 2]))
def test_no_run_is_below_the_limit(trips: list[Trip], roles: tuple[Role, ...], concurrency: int, ranks: int) -> None:
    experts = Experts(prefill=((1, 2.0), (1000, 20.0)), decode=((1, 1.0), (64, 4.0)))
    sim = pool(trips, roles, profile=make_profile(ranks=ranks, experts=experts), concurrency=concurrency)
    run(sim)
    row = sim.report()
    assert row["limit_makespan_s"] <= row["makespan_s"] * (1 + 1e-9)


def test_one_trajectory_is_bound_by_itself() -> None:
    profile, workload = make_profile(), make_workload([one(3_000, 50, sandbox_s=4.0)])
    assert limit_makespan_s(profile, workload, 4, concurrency=1) == pytest.approx(alone_s(profile, workload).max())


def test_much_work_is_bound_by_the_workers() -> None:
    profile = make_profile()
    few = limit_makespan_s(profile, make_workload([one(4_000, 100)] * 400), 2, concurrency=400)
    many = limit_makespan_s(profile, make_workload([one(4_000, 100)] * 400), 4, concurrency=400)
    assert few == pytest.approx(2 * many)


def test_few_at_a_time_are_bound_by_their_number() -> None:
    profile, workload = make_profile(), make_workload([one(100, 2, sandbox_s=10.0)] * 30)
    assert limit_makespan_s(profile, workload, 4, concurrency=3) > 100.0


def test_steps_follow_one_another_with_an_update_between() -> None:
    trips = [Trip((Turn(1_000, 20),), step=step) for step in (0, 0, 1, 1)]
    profile = make_profile()
    whole = limit_makespan_s(profile, make_workload(trips), 2, concurrency=4, weight_update_s=7.0)
    half = limit_makespan_s(profile, make_workload(trips[:2]), 2, concurrency=4)
    assert whole == pytest.approx(2 * half + 7.0)
