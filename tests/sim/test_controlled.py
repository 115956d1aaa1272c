"""What a controller makes of the pool's mishaps: the same events as live, and a run that ends."""

import msgspec
import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.cluster.sim.config import Fault
from prorsa.run import make_plan
from prorsa.simulate import simulate


@pytest.mark.parametrize("policy", ["analytic", "static:3:3"])
def test_a_run_in_which_workers_die_and_slow_down_ends_with_every_token(policy: str) -> None:
    faults = (
        Fault(worker=5, at_s=20.0, kind="dies", for_s=20.0),  # amid the first burst, while it decodes
        Fault(worker=4, at_s=60.0, kind="slows", for_s=50.0, factor=4.0),
        Fault(worker=0, at_s=130.0, kind="dies", for_s=60.0),
    )
    quick = load_scenario("quick")
    scenario = msgspec.structs.replace(quick, faults=faults)
    workload = scenario.make_workload(3)
    run = simulate(make_plan(scenario, policy=policy, run_id="faults", seed=3, scored=False), workload=workload)
    assert run["output_tokens"] == workload.output_tokens.sum()
    assert run["trajectories_completed"] + run["trajectories_truncated"] == workload.trajectories  # type: ignore[operator]
    assert run["requests_interrupted"] > 0  # type: ignore[operator]
    alive = [sum(row[1:]) for row in run["split"]]  # type: ignore[index,attr-defined]
    assert min(alive) == scenario.workers - 1
    assert alive[-1] == scenario.workers
