"""What each action asks an operator before anything is sent, and the request that comes of the answers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from prorsa.console import impact
from prorsa.console.impact import Impact
from prorsa.console.model import ConsoleModel
from prorsa.console.text import parse_duration_s, parse_split
from prorsa.errors import InputError
from prorsa.events import Role, View, WorkerView

Verb = Literal["pin", "release", "override", "freeze", "approve", "reject", "mode", "policy"]
Answers = Mapping[str, str]

POLICIES: Final = ("default", "analytic", "colocated")
DEFAULT_FOR: Final = "30m"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the controller before it has an id."""

    verb: Verb
    reason: str
    target: str | None = None
    value: str | None = None
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One question: a choice among ``options`` where there are any, else a line of text that ``check`` may refuse."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    options: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """A dialog: its questions, what the answers would do, and the request that they make.

    ``impact`` raises :class:`InputError` for answers that mean nothing yet, such as half a split.
    """

    title: str
    confirm: str
    fields: tuple[Field, ...]
    impact: Callable[[Answers], Impact]
    ask: Callable[[Answers], Ask]


def _reason_given(text: str) -> str:
    if not text.strip():
        raise InputError("a reason is required: it is kept with the request, for whoever wonders later")
    return text.strip()


_REASON: Final = Field("reason", "reason", hint="why, for the record", check=_reason_given)
_EXPIRY: Final = Field("for", "for", value=DEFAULT_FOR, hint="90s, 30m, 1h30m", check=parse_duration_s)


def pin(model: ConsoleModel, worker: WorkerView) -> Form:
    """Pin a worker to the role that it does not have, or to another."""
    role = worker.to_role or worker.role
    other = "decode" if role == "prefill" else "prefill"
    options = (other, "prefill" if other == "decode" else "decode")

    def effect(answers: Answers) -> Impact:
        now = model.worker(worker.worker_id)
        return impact.pin(_view(model), now if now is not None else worker, cast("Role", answers["role"]))

    return Form(
        f"Pin {worker.worker_id}, now {worker.role}",
        "Pin",
        (Field("role", "role", value=other, options=options), _EXPIRY, _REASON),
        effect,
        lambda answers: _lasting("pin", answers, target=worker.worker_id, value=answers["role"]),
    )


def override(model: ConsoleModel) -> Form:
    """Hold the split."""
    roles = impact.roles(_view(model))
    workers = sum(roles.values())
    now = f"{roles['prefill']}:{roles['decode']}" if not roles["mixed"] else f"{workers // 2}:{workers - workers // 2}"
    return Form(
        "Hold the split",
        "Hold",
        (
            Field("split", "split P:D", value=now, hint="P:D", check=lambda text: parse_split(text, workers)),
            _EXPIRY,
            _REASON,
        ),
        lambda answers: impact.override(_view(model), parse_split(answers["split"], workers)),
        lambda answers: _lasting("override", answers, value=parse_split(answers["split"], workers)),
    )


def freeze(model: ConsoleModel) -> Form:
    """Let no flip start."""
    return Form(
        "Freeze: no flip starts",
        "Freeze",
        (_EXPIRY, _REASON),
        lambda _: impact.freeze(_view(model)),
        lambda answers: _lasting("freeze", answers),
    )


def releasable(model: ConsoleModel, selected: str | None) -> list[str]:
    """What could be released: the selected worker's pin first, then the other pins, the split, the freeze."""
    held = {life.target or {"override": "split"}.get(life.verb, life.verb) for life in model.requests.in_force()}
    held |= {worker.worker_id for worker in _view(model).workers if worker.pinned}
    return sorted(held, key=lambda target: (target != selected, target))


def release(model: ConsoleModel, targets: tuple[str, ...]) -> Form:
    """End one of the overrides in force on ``targets``."""
    return Form(
        "Release",
        "Release",
        (Field("target", "what", value=targets[0], options=targets), _REASON),
        lambda answers: impact.release(_view(model), answers["target"]),
        lambda answers: Ask("release", _reason_given(answers["reason"]), target=answers["target"]),
    )


def answer_plan(model: ConsoleModel, verb: Literal["approve", "reject"]) -> Form:
    """Approve or reject the plan that waits."""
    plan = model.proposal
    assert plan is not None
    return Form(
        f"{verb.capitalize()} plan {plan.decision_id}",
        verb.capitalize(),
        (_REASON,),
        lambda _: impact.proposal(_view(model), plan),
        lambda answers: Ask(verb, _reason_given(answers["reason"]), target=str(plan.decision_id)),
    )


def mode(model: ConsoleModel) -> Form:
    """Set the mode."""
    now = _view(model).mode
    others = tuple(option for option in ("auto", "approve", "observe") if option != now)
    return Form(
        f"Mode, now {now}",
        "Set",
        (Field("mode", "mode", value=others[0], options=others), _REASON),
        lambda answers: impact.mode(_view(model), answers["mode"]),
        lambda answers: Ask("mode", _reason_given(answers["reason"]), value=answers["mode"]),
    )


def policy(model: ConsoleModel) -> Form:
    """Let another policy decide; whether the controller has it is for the controller to say."""

    def named(text: str) -> str:
        if not text.strip():
            raise InputError(f"name a policy: {', '.join(POLICIES)} or static:P:D")
        return text.strip()

    return Form(
        f"Policy, now {_view(model).policy}",
        "Set",
        (Field("policy", "policy", hint=", ".join(POLICIES), check=named), _REASON),
        lambda answers: impact.policy(_view(model), named(answers["policy"])),
        lambda answers: Ask("policy", _reason_given(answers["reason"]), value=named(answers["policy"])),
    )


def _lasting(verb: Verb, answers: Answers, target: str | None = None, value: str | None = None) -> Ask:
    return Ask(verb, _reason_given(answers["reason"]), target, value, parse_duration_s(answers["for"]))


def _view(model: ConsoleModel) -> View:
    assert model.view is not None
    return model.view
