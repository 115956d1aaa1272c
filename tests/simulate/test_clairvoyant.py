"""The clairvoyant bound: never worse than the best fixed split, and its copies end as the run itself does."""

import msgspec
import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.control.controller import Controller
from prorsa.control.policies import Planned
from prorsa.driving import Driver
from prorsa.errors import ConfigError
from prorsa.events import Split
from prorsa.run import make_plan, make_workload
from prorsa.simulate import make_simulation, simulate

SMALL = msgspec.structs.replace(load_scenario("quick"), steps=2, groups_per_step=2)
POLICIES = [f"static:{p}:{6 - p}" for p in range(1, 6)]


def test_it_is_never_worse_than_the_best_fixed_split() -> None:
    for seed in (0, 1):
        plans = {
            policy: make_plan(SMALL, policy=policy, run_id="t", seed=seed, scored=False, batch=True)
            for policy in (*POLICIES, "clairvoyant")
        }
        workload = make_workload(plans["clairvoyant"])
        rows = {policy: simulate(plan, workload=workload) for policy, plan in plans.items()}
        best = min(float(str(rows[policy]["step_s"])) for policy in POLICIES)
        assert float(str(rows["clairvoyant"]["step_s"])) <= best
        search = rows["clairvoyant"]["search"]
        assert isinstance(search, dict)
        assert search["rollouts"] >= len(POLICIES)


def test_scoring_the_forecast_changes_only_when_it_looks() -> None:
    plan = make_plan(SMALL, policy="clairvoyant", run_id="t", scored=True, batch=True)
    row = simulate(plan)
    assert row["forecast"] is not None
    assert row["makespan_s"] is not None


def test_a_copy_in_the_middle_of_a_flip_ends_as_the_run_does() -> None:
    plan = make_plan(SMALL, policy="clairvoyant", run_id="t", scored=False, batch=True)
    flips = ((0.0, Split(prefill=3, decode=3)), (30.0, Split(prefill=5, decode=1)), (60.0, Split(prefill=2, decode=4)))
    simulation = make_simulation(plan, emit=False)
    driver = Driver(simulation, Controller(plan.control, None, Planned("clairvoyant", flips)), plan.control.decide_s)
    while driver.due_s <= 60.0:
        driver.advance()
        driver.tick()
    assert len(driver.controller.executor)
    copied = simulation.copy(emit=False)
    copy = Driver(copied, driver.controller.fork(Planned("clairvoyant", flips)), driver.tick_s, ticks=driver.ticks)
    for one in (copy, driver):
        while not one.simulation.done:
            one.advance()
            if not one.simulation.done:
                one.tick()
    assert copied.report() == simulation.report()


def test_coasting_ends_as_advancing_does() -> None:
    plan = make_plan(SMALL, policy="static:3:3", run_id="t", scored=False)
    told, quiet = make_simulation(plan), make_simulation(plan)
    while not told.done:
        told.advance(told.now_s + 10.0)
    quiet.coast()
    assert quiet.report()["makespan_s"] == told.report()["makespan_s"]
    assert quiet.report()["output_tokens"] == told.report()["output_tokens"]


def test_it_needs_two_workers() -> None:
    with pytest.raises(ConfigError, match="at least 2 workers"):
        make_plan(msgspec.structs.replace(SMALL, workers=1), policy="clairvoyant", run_id="t", scored=False, batch=True)
