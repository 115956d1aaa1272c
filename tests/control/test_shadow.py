"""A policy in shadow: it sees what the active one sees, changes nothing, and is recorded and compared."""

import hashlib
from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.beside import Comparison, Handovers, agreement, compare_shadow
from prorsa.cluster.scenario import load_scenario
from prorsa.control.config import ControlConfig
from prorsa.control.controller import Controller
from prorsa.control.fluid import _run
from prorsa.control.learned import Learned
from prorsa.control.policies import Context, Static, Want
from prorsa.control.replay import compare
from prorsa.control.shadow import Shadow
from prorsa.control.warm import warm_up
from prorsa.errors import ConfigError
from prorsa.events import (
    EVENT_TYPES,
    Alert,
    AnyEvent,
    Decision,
    ShadowDecision,
    Split,
    Stamped,
    View,
    WeightsUpdateBegin,
    encode,
)
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import make_plan
from prorsa.simulate import simulate
from tests.control.pool import Pool
from tests.learn.models import always
from tests.learn.test_learned import WIDE
from tests.serve.running import MINI

EVEN = ("prefill", "prefill", "decode", "decode")
_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}


@cache
def run_of(policy: str, shadow: str | None) -> tuple[dict[str, object], list[Stamped]]:
    """A simulated run's row and journal."""
    plan = make_plan(load_scenario(str(MINI)), policy=policy, run_id="run", shadow=shadow)
    journal: list[Stamped] = []
    return simulate(plan, recorder=journal.extend), journal


def event_hash(journal: list[Stamped]) -> str:
    """Of what was said in a run, when and by whom, but for what is the shadow's own; places in the journal shift."""
    digest = hashlib.sha256()
    for stamped in journal:
        event = stamped.event
        if isinstance(event, ShadowDecision):
            continue
        fields = [name for name in ("upto_hub_seq", "shadow", "last_shadow") if hasattr(event, name)]
        plain = msgspec.to_builtins(event)
        for name in fields:
            plain.pop(name, None)
        if isinstance(event, View) and event.last_decision is not None:
            plain["last_decision"].pop("upto_hub_seq")
        digest.update(encode((stamped.t_ns, stamped.source, plain)))  # type: ignore[arg-type]
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("policy", "shadow"), [("analytic", "lookahead"), ("lookahead", "learned"), ("learned", "reactive+guards")]
)
def test_a_run_with_a_shadow_is_the_run_without_it(policy: str, shadow: str) -> None:
    alone, journal = run_of(policy, None)
    beside, shadowed = run_of(policy, shadow)
    said = [stamped.event for stamped in shadowed if isinstance(stamped.event, ShadowDecision)]
    assert event_hash(shadowed) == event_hash(journal)
    assert len(said) == sum(isinstance(stamped.event, Decision) for stamped in journal) > 10
    own = {"wall_s", "shadow"}
    assert {key: beside[key] for key in beside.keys() - own} == {key: alone[key] for key in alone.keys() - own}


def test_off_is_none_in_shadow() -> None:
    row, journal = run_of("analytic", "off")
    assert row["shadow"] is None
    assert event_hash(journal) == event_hash(run_of("analytic", None)[1])


def test_a_replay_says_the_same_in_shadow() -> None:
    row, journal = run_of("analytic", "lookahead")
    plan = make_plan(load_scenario(str(MINI)), policy="analytic", run_id="run", shadow="lookahead")

    def read(types: tuple[str, ...]) -> list[Stamped]:
        return [stamped for stamped in journal if _NAMES[type(stamped.event)] in types]

    result = compare(Controller(plan.control, Predictor(ForecastConfig())), read)
    assert result.first_difference is None
    assert result.shadow_equal == result.shadow_decisions == result.decisions > 10
    comparison = compare_shadow(read(("decision", "shadow")))
    assert comparison is not None
    assert comparison.to_json() == row["shadow"]

    another = msgspec.structs.replace(plan.control, shadow="reactive")
    result = compare(Controller(another, Predictor(ForecastConfig())), read)
    assert result.equal == result.decisions
    assert result.shadow_equal == 0
    assert result.first_difference is not None
    assert result.first_difference["type"] == "shadow"


def test_it_says_what_it_would_have_done_and_does_not_do_it() -> None:
    pool = Pool(EVEN, policy="static:2:2", shadow="static:3:1")
    pool.run(20)
    said = shadows(pool)
    assert pool.roles() == "PPDD"
    assert [event.decision_id for event in said] == [decision.decision_id for decision in pool.decisions()]
    assert all(event.wanted == event.chosen == Split(3, 1) and event.agrees is False for event in said)
    assert [(move.from_role, move.to_role) for move in said[0].moves] == [("decode", "prefill")]
    score = pool.controller.shadow.score()
    assert (score.compared, score.agreed, score.prefill_more, score.would_move, score.moved) == (4, 0, 1.0, 4, 0)


