"""Asking changes nothing: a run that is asked all the time decides as one that is never asked."""

from typing import Any

import msgspec
import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.control.controller import Controller
from prorsa.driving import Driver
from prorsa.events import Command, Decision, Stamped
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import make_plan
from prorsa.simulate import make_simulation
from tests.serve.running import MINI

QUESTIONS = (
    {"verb": "override", "value": "3:1"},
    {"verb": "pin", "target": "w0", "value": "decode"},
    {"verb": "drain", "target": "w2"},
    {"verb": "policy", "value": "static:1:3"},
    {"verb": "mode", "value": "approve"},
    {"verb": "pin", "target": "nobody", "value": "decode"},
    {"verb": "freeze"},
    {"verb": "details"},
)


def decisions(policy: str, until_s: float, *, asked: bool) -> tuple[list[dict[str, Any]], list[Command]]:
    """What is decided up to a time, and the answers to the questions."""
    scenario = msgspec.structs.replace(load_scenario(str(MINI)), prefill_workers=3)
    plan = make_plan(scenario, policy=policy, run_id="run")
    kept: list[Stamped] = []
    controller = Controller(plan.control, Predictor(ForecastConfig()))
    driver = Driver(make_simulation(plan), controller, plan.control.tick_s, keep=kept.append)
    while driver.due_s <= until_s:
        driver.advance()
        driver.tick()
        for number, question in enumerate(QUESTIONS if asked and driver.ticks % 4 == 3 else ()):
            command = Command(
                client="c",
                request_id=f"{driver.ticks}-{number}",
                state="requested",
                owner="ann",
                reason="",
                dry_run=question["verb"] != "details",
                **question,  # type: ignore[arg-type]
            )
            driver.observe("operator", driver.simulation.now_s, command)
    made = [stamped.event for stamped in kept if isinstance(stamped.event, Decision)]
    fields = [name for name in Decision.__struct_fields__ if name != "upto_hub_seq"]
    commands = [stamped.event for stamped in kept if isinstance(stamped.event, Command)]
    answers = [command for command in commands if command.state != "requested"]
    return [{name: getattr(decision, name) for name in fields} for decision in made], answers


@pytest.mark.parametrize("policy", ["analytic", "lookahead"])
def test_a_run_that_is_asked_over_and_over_decides_as_one_that_is_not(policy: str) -> None:
    alone, _ = decisions(policy, 100.0, asked=False)
    beside, answers = decisions(policy, 100.0, asked=True)
    assert beside == alone
    if policy == "analytic":
        assert any(decision["moves"] for decision in alone), "a run without a flip would test little"
    by_verb = {command.verb: command.state for command in answers if command.target != "nobody"}
    assert set(by_verb.values()) == {"accepted"}
    assert {command.state for command in answers if command.target == "nobody"} == {"rejected"}
    assert [command.trajectories for command in answers if command.verb == "details"][-1]
