"""Workers that an operator takes out of the pool, and dry runs: what they say is what then happens."""

import msgspec
import pytest

from prorsa.control.controller import Controller
from prorsa.control.replay import fold
from prorsa.events import Alert, Command, Flip, Override, Split, WorkerDown, WorkerUp
from tests.control.pool import Pool

PPDD = ["prefill", "prefill", "decode", "decode"]


def flip_states(pool: Pool, worker_id: str) -> list[str]:
    return [event.state for event in pool.said if isinstance(event, Flip) and event.worker_id == worker_id]


def test_a_drained_worker_is_emptied_stays_out_and_comes_back_with_a_canary() -> None:
    pool = Pool(PPDD, policy="static:2:2")
    answer = pool.command("drain", target="w3")
    assert answer.state == "accepted"
    assert "move on" in (answer.detail or "")
    assert [effect.action for effect in pool.asked] == ["fence", "drain"]
    pool.run(10)
    assert pool.roles() == "PPDd"
    assert pool.controller.registry.split() == Split(2, 1)
    assert pool.life("r1") == ["accepted", "draining", "effective"]
    assert not [event for event in pool.said if isinstance(event, Alert)]  # an order is no alarm
    assert pool.command("readmit", target="w3").state == "accepted"
    pool.run(2)
    assert [effect.action for effect in pool.asked] == ["fence", "drain", "warm", "admit"]
    assert pool.roles() == "PPDD"
    assert pool.life("r1") == ["accepted", "draining", "effective", "released"]
    assert flip_states(pool, "w3") == ["fenced", "draining", "quarantined", "warming", "serving"]
    epochs = [effect.epoch for effect in pool.asked]
    assert epochs == sorted(epochs)


def test_a_quarantined_worker_keeps_its_requests_and_returns_when_its_time_is_over() -> None:
    pool = Pool(PPDD, policy="static:2:2")
    pool.command("quarantine", target="w3", for_s=20.0)
    pool.run(15)
    assert [effect.action for effect in pool.asked] == ["fence"]
    assert pool.roles() == "PPDd"
    pool.run(10)
    assert pool.roles() == "PPDD"
    assert pool.life("r1") == ["accepted", "draining", "effective", "expired"]


def test_time_that_is_over_while_a_worker_is_still_being_drained_brings_it_back_after_that() -> None:
    pool = Pool(PPDD, policy="static:2:2", slow=["drain"])
    pool.command("drain", target="w3", for_s=5.0)
    pool.run(8)
    assert pool.life("r1") == ["accepted", "draining", "expired"]
    assert pool.roles() == "PPDd"
    pool.answer()
    pool.run(2)
    assert pool.roles() == "PPDD"


def test_a_worker_that_comes_back_under_the_name_of_one_that_is_out_is_taken_out_again() -> None:
    pool = Pool(PPDD, policy="static:2:2")
    pool.command("drain", target="w2")
    pool.run(2)
    pool.feed(WorkerDown(worker_id="w2", reason="maintenance"))
    pool.run(2)
    pool.feed(WorkerUp(worker_id="w2", role="decode", epoch=0, flippable=True, kv_capacity=700_000))
    pool.run(2)
    assert pool.roles() == "PPdD"
    assert pool.life("r1")[-1] == "effective"
    pool.command("readmit", target="w2")
    pool.run(2)
    assert pool.roles() == "PPDD"


def test_a_worker_that_the_router_will_not_let_go_stays_and_the_request_says_so() -> None:
    pool = Pool(PPDD, policy="static:2:2", slow=["fence"])
    pool.command("drain", target="w3")
    pool.answer(ok=False)
    pool.run(2)
    assert pool.roles() == "PPDD"
    assert pool.life("r1")[-1] == "rejected"
    assert flip_states(pool, "w3")[-1] == "restored"


def test_a_drain_that_does_not_end_still_takes_the_worker_out() -> None:
    pool = Pool(PPDD, policy="static:2:2", slow=["drain"])
    pool.command("drain", target="w3")
    pool.run(100)
    assert pool.roles() == "PPDd"
    assert pool.life("r1") == ["accepted", "draining", "effective"]
    last = [event for event in pool.said if isinstance(event, Flip)][-1]
    assert "not answered" in last.reason


@pytest.mark.parametrize("verb", ["drain", "quarantine"])
def test_the_pool_keeps_a_serving_worker_of_each_role(verb: str) -> None:
    pool = Pool(["prefill", "decode", "decode"], policy="static:1:2")
    assert "last serving prefill" in (pool.command(verb, target="w0").detail or "")
    assert pool.command(verb, target="w1").state == "accepted"
    pool.run(3)
    assert "last serving decode" in (pool.command(verb, target="w2").detail or "")
    assert "quarantined" in (pool.command(verb, target="w1").detail or "")
    assert "no worker 'w9'" in (pool.command(verb, target="w9").detail or "")
    assert "takes a worker" in (pool.command(verb).detail or "")


def test_there_is_nothing_to_readmit_in_a_worker_that_serves() -> None:
    pool = Pool(PPDD)
    assert "nothing to readmit" in (pool.command("readmit", target="w1").detail or "")