def shadows(pool: Pool) -> list[ShadowDecision]:
    return [event for event in pool.said if isinstance(event, ShadowDecision)]


def test_guards_hold_for_it_too() -> None:
    pool = Pool((*EVEN, *EVEN), policy="static:4:4", shadow="static:1:7")
    pool.run(6)
    said = shadows(pool)[-1]
    assert (said.wanted, said.chosen) == (Split(1, 7), Split(2, 6))
    assert [guard.guard for guard in said.guards] == ["parallel_flips"]
    assert len(said.moves) == 2


@pytest.mark.parametrize("order", ["freeze", "override", "weights"])
def test_where_nobody_has_a_choice_there_is_nothing_to_compare(order: str) -> None:
    pool = Pool(EVEN, policy="static:2:2", shadow="static:3:1")
    if order == "weights":
        pool.feed(WeightsUpdateBegin(version="2"))
    else:
        pool.command(order, value="2:2" if order == "override" else None)
    pool.run(6)
    assert {event.agrees for event in shadows(pool)} == {None}
    score = pool.controller.shadow.score()
    assert (score.compared, score.prefill_apart, agreement(score)) == (0, None, None)


class Moody(Static):
    """Fails until it is mended."""

    mended = False

    def decide(self, context: Context) -> Want:
        if not self.mended:
            raise ZeroDivisionError("no demand")
        return super().decide(context)


def test_one_that_fails_disturbs_nothing_and_says_so_once() -> None:
    def make(config: ControlConfig) -> Controller:
        controller = Controller(config, None)
        controller.shadow = Shadow(Moody("moody", Split(2, 2)))
        return controller

    pool = Pool(EVEN, policy="static:3:1", make=make)
    pool.run(20)
    assert pool.roles().count("P") == 3
    said = shadows(pool)
    assert said[0].reason == "it failed: ZeroDivisionError: no demand"
    assert (said[0].wanted, said[0].chosen, said[0].agrees, said[0].moves) == (None, None, None, ())
    assert len(alerts(pool)) == 1
    assert pool.controller.shadow.score().failed == len(said)
    pool.controller.shadow.policy.mended = True
    pool.run(10)
    assert [alert.severity for alert in alerts(pool)] == ["warning", "info"]
    assert shadows(pool)[-1].chosen == Split(2, 2)


def alerts(pool: Pool) -> list[Alert]:
    return [event for event in pool.said if isinstance(event, Alert) and event.code == "shadow-failed"]


def test_its_life_by_command() -> None:
    pool = Pool(EVEN, policy="static:2:2")
    pool.run(6)
    assert not shadows(pool)
    assert pool.command("shadow", value="off").detail == "shadow off: no policy decides in shadow"
    assert pool.command("shadow", value="static:2:2").state == "rejected"
    assert pool.command("shadow", value="colocated").state == "rejected"
    assert pool.command("shadow", value="clairvoyant").state == "rejected"
    assert pool.command("shadow", value="static:4:4").state == "rejected"
    assert pool.command("shadow", value="static:3:1", reason=" ").detail == "shadow: say why (a reason is required)"
    assert pool.command("shadow", value="static:3:1").state == "accepted"
    pool.run(6)
    assert {event.policy for event in shadows(pool)} == {"static:3:1"}
    assert pool.command("shadow", value="off").state == "accepted"
    known = len(shadows(pool))
    pool.run(12)
    assert len(shadows(pool)) == known


def test_a_dry_run_of_it_changes_nothing() -> None:
    pool = Pool(EVEN, policy="static:2:2")
    pool.run(6)
    answer = pool.command("shadow", value="static:3:1", dry_run=True)
    assert answer.state == "accepted"
    assert (answer.effect.current, answer.effect.leads_to, answer.effect.moves) == (Split(2, 2), Split(2, 2), ())
    pool.run(6)
    assert not shadows(pool)


def test_the_policy_in_shadow_takes_over_with_what_it_remembers() -> None:
    pool = Pool(EVEN, policy="static:2:2", shadow="reactive")
    pool.run(6)
    shadow = pool.controller.shadow.policy
    state = shadow.state()
    answer = pool.command("policy", value="reactive", dry_run=True)
    assert answer.detail == "policy is reactive; static:2:2 goes on in shadow"
    assert pool.controller.shadow.policy is shadow
    assert shadow.state() == state
    pool.command("policy", value="reactive")
    assert pool.controller.policy is shadow
    pool.run(6)
    assert pool.decisions()[-1].policy == "reactive"
    assert shadows(pool)[-1].policy == "static:2:2"


