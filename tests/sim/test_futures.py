"""Simulations that go on with another future, and what the demand of a future comes to."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.cluster.oracle import DistributionOracle
from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import load_scenario
from prorsa.cluster.workloads.standing import ANSWERING, ENDED, REWARD, SANDBOX, TOOL, WAITING
from prorsa.errors import ConfigError
from prorsa.events import Stamped
from prorsa.forecast.predictor import Predictor
from prorsa.run import make_plan
from prorsa.simulate import make_simulation
from tests.sim.pools import Trip, Turn, pool

HORIZONS = (5.0, 15.0, 30.0)


def run(scenario="general-async", seed=3, until_s=0.0):
    scenario = load_scenario(scenario).with_overrides(workers=4, concurrency=48)
    half = make_plan(scenario, policy="static:2:2", run_id="test", seed=seed)
    workload = scenario.make_workload(seed)
    sim = make_simulation(half, workload)
    advance(sim, until_s)
    return sim, workload, scenario


def advance(sim, until_s):
    events = []
    while sim.now_s < until_s and not sim.done:
        events += sim.advance(until_s)
    return events


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["general-async", "quick"]), st.integers(0, 50), st.floats(0.0, 90.0))
def test_the_same_workload_again_is_the_same_run(scenario, seed, at_s):
    """Timers and ends of answers that are moved to where they were leave everything as it was."""
    sim, workload, _ = run(scenario, seed, at_s)
    again, plain = sim.redrawn(workload), sim.copy()
    assert advance(again, at_s + 60.0) == advance(plain, at_s + 60.0)
    assert again.report() == plain.report()


def test_a_copy_leaves_its_original_alone():
    sim, workload, _ = run(until_s=20.0)
    before = sim.outcome(HORIZONS)
    advance(sim.redrawn(workload), 60.0)
    assert sim.outcome(HORIZONS) == before
    assert sim.now_s == 20.0


def test_standing_tells_where_each_trajectory_is():
    trips = [
        Trip((Turn(1000, 500), Turn(2000, 10, gap_s=8.0))),
        Trip((Turn(1000, 5), Turn(2000, 10, gap_s=8.0))),
        Trip((Turn(1000, 5),), reward_s=9.0),
        Trip((Turn(1000, 5),)),
        Trip((Turn(1000, 5),), sandbox_s=6.0),
    ]
    sim = pool(trips, concurrency=5)
    sim.advance(1.0)
    standing = sim.standing()
    assert standing.stage.tolist() == [ANSWERING, TOOL, REWARD, ENDED, SANDBOX]
    assert standing.turn.tolist() == [0, 1, 0, 0, 0]
    assert standing.elapsed_s[4] == 1.0
    assert 0.0 < standing.elapsed_s[1] < 1.0
    # A step takes 10 ms, 0.1 ms for the request and 1 ms for its context of about 1,050 tokens.
    assert 40 < standing.output_tokens[0] < 100
    later = sim.copy()
    later.advance(1.5)
    assert later.standing().elapsed_s - standing.elapsed_s == pytest.approx([0.0, 0.5, 0.5, 0.0, 0.5])
    assert later.standing().output_tokens[0] - standing.output_tokens[0] == pytest.approx(0.5e3 / 11.15, abs=1)


def test_what_waits_is_not_dispatched():
    sim = pool([Trip((Turn(1000, 500),)), Trip((Turn(1000, 500),))], concurrency=1)
    sim.advance(1.0)
    assert sim.standing().stage.tolist() == [ANSWERING, WAITING]


@pytest.mark.parametrize(("output", "gap_s"), [(300, 8.0), (120, 8.0), (900, 2.0)])
def test_an_answer_under_way_ends_where_the_new_future_says(output, gap_s):
    """The run that had this future from the start is the yardstick."""

    def make(output, gap_s):
        turns = (Turn(1000, output), Turn(2000, 10, gap_s=gap_s))
        return pool([Trip(turns), Trip((Turn(900, 5), Turn(1000, 5, gap_s=gap_s)))])

    other = make(output, gap_s)
    sim = make(500, 5.0)
    sim.advance(1.0)
    moved = sim.redrawn(other._workload)
    assert advance(moved, 60.0)[-1][0] == pytest.approx(advance(other, 60.0)[-1][0], abs=1e-9)


# --- outcomes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["general-async", "coding-async"])
def test_outcomes_are_what_forecasts_are_scored_against(scenario):
    """What a copy's future comes to is what the score keeper settles once it has happened.

    Without groups: where siblings wait for each other's prompt, the events underrate the chunks that are computed.
    """
    sim, _, _ = run(scenario)
    predictor, outcomes, settled, seq = Predictor(), {}, {}, 0
    for second in range(1, 150):
        for t_s, event in advance(sim, float(second)):
            predictor.observe(Stamped(seq + 1, nanoseconds(t_s), "cluster", seq, 0, event))
            seq += 1
        frame = predictor.tick(nanoseconds(second))
        settled |= {(row.target, row.horizon_s, round(row.tick_ns / 1e9)): row for row in frame.settled}
        if second % 9 == 1 and second < 90:
            outcomes[second] = sim.outcome(HORIZONS)
    compared = 0
    for second, by_horizon in outcomes.items():
        for horizon_s, outcome in by_horizon.items():
            for target, total, arrivals in (
                ("prefill", outcome.prefill, outcome.prefill_arrivals),
                ("decode_admission", outcome.decode_admission, outcome.admission_arrivals),
                ("kv_need", outcome.kv_need, outcome.kv_need),
            ):
                row = settled.get((target, horizon_s, second))
                if row is not None:
                    compared += 1
                    assert (total, arrivals) == pytest.approx((row.actual, row.actual_arrivals), rel=2e-3)
    assert compared > 60


def test_the_oracle_covers_what_happens():
    """Over runs and times, about eight in ten outcomes lie between its p10 and p90, and half below its median."""
    inside, below, count = 0, 0, 0
    for seed in range(4):
        sim, workload, scenario = run(seed=seed)
        oracle = DistributionOracle(scenario, load_profile(scenario.profile), futures=40)
        for at_s in (1.0, 12.0):
            advance(sim, at_s)
            truth = sim.outcome((5.0, 15.0))
            spreads = oracle.look(sim, workload, (5.0, 15.0), np.random.default_rng(seed))
            for (target, horizon_s), spread in spreads.items():
                value = getattr(truth[horizon_s], target)
                inside += spread.p10 <= value <= spread.p90
                below += value < spread.p50
                count += 1
    assert 0.6 < inside / count < 0.95
    assert 0.25 < below / count < 0.75


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"oversample": 1.5}, "over-sampling"), ({"sessions": "some.csv"}, "recorded sessions")],
)
def test_the_oracle_refuses_what_it_does_not_know(changes, said):
    scenario = msgspec.structs.replace(load_scenario("general-sync"), **changes)
    with pytest.raises(ConfigError, match=said):
        DistributionOracle(scenario, load_profile(scenario.profile))


def test_the_oracle_repeats_with_its_randomness():
    sim, workload, scenario = run(until_s=10.0)
    oracle = DistributionOracle(scenario, load_profile(scenario.profile), futures=3)
    first, second, other = (oracle.look(sim, workload, (5.0,), np.random.default_rng(s)) for s in (1, 1, 2))
    assert first == second
    assert first != other
