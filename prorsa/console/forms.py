"""What each action asks an operator before anything is sent, and the request that comes of the answers. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from prorsa.console import impact
from prorsa.console.impact import Impact
from prorsa.console.model import ConsoleModel
from prorsa.console.text import parse_duration_s, parse_split
from prorsa.errors import InputError
from prorsa.events import Role, Verb, View, WorkerView

Answers = Mapping[str, str]

POLICIES: Final = ("default", "analytic", "lookahead", "learned", "reactive", "colocated", "static:P:D")
"""Names to offer; which of them there are is for the controller to say."""
SHADOWS: Final = ("off", *(name for name in POLICIES if name != "colocated"))
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
    """A dialog: its questions, what the answers would do as far as the view tells, and the requests that they make.

    ``impact`` and ``asks`` raise :class:`InputError` for answers that mean nothing yet, such as half a split.
    """

    title: str
    confirm: str
    fields: tuple[Field, ...]
    impact: Callable[[Answers], Impact]
    asks: Callable[[Answers], tuple[Ask, ...]]

    def given(self, answers: Answers) -> "Form":
        """The same form with some of its questions answered already.

        Raises:
            InputError: for an answer that is not among the options.
        """
        fields = []
        for field in self.fields:
            value = answers.get(field.name)
            if value is not None and field.options and value not in field.options:
                raise InputError(f"{field.label} is one of {', '.join(field.options)}; got {value!r}")
            fields.append(field if value is None else replace(field, value=value))
        return replace(self, fields=tuple(fields))


def _reason_given(text: str) -> str:
    if not text.strip():
        raise InputError("a reason is required: it is kept with the request, for whoever wonders later")
    return text.strip()


_REASON: Final = Field("reason", "reason", hint="why, for the record", check=_reason_given)
_EXPIRY: Final = Field("for", "for", value=DEFAULT_FOR, hint="90s, 30m, 1h30m", check=parse_duration_s)


def pin(model: ConsoleModel, workers: Sequence[WorkerView]) -> Form:
    """Pin workers to the role that the first of them does not have, or to another."""
    role = workers[0].to_role or workers[0].role
    other = "decode" if role == "prefill" else "prefill"
    options = (other, "prefill" if other == "decode" else "decode")

    def effect(answers: Answers) -> Impact:
        chosen = cast("Role", answers["role"])
        return _of_each(model, workers, lambda worker: impact.pin(_view(model), worker, chosen))

    now = f", now {workers[0].role}" if len(workers) == 1 else ""
    return Form(
        f"Pin {_names(workers)}{now}",
        "Pin",
        (Field("role", "role", value=other, options=options), _EXPIRY, _REASON),
        effect,
        lambda answers: tuple(_lasting("pin", answers, worker.worker_id, answers["role"]) for worker in workers),
    )


def absence(model: ConsoleModel, verb: Literal["drain", "quarantine"], workers: Sequence[WorkerView]) -> Form:
    """Take workers out of the pool; without a time they stay out until they are readmitted."""

    def end(text: str) -> float | None:
        return parse_duration_s(text) if text.strip() else None

    def asks(answers: Answers) -> tuple[Ask, ...]:
        reason, for_s = _reason_given(answers["reason"]), end(answers["for"])
        return tuple(Ask(verb, reason, worker.worker_id, None, for_s) for worker in workers)

    return Form(
        f"{verb.capitalize()} {_names(workers)}",
        verb.capitalize(),
        (Field("for", "for", hint="until it is readmitted; or 90s, 30m, 1h30m", check=end), _REASON),
        lambda _: _of_each(model, workers, lambda worker: impact.absence(_view(model), worker, verb)),
        asks,
    )


def readmit(model: ConsoleModel, workers: Sequence[WorkerView]) -> Form:
    """Let workers that are out of the pool serve again."""
    return Form(
        f"Readmit {_names(workers)}",
        "Readmit",
        (_REASON,),
        lambda _: _of_each(model, workers, impact.readmit),
        lambda answers: tuple(Ask("readmit", _reason_given(answers["reason"]), w.worker_id) for w in workers),
    )


def _names(workers: Sequence[WorkerView]) -> str:
    return workers[0].worker_id if len(workers) == 1 else f"{len(workers)} workers"


def _of_each(model: ConsoleModel, workers: Sequence[WorkerView], tell: Callable[[WorkerView], Impact]) -> Impact:
    """The effect on one worker, or a line for each of several and a word to type."""
    current = [model.worker(worker.worker_id) or worker for worker in workers]
    if len(current) == 1:
        return tell(current[0])
    found = [tell(worker) for worker in current]
    warnings = tuple(dict.fromkeys(warning for one in found for warning in one.warnings))
    facts = tuple((worker.worker_id, one.facts[0][1]) for worker, one in zip(current, found, strict=True))
    return Impact(facts, warnings, typed=f"{len(current)} workers")


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
        lambda answers: (_lasting("override", answers, value=parse_split(answers["split"], workers)),),
    )


def freeze(model: ConsoleModel) -> Form:
    """Let no flip start."""
    return Form(
        "Freeze: no flip starts",
        "Freeze",
        (_EXPIRY, _REASON),
        lambda _: impact.freeze(_view(model)),
        lambda answers: (_lasting("freeze", answers),),
    )


def releasable(model: ConsoleModel, selected: str | None) -> list[str]:
    """What could be released: the selected worker's pin first, then the other pins, the split, the freeze."""
    lives = [life for life in model.requests.in_force() if life.verb not in ("drain", "quarantine")]
    held = {life.target or {"override": "split"}.get(life.verb, life.verb) for life in lives}
    held |= {worker.worker_id for worker in _view(model).workers if worker.pinned}
    return sorted(held, key=lambda target: (target != selected, target))


