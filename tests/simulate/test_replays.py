"""Rules decide alike over a recording of their run: what they go by is all in the journal."""

import msgspec
import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.control.controller import Controller
from prorsa.control.replay import compare
from prorsa.events import EVENT_TYPES, Decision, Stamped
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import make_plan
from prorsa.simulate import simulate

SMALL = msgspec.structs.replace(load_scenario("quick"), steps=1, groups_per_step=4)
_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}


@pytest.mark.parametrize(
    "policy", ["reactive", "reactive:arrow", "reactive:proportional", "dynamo-like", "dynamo-like+guards"]
)
def test_a_rule_decides_alike_over_its_recording(policy: str) -> None:
    plan = make_plan(SMALL, policy=policy, run_id="t", scored=False)
    journal: list[Stamped] = []
    simulate(plan, recorder=journal.extend)
    predictor = None if plan.control.forecast is None else Predictor(ForecastConfig())
    result = compare(
        Controller(plan.control, predictor),
        lambda types: (stamped for stamped in journal if _NAMES[type(stamped.event)] in types),
    )
    assert result.first_difference is None
    assert result.decisions == result.equal > 10
    assert any(isinstance(stamped.event, Decision) and stamped.event.inputs for stamped in journal)
