"""What the console knows after the events that it has seen."""

from collections import deque

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.console.history import PoolHistory, WorkerHistory
from prorsa.console.model import TOPICS, ConsoleModel
from prorsa.events import (
    Alert,
    AnyEvent,
    Command,
    Decision,
    Flip,
    Override,
    RunBegin,
    RunEnd,
    Split,
    Stamped,
    WorkerLoad,
    type_name,
)
from tests.console import story


def model_of(*events: AnyEvent) -> ConsoleModel:
    model = ConsoleModel()
    for index, event in enumerate(events):
        model.apply(Stamped(index + 1, nanoseconds(index), "test", index + 1, 0, event))
    return model


def told(until_s: float = story.END_S) -> ConsoleModel:
    model = ConsoleModel()
    for stamped in story.stamped(until_s):
        model.apply(stamped)
    return model


def test_a_whole_run_is_folded() -> None:
    model = told()
    assert model.tick_s == story.END_S
    assert model.known_s == story.END_S
    assert model.splits.at(0.0) == Split(4, 4)
    assert model.splits.at(200.0) == Split(5, 3)
    assert model.view is not None
    assert model.view.split == Split(4, 4)
    assert model.run is not None
    assert model.run.scenario == "coding-async"
    assert [flip.latest.to_role for flip in model.flips.values()] == ["prefill", "decode", "decode", "prefill"]


def test_forecast_and_actual_meet_at_the_tick_of_the_forecast() -> None:
    model = told()
    point = model.demand["prefill"].last_actual()
    assert point is not None
    assert point.t_s == story.END_S - 16
    assert point.actual == story.demand(point.t_s)
    assert point.p50 == story.guess(story.demand, point.t_s)
    assert model.demand["prefill"].points[-1].actual is None


def test_without_the_forecast_topic_the_view_stands_in() -> None:
    model = model_of(story.view_at(10.0))
    assert [point.t_s for point in model.demand["prefill"].points] == [10.0]


def test_events_of_other_kinds_change_nothing() -> None:
    model = model_of(story.view_at(10.0))
    version = model.version
    model.apply(Stamped(9, nanoseconds(99), "test", 9, 0, WorkerLoad(worker_id="w0")))
    assert (model.version, model.now_ns) == (version, 0)
    assert type_name(WorkerLoad) not in TOPICS


def test_holds_alike_count_as_one_and_moves_do_not() -> None:
    model = told(400.0)
    statuses = [entry.decision.status for entry in model.decisions]
    assert statuses.count("applied") == 3
    assert sum(entry.repeats for entry in model.decisions) == 81  # one each 5 s, and that of the first view
    assert model.decisions[0].decision.decision_id == 80
    assert len(model.decisions) < 12


def test_a_decision_seen_twice_counts_once() -> None:
    decision = story.decision_at(5.0)
    model = model_of(decision, decision, story.view_at(6.0, last_decision=decision))
    assert [entry.repeats for entry in model.decisions] == [1]


def test_a_late_console_has_the_views_last_decision_and_overrides() -> None:
    model = model_of(story.view_at(500.0))
    assert model.decisions[0].decision.decision_id == 100
    (life,) = model.requests
    assert (life.what(), life.state, life.in_force) == ("pin w1 prefill", "effective", True)
    assert life.expires_ns == nanoseconds(2200.0)


def test_a_worker_is_in_its_flip_until_it_serves_again() -> None:
    def flip(state: str) -> Flip:
        return Flip(
            flip_id="f1",
            worker_id="w1",
            from_role="prefill",
            to_role="decode",
            epoch=2,
            state=state,
            reason="",
            tick_ns=0,
        )

    (entry,) = model_of(flip("fenced"), flip("draining")).flips.values()
    assert (entry.latest.state, entry.under_way) == ("draining", True)
    (entry,) = model_of(flip("fenced"), flip("serving")).flips.values()
    assert not entry.under_way


def test_a_new_run_is_not_ended_by_the_one_before() -> None:
    model = model_of(RunBegin(scenario="a"), RunEnd(status="completed"), RunBegin(scenario="b"))
    assert model.ended is None
    assert model_of(RunBegin(), RunEnd(status="failed")).ended == RunEnd(status="failed")


def test_reset_forgets_the_run_and_keeps_the_requests() -> None:
    model = told()
    version = model.version
    model.reset()
    assert model.view is None
    assert model.known_s == 0.0
    assert not model.decisions
    assert not model.demand["prefill"].points
    assert model.version > version
    assert [life.request_id for life in model.requests] == ["pin-1", "split-1"]


