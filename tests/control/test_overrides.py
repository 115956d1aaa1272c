"""Overrides, modes and commands, as an operator meets them."""

import pytest

from prorsa.events import WeightsUpdateBegin, WeightsUpdateEnd, WorkerDown, WorkerUp
from tests.control.pool import Pool


def test_a_pin_goes_through_its_life_and_holds_until_it_expires() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2", slow=["drain"])
    answer = pool.command("pin", target="w2", value="prefill", for_s=60.0)
    assert (answer.state, answer.request_id) == ("accepted", "r1")
    pool.tick()
    assert pool.roles() == "PPdD"
    pool.answer()
    # The policy wants 2:2, so an unpinned prefill worker goes the other way once the pin is effective.
    pool.run(5)
    assert pool.life("r1") == ["accepted", "draining", "effective"]
    worker = pool.controller.registry.get("w2")
    assert worker is not None
    assert worker.role == "prefill"
    pool.run(60)
    assert pool.life("r1")[-1] == "expired"
    assert pool.controller.overrides.pinned("w2") is None


def test_a_pin_to_the_present_role_is_effective_without_a_flip() -> None:
    pool = Pool(["prefill", "decode"], policy="static:1:1")
    pool.command("pin", target="w0", value="prefill")
    pool.run(6)
    assert pool.life("r1") == ["accepted", "effective"]
    assert pool.asked == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "w9", "value": "decode"}, "no worker 'w9'; there are w0, w1, w2"),
        ({"target": "w0", "value": "mixed"}, "prefill or decode"),
        ({"target": "w0", "value": "decode", "reason": " "}, "reason"),
    ],
)
def test_a_pin_that_makes_no_sense_is_refused_with_the_remedy(fields: dict[str, str], said: str) -> None:
    pool = Pool(["prefill", "decode", "decode"])
    answer = pool.command("pin", **fields)
    assert answer.state == "rejected"
    assert said in (answer.detail or "")
    pool.run(6)
    assert pool.life(answer.request_id) == []


def test_pins_that_together_leave_a_role_empty_are_refused_by_name() -> None:
    pool = Pool(["prefill", "decode", "decode"])
    assert pool.command("pin", target="w1", value="prefill").state == "accepted"
    answer = pool.command("pin", target="w2", value="prefill")
    assert answer.state == "accepted"  # w0 may still become decode
    answer = pool.command("pin", target="w0", value="prefill")
    assert answer.state == "rejected"
    assert "w0→prefill, w1→prefill, w2→prefill together leave no worker" in (answer.detail or "")


def test_a_worker_that_cannot_flip_is_counted_but_never_flipped() -> None:
    pool = Pool(["prefill", "decode"], policy="static:2:1")
    pool.feed(
        WorkerUp(worker_id="w2", role="decode", epoch=0, flippable=False, reason_not_flippable="expert parallelism 8")
    )
    answer = pool.command("pin", target="w2", value="prefill")
    assert answer.state == "rejected"
    assert "expert parallelism 8" in (answer.detail or "")
    pool.run(6)
    assert pool.roles() == "PPD"


def test_a_split_override_holds_against_the_policy_and_is_released() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2")
    assert pool.command("override", value="3:1").state == "accepted"
    pool.run(12)
    assert sorted(pool.roles()) == sorted("PPPD")
    assert pool.life("r1") == ["accepted", "draining", "effective"]
    assert any(guard.guard == "override" for guard in pool.decisions()[-1].guards)
    assert pool.command("release", target="split").state == "accepted"
    pool.run(12)
    assert sorted(pool.roles()) == sorted("PPDD")


@pytest.mark.parametrize(("value", "said"), [("3:2", "not the pool's 4"), ("4:0", "at least one"), ("x", "P:D")])
def test_a_split_that_cannot_be_is_refused(value: str, said: str) -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"])
    answer = pool.command("override", value=value)
    assert answer.state == "rejected"
    assert said in (answer.detail or "")


def test_a_freeze_starts_nothing_until_it_is_released() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1")
    assert pool.command("freeze", for_s=100.0).state == "accepted"
    assert pool.life("r1") == ["accepted", "effective"]
    pool.run(20)
    assert pool.roles() == "PPDD"
    assert "frozen by ann" in pool.decisions()[-1].guards[0].text
    pool.command("release", target="freeze")
    pool.run(10)
    assert sorted(pool.roles()) == sorted("PPPD")


def test_releasing_what_is_not_there_says_what_is() -> None:
    pool = Pool(["prefill", "decode"])
    pool.command("freeze")
    answer = pool.command("release", target="w0")
    assert answer.state == "rejected"
    assert "in force: freeze" in (answer.detail or "")


def test_a_plan_waits_for_approval_and_starts_when_it_comes() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1", mode="approve")
    pool.run(12)
    assert pool.roles() == "PPDD"
    proposed = [decision for decision in pool.decisions() if decision.status == "proposed"]
    assert len(proposed) == 1
    assert pool.command("approve", target=str(proposed[0].decision_id)).state == "accepted"
    assert sorted(pool.roles()) == sorted("PPPD")


def test_a_plan_that_is_not_approved_expires_and_one_that_is_rejected_does_not_come_back_at_once() -> None:
    pool = Pool(
        ["prefill", "prefill", "decode", "decode"], policy="static:3:1", mode="approve", decision_horizon_s=20.0
    )
    pool.run(6)
    first = pool.controller.proposal
    assert first is not None
    pool.run(25)
    second = pool.controller.proposal
    assert second is not None
    assert second.decision_id > first.decision_id
    assert pool.command("reject").state == "accepted"
    pool.run(15)
    assert pool.controller.proposal is None
    pool.run(15)
    assert pool.controller.proposal is not None
    assert pool.roles() == "PPDD"


