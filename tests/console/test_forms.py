"""What an operator is told before confirming, and the request that comes of it."""

import pytest

from prorsa.console import forms, impact
from prorsa.console.forms import Ask
from prorsa.console.model import ConsoleModel
from prorsa.errors import InputError
from prorsa.events import Split, Stamped, View, WorkerView
from tests.console import story

REASON = {"reason": "because", "for": "10m"}


def model_with(view: View) -> ConsoleModel:
    model = ConsoleModel()
    model.apply(Stamped(1, 0, "test", 1, 0, view))
    return model


def pool(prefill: int, decode: int, **changes: object) -> View:
    rows = [WorkerView(f"p{index}", "prefill", "serving", 1, queued=3, running=2) for index in range(prefill)]
    rows += [WorkerView(f"d{index}", "decode", "serving", 1, queued=0, running=10 + index) for index in range(decode)]
    return story.view_at(0.0, workers=tuple(rows), split=Split(prefill, decode), overrides=(), **changes)


def facts(found: impact.Impact) -> dict[str, str]:
    return dict(found.facts)


def test_a_pin_tells_role_split_and_requests() -> None:
    view = story.view_at(10.0)
    found = impact.pin(view, view.workers[0], "decode")
    told = facts(found)
    assert told["change"] == "prefill → decode"
    assert told["split"] == "4P:4D → 3P:5D"
    assert told["requests affected"].startswith(str(view.workers[0].queued + view.workers[0].running))
    assert "tokens" in told["KV on the worker"]
    assert found.typed is None


def test_what_is_not_known_of_a_worker_is_a_dash() -> None:
    view = story.view_at(10.0)
    told = facts(impact.pin(view, view.workers[7], "prefill"))
    assert told["requests affected"] == "–"
    assert told["KV on the worker"] == "– tokens"


def test_a_pin_to_the_present_role_flips_nothing() -> None:
    view = story.view_at(10.0)
    assert facts(impact.pin(view, view.workers[0], "prefill"))["requests affected"] == "0"


def test_the_last_worker_of_a_role_takes_typing_its_name() -> None:
    view = pool(1, 3)
    found = impact.pin(view, view.workers[0], "decode")
    assert found.typed == "p0"
    assert "last prefill worker" in found.warnings[0]


def test_a_worker_that_cannot_flip_is_named() -> None:
    view = story.view_at(10.0)
    found = impact.pin(view, view.workers[6], "prefill")
    assert any("w6 cannot change its role" in warning for warning in found.warnings)


def test_a_flip_under_way_counts_under_the_role_it_goes_to() -> None:
    assert impact.roles(story.view_at(336.0)) == {"prefill": 4, "decode": 4, "mixed": 0}


def test_holding_a_split_tells_flips_and_the_most_requests_they_touch() -> None:
    told = facts(impact.override(pool(2, 4), "4:2"))
    assert told["split"] == "2P:4D → 4P:2D"
    assert told["flips"].startswith("2 workers to prefill")
    assert told["requests affected"] == "at most 25"  # the two fullest decode workers
    assert facts(impact.override(pool(2, 4), "2:4"))["flips"] == "none needed now"


def test_pinned_workers_are_named_when_a_split_is_held() -> None:
    assert "w1" in impact.override(story.view_at(500.0), "5:3").warnings[0]


def test_a_freeze_tells_what_is_under_way() -> None:
    assert "1 under way finishes" in facts(impact.freeze(story.view_at(336.0)))["effect"]
    assert facts(impact.freeze(story.view_at(10.0)))["effect"] == "no flip starts"


def test_a_plan_tells_its_moves_and_the_requests_on_them() -> None:
    view = story.view_at(600.0)
    told = facts(impact.proposal(view, story.proposal(600.0)))
    assert told["split"] == "3P:5D → 4P:4D"
    assert told["flip w3"].startswith("decode → prefill")
    assert told["requests affected"] == str(view.workers[3].queued + view.workers[3].running)


def test_requests_of_the_forms() -> None:
    model = model_with(story.view_at(500.0, proposal=story.proposal(500.0)))
    worker = model.worker("w0")
    assert worker is not None
    assert forms.pin(model, (worker,)).asks(REASON | {"role": "decode"}) == (
        Ask("pin", "because", "w0", "decode", 600.0),
    )
    assert forms.override(model).asks(REASON | {"split": "5:3"}) == (Ask("override", "because", None, "5:3", 600.0),)
    assert forms.freeze(model).asks(REASON) == (Ask("freeze", "because", None, None, 600.0),)
    assert forms.release(model, ("w1",)).asks(REASON | {"target": "w1"}) == (Ask("release", "because", "w1"),)
    assert forms.answer_plan(model, "approve").asks(REASON) == (Ask("approve", "because", "120"),)
    assert forms.mode(model).asks(REASON | {"mode": "observe"}) == (Ask("mode", "because", None, "observe"),)
    assert forms.policy(model).asks(REASON | {"policy": "colocated"}) == (Ask("policy", "because", None, "colocated"),)


def test_every_form_requires_a_reason() -> None:
    model = model_with(story.view_at(500.0, proposal=story.proposal(500.0)))
    worker = model.worker("w0")
    assert worker is not None
    for form in (
        forms.pin(model, (worker,)),
        forms.override(model),
        forms.freeze(model),
        forms.release(model, ("w1",)),
        forms.answer_plan(model, "reject"),
        forms.mode(model),
        forms.policy(model),
        forms.shadow(model),
    ):
        (reason,) = [field for field in form.fields if field.name == "reason"]
        assert reason.check is not None
        with pytest.raises(InputError, match="reason is required"):
            reason.check("   ")


def test_a_shadow_is_asked_for_by_name_and_its_taking_over_is_told() -> None:
    model = model_with(story.view_at(500.0))
    form = forms.shadow(model)
    assert form.title == "In shadow, now learned"
    assert form.asks(REASON | {"policy": " off "}) == (Ask("shadow", "because", None, "off"),)
    assert facts(form.impact({"policy": "lookahead"}))["in shadow"] == "learned → lookahead"
    assert "analytic goes on there" in facts(forms.policy(model).impact({"policy": "learned"}))["effect"]
    assert "shadow" not in facts(forms.policy(model).impact({"policy": "lookahead"}))["effect"]


def test_what_can_be_released_begins_with_the_selected_worker() -> None:
    model = model_with(story.view_at(500.0))
    assert forms.releasable(model, "w1") == ["w1"]
    assert forms.releasable(model_with(story.view_at(10.0)), None) == []


def test_a_split_that_means_nothing_has_no_effect() -> None:
    form = forms.override(model_with(story.view_at(10.0)))
    with pytest.raises(InputError, match="no split"):
        form.impact({"split": "5:", "for": "1m", "reason": ""})
