"""Flows between states, and which trajectories stand out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa import events as ev
from prorsa.forecast.predictor import Predictor
from prorsa.forecast.standing import STUCK_S, TRAJECTORIES_SHOWN, longest_standing
from prorsa.forecast.trajectory import TrajectoryTable


class Told:
    """Hands events to a state machine, one after the other."""

    def __init__(self) -> None:
        self.predictor = Predictor()
        self._seq = 0

    @property
    def table(self) -> TrajectoryTable:
        return self.predictor.table

    def tell(self, t_s: float, *events: ev.AnyEvent) -> None:
        for event in events:
            self._seq += 1
            self.predictor.observe(ev.Stamped(self._seq, round(t_s * 1e9), "t", self._seq, 0, event))

    def turn(self, name: str, t_s: float, turn: int = 0) -> None:
        """A whole turn up to the tool that follows it."""
        request = f"{name}-{turn}"
        rid = ev.make_rid(request, 0)
        self.tell(
            t_s,
            ev.TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=900),
            ev.LlmSubmit(trajectory_id=name, request_id=request, attempt=0, turn=turn, prompt_tokens=900),
            ev.LlmPrefillStart(rid=rid, worker_id="w0"),
            ev.LlmPrefillEnd(rid=rid, worker_id="w0", cached_tokens=0),
            ev.LlmEnd(trajectory_id=name, request_id=request, attempt=0, output_tokens=20, finish_reason="stop"),
            ev.ToolStart(trajectory_id=name, tool_name="bash", expected_s=2.0),
        )


def test_every_move_between_states_is_counted_once() -> None:
    told = Told()
    for name in ("a", "b"):
        told.tell(0.0, ev.TrajectoryDispatched(trajectory_id=name))
        told.turn(name, 1.0)
    told.tell(5.0, ev.RewardStart(trajectory_id="a"), ev.TrajectoryEnd(trajectory_id="a", status="completed"))
    flows = told.table.flows()
    assert flows["dispatched>ready"] == flows["ready>prefill"] == flows["decode>tool"] == 2
    assert flows["tool>reward"] == flows["reward>done"] == 1
    assert "tool>tool" not in flows


def test_a_trajectory_says_how_long_it_is_in_its_state_what_it_waits_for_and_how_old_it_is() -> None:
    told = Told()
    told.tell(10.0, ev.TrajectoryDispatched(trajectory_id="a", prompt_tokens=900))
    told.turn("a", 12.0)
    (view,) = longest_standing(told.table, 15.0)
    assert (view.state, view.waits_for, view.expected_s) == ("tool", "bash", 2.0)
    assert (view.state_s, view.age_s) == (3.0, 5.0)
    assert (view.turn, view.prompt_tokens, view.output_tokens) == (0, 900, None)
    assert not view.stuck


def test_one_that_is_in_its_state_for_far_longer_than_others_is_stuck_and_comes_first() -> None:
    told = Told()
    for index in range(9):
        told.tell(0.0 if index else 50.0, ev.TrajectoryDispatched(trajectory_id=f"t{index}"))
    told.turn("t0", 60.0)
    for index in range(1, 9):
        told.turn(f"t{index}", 555.0)
    views = longest_standing(told.table, 560.0)
    assert [view.trajectory_id for view in views if view.stuck] == ["t0"]
    assert views[0].trajectory_id == "t0"  # though it is the youngest
    short = Told()
    short.tell(0.0, ev.TrajectoryDispatched(trajectory_id="a"))
    short.turn("a", 1.0)
    assert not longest_standing(short.table, STUCK_S)[0].stuck


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2 * TRAJECTORIES_SHOWN), st.integers(0, 20))
def test_as_many_as_are_shown_are_those_that_are_oldest(live: int, ended: int) -> None:
    told = Told()
    for index in range(live + ended):
        told.tell(float(index), ev.TrajectoryDispatched(trajectory_id=f"t{index}"))
    for index in range(ended):
        told.tell(1000.0, ev.TrajectoryEnd(trajectory_id=f"t{index}", status="aborted"))
    views = longest_standing(told.table, 1000.0)
    assert len(views) == min(live, TRAJECTORIES_SHOWN)
    ages = [view.age_s or 0.0 for view in views if not view.stuck]
    assert ages == sorted(ages, reverse=True)
    assert told.table.flows().get("dispatched>done", 0) == ended