def test_a_worker_that_a_failed_flip_has_quarantined_can_be_readmitted() -> None:
    pool = Pool(PPDD, policy="static:3:1", slow=["switch"])
    pool.run(2)
    worker = next(worker for worker in pool.controller.registry if worker.switching)
    pool.answer(ok=False)
    pool.run(1)
    assert worker.state == "quarantined"
    pool.command("freeze")
    pool.command("readmit", target=worker.worker_id)
    pool.run(1)
    assert worker.serving


def test_the_split_that_is_planned_leaves_out_who_is_out() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode", "decode"], policy="static:2:3")
    pool.command("drain", target="w4")
    pool.run(8)
    assert pool.decisions()[-1].current == Split(2, 2)
    assert "4 workers" in pool.decisions()[-1].reason


def test_a_restarted_controller_knows_who_is_out() -> None:
    pool = Pool(PPDD, policy="static:2:2")
    pool.command("drain", target="w3")
    pool.run(3)
    again = Controller(pool.controller.config, None)
    for _ in fold(again, pool.log, []):
        pass
    entry = again.overrides.out("w3")
    assert entry is not None
    assert entry.owner == "ann"
    assert again.registry.get("w3").state == "quarantined"
    assert again.executor.outstanding() == []


# --- dry runs ---------------------------------------------------------------------------------------------------------

LOADS = [{"queued": 3, "running": 1, "kv_used": 1000}, {}, {"queued": 0, "running": 20, "kv_used": 9000}, {"queued": 0}]


@pytest.mark.parametrize(
    ("verb", "fields", "leads_to"),
    [
        ("pin", {"target": "w2", "value": "prefill"}, Split(3, 1)),
        ("override", {"value": "3:1"}, Split(3, 1)),
        ("policy", {"value": "static:1:3"}, Split(1, 3)),
        ("freeze", {}, Split(2, 2)),
        ("drain", {"target": "w2"}, Split(2, 1)),
        ("quarantine", {"target": "w0"}, Split(2, 1)),  # static:2:2 makes a decode worker take its place
    ],
)
def test_a_dry_run_says_what_then_happens_and_changes_nothing(
    verb: str, fields: dict[str, str], leads_to: Split
) -> None:
    pool = Pool(PPDD, policy="static:2:2", loads=LOADS)
    pool.run(2)
    said, decided = len(pool.asked), pool.controller.overrides.views(0)
    before = msgspec.json.encode([pool.controller.registry.split(), pool.controller.policy.name])
    answer = pool.command(verb, dry_run=True, reason="", **fields)
    assert answer.state == "accepted", answer.detail
    assert answer.effect is not None
    assert (answer.effect.current, answer.effect.leads_to) == (Split(2, 2), leads_to)
    assert len(pool.asked) == said
    assert pool.controller.overrides.views(0) == decided == ()
    assert msgspec.json.encode([pool.controller.registry.split(), pool.controller.policy.name]) == before
    pool.run(6)
    assert pool.roles() == "PPDD"
    assert not [event for event in pool.said if isinstance(event, Override)]
    # And the real thing comes out as it was said.
    moves = {move.worker_id for move in answer.effect.moves}
    assert pool.command(verb, **fields).state == "accepted"
    pool.run(1)
    started = {effect.worker_id for effect in pool.asked if effect.action == "fence"}
    assert started == moves | ({fields["target"]} if verb in ("drain", "quarantine") else set())


def test_a_dry_run_counts_the_requests_that_would_be_touched_and_knows_what_it_does_not_know() -> None:
    pool = Pool(PPDD, policy="static:2:2", loads=LOADS)
    touched = pool.command("pin", target="w2", value="prefill", dry_run=True).effect
    assert touched is not None
    assert (touched.requests, touched.kv_tokens) == (20, 9000)
    unknown = pool.command("drain", target="w1", dry_run=True)
    assert unknown.effect is not None
    assert (unknown.effect.requests, unknown.effect.kv_tokens) == (None, None)


def test_a_dry_run_is_refused_in_the_words_of_the_command() -> None:
    pool = Pool(["prefill", "decode"])
    dry = pool.command("pin", target="w9", value="decode", dry_run=True)
    real = pool.command("pin", target="w9", value="decode")
    assert (dry.state, dry.detail) == (real.state, real.detail) == ("rejected", "no worker 'w9'; there are w0, w1")


def test_a_dry_run_of_an_approval_shows_the_plan_that_waits() -> None:
    pool = Pool(PPDD, policy="static:3:1", mode="approve")
    pool.run(2)
    effect = pool.command("approve", dry_run=True).effect
    assert effect is not None
    assert effect.leads_to == Split(3, 1)
    assert pool.controller.proposal is not None
    assert pool.roles() == "PPDD"


def test_what_a_dry_run_would_start_waits_where_plans_are_approved() -> None:
    pool = Pool(PPDD, policy="static:2:2", mode="approve")
    effect = pool.command("policy", value="static:3:1", dry_run=True).effect
    assert effect is not None
    assert effect.waits_for_approval
    pinned = pool.command("pin", target="w2", value="prefill", dry_run=True).effect
    assert pinned is not None
    assert not pinned.waits_for_approval


def test_a_question_for_trajectories_without_a_forecast_is_answered_with_unknown() -> None:
    pool = Pool(PPDD)
    answer = pool.command("details", reason="")
    assert isinstance(answer, Command)
    assert (answer.state, answer.trajectories) == ("accepted", None)