def test_moves_that_it_did_not_make_are_not_held_against_it() -> None:
    def make(config: ControlConfig) -> Controller:
        controller = Controller(config, None)
        controller.shadow = Shadow(Learned("learned", always(3, **WIDE)))
        return controller

    loads = [{"output_tokens_total": 0} for _ in EVEN]
    pool = Pool(EVEN, policy="static:2:2", make=make, loads=loads)
    judged = pool.controller.shadow.policy
    for second in range(300):
        for load in loads:
            load["output_tokens_total"] += 10_000 // (1 + second)
        pool.tick()
    assert all(event.moves for event in shadows(pool))
    assert judged._outcomes.ratio() is None
    assert not any(event.handed_over for event in shadows(pool))


def test_the_settings_hash_does_not_know_the_shadow() -> None:
    config = ControlConfig(policy="analytic")
    assert msgspec.structs.replace(config, shadow="lookahead").digest() == config.digest()
    assert msgspec.structs.replace(config, policy="lookahead").digest() != config.digest()


def test_a_plan_names_what_is_wrong_with_a_shadow() -> None:
    with pytest.raises(ConfigError, match="that policy decides already"):
        make_plan(load_scenario(str(MINI)), policy="analytic", run_id="run", shadow="analytic")


def pair(decided: int, shadow: int, **changes: object) -> tuple[Decision, ShadowDecision]:
    """Two decisions in a pool of eight."""
    fields: dict[str, object] = {"decision_id": 1, "tick_ns": 5, "upto_hub_seq": 0, "policy_state": "", "reason": ""}
    splits = {"wanted": Split(shadow, 8 - shadow), "chosen": Split(shadow, 8 - shadow)}
    chosen = Split(decided, 8 - decided)
    decision = Decision(
        **fields, policy="a", config_hash="", mode="auto", current=chosen, wanted=chosen, chosen=chosen, status="hold",
        inputs={},
    )  # fmt: skip
    said = ShadowDecision(**fields | splits | {"policy": "b", "agrees": decided == shadow} | changes)
    return decision, said


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=30))
def test_the_score_is_what_the_decisions_add_up_to(chosen: list[tuple[int, int]]) -> None:
    comparison = Comparison("b", 5)
    for decided, shadow in chosen:
        comparison.add(*pair(decided, shadow))
    score = comparison.score()
    assert score.agreed == sum(decided == shadow for decided, shadow in chosen)
    assert score.prefill_more == pytest.approx(sum(shadow - decided for decided, shadow in chosen) / len(chosen))
    assert score.prefill_apart == pytest.approx(sum(abs(shadow - decided) for decided, shadow in chosen) / len(chosen))
    assert len(comparison.disagreements) == score.compared - score.agreed


def test_handovers_begin_and_end() -> None:
    handovers = Handovers()
    said = [None, "outside", "outside", None, "not a number"]
    for tick, why in enumerate(said):
        decision, shadow = pair(4, 4, tick_ns=tick, handed_over=why)
        handovers.add(shadow)
        handovers.add(msgspec.structs.replace(decision, tick_ns=tick, handed_over=why if tick > 3 else None))
    assert [(one.policy, one.in_shadow, one.begin_ns, one.reason, one.end_ns) for one in handovers.all] == [
        ("b", True, 1, "outside", 3),
        ("b", True, 4, "not a number", None),
        ("a", False, 4, "not a number", None),
    ]


def test_a_policy_that_is_changed_has_ended_its_handover() -> None:
    handovers = Handovers()
    decision, _ = pair(4, 4)
    handovers.add(msgspec.structs.replace(decision, handed_over="outside"))
    handovers.add(msgspec.structs.replace(decision, policy="c", tick_ns=9, handed_over="outside"))
    assert [(one.policy, one.end_ns) for one in handovers.all] == [("a", 9), ("c", None)]


def test_events_of_a_shadow_survive_the_journal() -> None:
    _, said = pair(4, 3)
    failed = msgspec.structs.replace(said, wanted=None, chosen=None, agrees=None)
    for event in (said, failed):
        again: AnyEvent = msgspec.msgpack.decode(encode(event), type=ShadowDecision)
        assert again == event


def test_look_ahead_is_compiled_before_anybody_calls_it_up() -> None:
    """One that compiles in the middle of a run holds up the policy that decides."""
    warm_up()
    known = len(_run.signatures)
    run_of("analytic", "lookahead")
    assert known == len(_run.signatures) == 1