def release(model: ConsoleModel, targets: tuple[str, ...]) -> Form:
    """End one of the overrides in force on ``targets``."""
    return Form(
        "Release",
        "Release",
        (Field("target", "what", value=targets[0], options=targets), _REASON),
        lambda answers: impact.release(_view(model), answers["target"]),
        lambda answers: (Ask("release", _reason_given(answers["reason"]), target=answers["target"]),),
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
        lambda answers: (Ask(verb, _reason_given(answers["reason"]), target=str(plan.decision_id)),),
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
        lambda answers: (Ask("mode", _reason_given(answers["reason"]), value=answers["mode"]),),
    )


def policy(model: ConsoleModel) -> Form:
    """Let another policy decide; whether the controller has it is for the controller to say."""

    def named(text: str) -> str:
        if not text.strip():
            raise InputError(f"name a policy: {', '.join(POLICIES)}")
        return text.strip()

    return Form(
        f"Policy, now {_view(model).policy}",
        "Set",
        (Field("policy", "policy", hint=", ".join(POLICIES), check=named), _REASON),
        lambda answers: impact.policy(_view(model), named(answers["policy"])),
        lambda answers: (Ask("policy", _reason_given(answers["reason"]), value=named(answers["policy"])),),
    )


def shadow(model: ConsoleModel) -> Form:
    """Let a second policy decide beside the active one, or none."""

    def named(text: str) -> str:
        if not text.strip():
            raise InputError(f"name a policy, or off: {', '.join(SHADOWS)}")
        return text.strip()

    now = _view(model).shadow
    return Form(
        f"In shadow, now {now.policy if now is not None else 'none'}",
        "Set",
        (Field("policy", "policy", hint=", ".join(SHADOWS), check=named), _REASON),
        lambda answers: impact.shadow(_view(model), named(answers["policy"])),
        lambda answers: (Ask("shadow", _reason_given(answers["reason"]), value=named(answers["policy"])),),
    )


def _lasting(verb: Verb, answers: Answers, target: str | None = None, value: str | None = None) -> Ask:
    return Ask(verb, _reason_given(answers["reason"]), target, value, parse_duration_s(answers["for"]))


def _view(model: ConsoleModel) -> View:
    assert model.view is not None
    return model.view