def test_history_is_bounded() -> None:
    model = ConsoleModel(decisions=5, flips=5, alerts=5)
    model.log.entries = deque(maxlen=5)
    model.workers = WorkerHistory(recent=5, older=5, older_every_s=1.0)
    model.pool = PoolHistory(limit=5)
    decision = msgspec.structs.replace(story.decision_at(150.0))
    for index in range(50):
        for event in (
            msgspec.structs.replace(decision, decision_id=index),
            Flip(
                flip_id=f"f{index}",
                worker_id="w1",
                from_role="prefill",
                to_role="decode",
                epoch=index,
                state="fenced",
                reason="",
                tick_ns=0,
            ),
            Alert(code=f"a{index}", severity="warning", text=""),
            story.view_at(float(index)),
            Command(client="c", request_id=f"r{index}", verb="approve", state="accepted", owner="o", reason="r"),
        ):
            model.apply(Stamped(index + 1, 0, "test", index + 1, 0, event))
    assert len(model.decisions) == len(model.flips) == len(model.alerts) == 5
    assert len(model.workers.points("w0")) == 10
    assert len(model.pool.points) == len(model.log.entries) == 5
    assert len(list(model.requests)) <= 101


def test_a_load_that_was_never_reported_is_unknown() -> None:
    model = told()
    worker = model.worker("w7")
    assert worker is not None
    assert worker.kv_used is None
    assert {view.kv_used for _, view in model.workers.points("w7")} == {None}
    assert model.forecast_row("kv_need") is None
    assert model.score("kv_need") is None
    assert ConsoleModel().forecast_row("prefill") is None


def command(state: str, **changes: object) -> Command:
    known = {
        "client": "c",
        "request_id": "r",
        "verb": "pin",
        "owner": "o",
        "reason": "why",
        "target": "w1",
        "value": "decode",
    }
    return Command(**(known | changes), state=state)


def override(state: str, **changes: object) -> Override:
    known = {"override_id": "r", "kind": "pin", "owner": "o", "reason": "why", "target": "w1", "value": "decode"}
    return Override(**(known | changes), state=state)


def test_the_life_of_a_pin_is_shown_as_it_is() -> None:
    lives = [
        command("requested"),
        command("accepted"),
        override("accepted"),
        override("draining"),
        override("effective"),
    ]
    (life,) = model_of(*lives).requests
    assert life.states == ["requested", "accepted", "draining", "effective"]
    assert life.in_force
    assert not life.pending
    (life,) = model_of(*lives, override("expired")).requests
    assert life.states[-2:] == ["effective", "expired"]
    assert not life.in_force


def test_an_answer_that_comes_after_the_override_is_further_on_does_not_set_it_back() -> None:
    (life,) = model_of(command("requested"), override("draining"), command("accepted")).requests
    assert life.state == "draining"


def test_a_pin_whose_worker_died_waits_again() -> None:
    (life,) = model_of(override("effective"), override("accepted")).requests
    assert life.state == "accepted"
    assert life.pending


def test_an_unanswered_request_may_still_be_answered_later() -> None:
    model = model_of(command("requested"))
    model.requests.unanswered("r", "nobody")
    (life,) = model.requests
    assert (life.state, life.detail, life.pending) == ("unanswered", "nobody", False)
    model.requests.command(command("accepted"))
    assert life.states == ["requested", "unanswered", "accepted"]
    model.requests.unanswered("r", "too late")
    assert life.state == "accepted"


def test_only_requests_of_this_console_keep_it_from_quitting() -> None:
    model = model_of(command("requested"))
    assert model.requests.pending() == []
    model.requests.command(command("requested"), mine=True)
    assert [life.request_id for life in model.requests.pending()] == ["r"]


def test_a_mode_change_is_done_once_it_is_accepted() -> None:
    (life,) = model_of(command("requested", verb="mode"), command("accepted", verb="mode")).requests
    assert not life.pending
    assert not life.in_force


@given(st.lists(st.sampled_from(["requested", "accepted", "draining", "effective", "rejected", "expired", "released"])))
def test_no_state_follows_itself(states: list[str]) -> None:
    model = model_of(*(override(state) for state in states))
    for life in model.requests:
        assert all(before != after for before, after in zip(life.states, life.states[1:], strict=False))
        assert life.state == states[-1]


def test_a_view_without_decisions_leaves_them_empty() -> None:
    model = model_of(story.view_at(10.0, last_decision=None))
    assert not model.decisions
    assert isinstance(story.decision_at(5.0), Decision)
