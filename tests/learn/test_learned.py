"""``learned`` in a pool: it does what it prefers within the guards, and hands over where it should not be trusted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.control.actions import STAY
from prorsa.control.config import ControlConfig
from prorsa.control.controller import Controller
from prorsa.control.handover import (
    JUDGED_MOVES,
    OPPOSED,
    OWN,
    RETURN_S,
    SUSPENDED_S,
    TOLERANCE,
    Opposition,
    Outcomes,
    Ranges,
)
from prorsa.control.learned import Learned
from prorsa.control.observation import FEATURES
from prorsa.control.policies.base import Context, Want, shifted
from tests.control.pool import Pool
from tests.learn.models import always, card

TO_PREFILL = 3
KV_CAPACITY = 700_000
NAMES = list(FEATURES)
WIDE = {"low": (0.0,) * len(FEATURES), "high": (4.0,) * len(FEATURES)}


def narrowed(bounds: tuple[float, ...], **given: float) -> tuple[float, ...]:
    return tuple(given.get(name, bound) for name, bound in zip(NAMES, bounds, strict=True))


def pool_of(model, roles="PPDD", **settings) -> Pool:
    named = {"P": "prefill", "D": "decode"}

    def make(config: ControlConfig) -> Controller:
        return Controller(config, None, Learned("learned", model))

    return Pool([named[letter] for letter in roles], make=make, **settings)


def test_it_does_what_it_prefers():
    pool = pool_of(always(TO_PREFILL, **WIDE))
    pool.run(10)
    assert pool.roles().count("P") == 3
    assert "practised in test: 1 worker(s) to prefill" in pool.decisions()[0].reason
    assert pool.decisions()[0].inputs["p(prefill:one)"] > 0.9


def test_it_never_takes_the_last_worker_of_a_role():
    pool = pool_of(always(TO_PREFILL, **WIDE), "PD")
    pool.run(60)
    assert pool.roles() == "PD"
    assert all(not decision.moves for decision in pool.decisions())


def kv_held(share: float) -> dict[str, object]:
    return {"kv_used": round(share * KV_CAPACITY), "kv_capacity": KV_CAPACITY}


def test_it_hands_over_outside_its_range_says_so_and_comes_back_once_all_is_known_again():
    loads = [kv_held(0.1) for _ in range(4)]
    pool = pool_of(always(STAY, low=WIDE["low"], high=narrowed(WIDE["high"], kv_held=0.2)), loads=loads)
    pool.run(20)
    assert {decision.handed_over for decision in pool.decisions()} == {None}
    loads[:] = [kv_held(0.6) for _ in range(4)]
    pool.run(20)
    decision = pool.decisions()[-1]
    assert decision.handed_over == "kv_held: outside the range of its training"
    assert "analytic decides for learned" in decision.reason
    assert decision.decided_by == "analytic"
    assert decision.inputs["handed_over_s"] == RETURN_S
    loads[:] = [kv_held(0.25) for _ in range(4)]
    pool.run(int(RETURN_S) - 5)
    assert "analytic decides" in pool.decisions()[-1].reason
    pool.run(10)
    assert "practised" in pool.decisions()[-1].reason
    assert pool.decisions()[-1].decided_by is None


def test_roles_that_it_never_saw_are_no_reason_to_hand_over():
    never = dict.fromkeys(OWN, 0.0)
    pool = pool_of(always(TO_PREFILL, low=WIDE["low"], high=narrowed(WIDE["high"], **never)), "PPPDDD")
    pool.run(20)
    assert pool.roles().count("P") > 3
    assert {decision.handed_over for decision in pool.decisions()} == {None}


def test_it_hands_over_when_its_output_is_no_number_and_comes_back_with_hysteresis():
    model = always(STAY, **WIDE)
    broken = replace(model, policy=((model.policy[0][0], np.full(5, np.nan, np.float32)),))
    policy = Learned("learned", model)
    pool = pool_of(model)
    context = pool.controller.context

    def reason_at(t_s: float) -> str:
        return policy.decide(replace(context(nanoseconds(1.0)), t_ns=nanoseconds(t_s))).reason

    assert "practised" in reason_at(5.0)
    state = policy.state()
    policy.model = broken
    assert "its output is not a number" in reason_at(10.0)
    assert policy.state() != state
    policy.model = model
    assert "analytic decides" in reason_at(15.0)
    assert "analytic decides" in reason_at(10.0 + RETURN_S - 1.0)
    assert "practised" in reason_at(10.0 + RETURN_S)


@pytest.mark.parametrize(("rate_after", "paid"), [(0.5, False), (1.0, True), (1.5, True)])
def test_moves_are_judged_by_the_output_before_and_after(rate_after, paid):
    outcomes, t_s, output = Outcomes(), 0.0, 0.0
    rate = 1000.0
    for _ in range(JUDGED_MOVES):
        for step in range(26):
            outcomes.count(t_s, output)
            if step == 12:
                outcomes.moved(t_s)
                rate *= rate_after
            t_s, output = t_s + 5.0, output + 5.0 * rate
        rate = 1000.0
        for _ in range(14):
            t_s, output = t_s + 5.0, output + 5.0 * rate
            outcomes.count(t_s, output)
    ratio = outcomes.ratio()
    assert ratio == pytest.approx(rate_after, rel=0.01)
    outcomes.forget()
    assert outcomes.ratio() is None


def test_moves_that_do_not_pay_suspend_it():
    policy = Learned("learned", always(STAY, **WIDE))
    policy._outcomes._ratios.extend([0.5] * JUDGED_MOVES)
    pool = pool_of(always(STAY, **WIDE))
    context = pool.controller.context(nanoseconds(1.0))
    reason = policy.decide(context).reason
    assert "after its moves the pool put out 0.50 of before" in reason
    later = nanoseconds(1.0 + SUSPENDED_S)
    assert "practised" in policy.decide(replace(context, t_ns=later)).reason


class Mover:
    """Always wants one more worker to prefill."""

    name = "lookahead"

    def decide(self, context: Context) -> Want:
        return Want(split=shifted(context, 1), reason="more to prefill")

    def state(self) -> str:
        return ""


def test_a_second_opinion_that_persists_decides_for_a_while_and_longer_each_time():
    policy = Learned("learned", always(STAY, **WIDE))
    policy._lookahead = Mover()
    context = pool_of(policy.model).controller.context(nanoseconds(1.0))
    began: list[float] = []
    away = False
    for t_s in range(0, 2_000, 5):
        want = policy.decide(replace(context, t_ns=nanoseconds(float(t_s))))
        if want.handed_over and not away:
            began.append(t_s)
            assert want.split.prefill == context.current.prefill + 1
            assert "lookahead decides for learned" in want.reason
            assert want.handed_over == "look-ahead keeps seeing more in another split"
        if away and not want.handed_over:
            began.append(t_s)
            assert want.split == context.current
        away = bool(want.handed_over)
    first, back, second, again = began[:4]
    assert first == 5 * (OPPOSED - 1)
    assert (back - first, again - second) == (SUSPENDED_S, 2 * SUSPENDED_S)


def test_a_second_opinion_is_not_asked_where_nothing_comes_of_the_decision():
    policy = Learned("learned", always(STAY, **WIDE))
    policy._lookahead = Mover()
    context = replace(pool_of(policy.model).controller.context(nanoseconds(1.0)), acts=False)
    wants = [policy.decide(replace(context, t_ns=nanoseconds(5.0 * k))) for k in range(40)]
    assert {want.handed_over for want in wants} == {None}


@pytest.mark.parametrize(("own", "theirs", "opposed"), [(0, 1, True), (-1, 1, True), (2, 1, False), (1, 0, False)])
def test_to_move_alike_or_alone_is_no_opposition(own, theirs, opposed):
    opposition = Opposition()
    said = [opposition.note(own, theirs) for _ in range(OPPOSED)]
    assert said == [None] * (OPPOSED - 1) + [SUSPENDED_S if opposed else None]


def test_a_range_has_a_margin_and_names_the_furthest_first():
    ranges = Ranges(card())
    seen = np.full(len(FEATURES), 1.05, np.float32)
    assert ranges.outside(seen) == []
    seen[NAMES.index("queue")], seen[NAMES.index("step")] = 1.5, 2.5
    assert ranges.outside(seen) == ["step", "queue"]


def test_the_margin_is_a_share_of_a_wide_range():
    ranges = Ranges(card(high=narrowed(WIDE["high"], queue=1.0)))
    inside, outside = np.zeros(len(FEATURES), np.float32), np.zeros(len(FEATURES), np.float32)
    inside[NAMES.index("prefill_need_5s")], outside[NAMES.index("prefill_need_5s")] = 4.3, 4.5
    assert (ranges.outside(inside), ranges.outside(outside)) == ([], ["prefill_need_5s"])


@given(at=st.floats(0.0, 1.0), by=st.floats(-1.0, 1.0), name=st.sampled_from(NAMES))
def test_what_never_moved_in_training_counts_by_the_tolerance_alone(at, by, name):
    assume(abs(abs(by) - TOLERANCE) > 1e-6)
    still = (at,) * len(FEATURES)
    seen = np.full(len(FEATURES), at)
    seen[NAMES.index(name)] += by
    judged = name not in OWN and abs(by) > TOLERANCE
    assert Ranges(card(low=still, high=still)).outside(seen) == ([name] if judged else [])


@pytest.mark.parametrize("flag", ["known", "cold", "shared"])
def test_a_flag_that_never_changed_in_training_is_outside_when_it_does(flag):
    for seen_in_training in (0.0, 1.0):
        still = (seen_in_training,) * len(FEATURES)
        seen = np.full(len(FEATURES), seen_in_training)
        seen[NAMES.index(flag)] = 1.0 - seen_in_training
        assert Ranges(card(low=still, high=still)).outside(seen) == [flag]