def test_observe_decides_but_never_acts() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1", mode="observe")
    pool.run(12)
    assert pool.roles() == "PPDD"
    assert {decision.status for decision in pool.decisions()} == {"observed"}
    answer = pool.command("pin", target="w0", value="decode")
    assert answer.state == "rejected"
    assert "observe" in (answer.detail or "")


def test_an_operators_pin_needs_no_approval() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2", mode="approve")
    pool.command("pin", target="w2", value="prefill")
    pool.run(3)
    worker = pool.controller.registry.get("w2")
    assert worker is not None
    assert worker.role == "prefill"


def test_a_pin_takes_no_move_of_the_policy_along_where_plans_wait_for_approval() -> None:
    roles = ["prefill"] * 4 + ["decode"] * 4
    pool = Pool(roles, policy="static:4:4", mode="approve", parallel_flips=2)
    pool.command("pin", target="w4", value="prefill")
    pool.run(12)
    flipped = {effect.worker_id for effect in pool.asked}
    assert flipped == {"w4"}
    assert pool.controller.proposal is not None
    assert [move.to_role for move in pool.controller.proposal.moves] == ["decode"]


def test_approval_does_not_lift_the_safety_guards() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1", mode="approve")
    pool.run(6)
    assert pool.controller.proposal is not None
    pool.feed(WeightsUpdateBegin(version="7"))
    refused = pool.command("approve")
    assert refused.state == "rejected"
    assert "weights are being updated" in (refused.detail or "")
    assert pool.asked == []
    pool.feed(WeightsUpdateEnd(version="7"))
    assert pool.command("approve").state == "accepted"
    assert sorted(pool.roles()) == sorted("PPPD")


def test_an_announced_update_does_not_end_the_one_under_way() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1")
    pool.feed(WeightsUpdateBegin(version="7"))
    pool.feed(WeightsUpdateBegin(version="8", expected_in_s=60.0))
    pool.run(12)
    assert pool.asked == []


def test_no_flip_starts_inside_a_weight_update() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1")
    pool.feed(WeightsUpdateBegin(version="7"))
    pool.run(12)
    assert pool.roles() == "PPDD"
    assert pool.decisions()[-1].guards[0].guard == "weights"
    pool.feed(WeightsUpdateEnd(version="7"))
    pool.run(12)
    assert sorted(pool.roles()) == sorted("PPPD")


@pytest.mark.parametrize(
    ("loads", "guard"),
    [
        ([{"paused": True}] * 4, "paused"),
        ([{"weight_version": "1"}] * 3 + [{"weight_version": "2"}], "versions"),
    ],
)
def test_a_paused_worker_and_mixed_weight_versions_hold_flips(loads: list[dict[str, object]], guard: str) -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1", loads=loads)
    pool.run(12)
    assert guard in {effect.guard for effect in pool.decisions()[-1].guards}
    assert pool.asked == []


def test_stale_telemetry_holds_flips() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:3:1", stale_s=10.0)
    pool.reporting = False
    pool.tick(60.0)
    assert pool.asked == []
    assert "stale" in {effect.guard for effect in pool.decisions()[-1].guards}


def test_flips_at_a_time_are_limited_and_one_of_each_role_keeps_serving() -> None:
    pool = Pool(["prefill"] + ["decode"] * 7, policy="static:7:1", slow=["drain"], parallel_flips=3)
    pool.run(6)
    assert pool.roles().count("d") == 3
    assert "parallel_flips" in {effect.guard for effect in pool.decisions()[0].guards}
    for _ in range(30):
        pool.tick()
        while pool.controller.executor.outstanding():
            pool.answer()
        assert pool.roles().count("D") >= 1
        assert pool.roles().count("P") >= 1
    assert sorted(pool.roles()) == sorted("PPPPPPPD")


def test_an_override_outlives_the_worker_that_it_names() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2")
    pool.command("pin", target="w2", value="prefill")
    pool.run(6)
    pool.feed(WorkerDown(worker_id="w2", reason="killed"))
    pool.run(3)
    assert pool.life("r1")[-1] == "accepted"
    pool.feed(WorkerUp(worker_id="w2", role="decode", epoch=0, flippable=True, kv_capacity=700_000))
    pool.run(6)
    worker = pool.controller.registry.get("w2")
    assert worker is not None
    assert worker.role == "prefill"
    assert pool.life("r1")[-1] == "effective"


@pytest.mark.parametrize("value", ["colocated", "colocated:8", "clairvoyant", "static:best"])
def test_a_policy_that_the_pool_cannot_have_is_refused(value: str) -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2")
    assert pool.command("policy", value=value).state == "rejected"
    assert pool.controller.policy.name == "static:2:2"


def test_the_policy_can_be_changed_and_a_wrong_name_is_refused() -> None:
    pool = Pool(["prefill", "prefill", "decode", "decode"], policy="static:2:2")
    answer = pool.command("policy", value="statik")
    assert answer.state == "rejected"
    assert "analytic" in (answer.detail or "")
    assert pool.command("policy", value="static:1:3").state == "accepted"
    pool.run(6)
    assert sorted(pool.roles()) == sorted("PDDD")
