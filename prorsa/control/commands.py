"""What the controller makes of a command: accepted or rejected, always with a word on why.

A dry run is answered by :mod:`prorsa.control.rehearsal`, on a copy, and changes nothing here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from prorsa.clock import nanoseconds
from prorsa.control.overrides import known_worker
from prorsa.control.plan import still_allowed
from prorsa.control.policies import POLICIES, colocated_settings, make_policy
from prorsa.control.rehearsal import answer_question
from prorsa.control.shadow import OFF, Shadow, make_shadow
from prorsa.errors import ConfigError, RefusedError
from prorsa.events import Command, Mode, Override

if TYPE_CHECKING:
    from prorsa.control.controller import Controller, Step


def handle(controller: "Controller", command: Command, t_ns: int, step: "Step") -> None:
    """Carry out a requested command; the answer comes first among the step's events, then what it did."""
    answer_at = len(step.events)
    try:
        if command.asks:
            step.events.append(answer_question(controller, command, t_ns, type(step)(), handle))
            return
        _must_say_why(command)
        detail = _VERBS[command.verb](controller, command, t_ns, step)
    except (RefusedError, ConfigError) as error:
        del step.events[answer_at:]
        step.events.append(msgspec.structs.replace(command, state="rejected", detail=str(error)))
        return
    step.events.insert(answer_at, msgspec.structs.replace(command, state="accepted", detail=detail))


def _pin(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    _must_act(controller, command)
    step.events += controller.overrides.pin(command, controller.registry, t_ns)
    controller.decide_soon()
    return f"{command.target} is pinned to {command.value}"


def _override(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    _must_act(controller, command)
    step.events += controller.overrides.hold_split(command, controller.registry, t_ns)
    controller.decide_soon()
    return f"the split is held at {command.value}"


def _freeze(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    step.events += controller.overrides.freeze(command, t_ns)
    under_way = len(controller.executor)
    return f"no flip starts; {under_way} under way will finish" if under_way else "no flip starts"


def _release(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    ended: list[Override] = controller.overrides.release(command, t_ns)
    step.events += ended
    controller.decide_soon()
    return f"released {command.target}"


def _approve(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    proposal = controller.proposal
    _must_be_pending(controller, command)
    assert proposal is not None
    if controller.overrides.frozen is not None:
        raise RefusedError("approve: flips are frozen; release the freeze first")
    moves, guards = still_allowed(proposal.moves, controller.pool(t_ns))
    if not moves:
        why = "; ".join(guard.text for guard in guards) or "its workers have moved on"
        raise RefusedError(f"approve: decision {proposal.decision_id} cannot be carried out now: {why}")
    controller.proposal = None
    started = controller.start(moves, proposal.decision_id, t_ns, step)
    return f"decision {proposal.decision_id}: {started} flip(s) started"


def _reject(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    del step
    proposal = controller.proposal
    _must_be_pending(controller, command)
    assert proposal is not None
    controller.proposal = None
    controller.rejected = (proposal.chosen, t_ns + nanoseconds(controller.config.decision_horizon_s))
    return f"decision {proposal.decision_id} is rejected; the same split is not proposed again for a while"


def _mode(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    del t_ns, step
    try:
        controller.mode = msgspec.convert(command.value, Mode)
    except msgspec.ValidationError as error:
        raise RefusedError(f"mode is auto, approve or observe; got {command.value!r}") from error
    controller.proposal = None
    return f"mode is {controller.mode}"


def _policy(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    del t_ns, step
    split = controller.registry.destined()
    if not command.value:
        raise RefusedError(f"policy takes a name: {', '.join(POLICIES)}")
    if colocated_settings(command.value) is not None and not split.mixed:
        raise RefusedError("colocated needs workers that were launched as mixed; SGLang cannot flip to that role")
    controller.decide_soon()
    if controller.shadow is not None and controller.shadow.policy.name == command.value:
        return _take_over(controller, controller.shadow)
    controller.policy = make_policy(command.value, split.prefill + split.decode or None)
    return f"policy is {controller.policy.name}"


def _take_over(controller: "Controller", shadow: Shadow) -> str:
    """The policy in shadow decides from now on, with what it remembers; the one before goes on in shadow."""
    before, controller.policy = controller.policy, shadow.policy
    if colocated_settings(before.name) is not None:
        controller.shadow = None
        return f"policy is {controller.policy.name}; none decides in shadow"
    controller.shadow = Shadow(before)
    return f"policy is {controller.policy.name}; {before.name} goes on in shadow"


def _shadow(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    del t_ns
    if not command.value:
        raise RefusedError(f"shadow takes a policy or {OFF}: {', '.join(POLICIES)}")
    if command.value != OFF:
        split = controller.registry.destined()
        workers = split.prefill + split.decode or None
        controller.shadow = make_shadow(command.value, controller.policy.name, workers)
        return f"{command.value} decides in shadow; nothing comes of it"
    if controller.shadow is None:
        raise RefusedError("shadow off: no policy decides in shadow")
    was, controller.shadow = controller.shadow.policy.name, None
    step.events += controller.alerts.no_shadow()
    return f"{was} no longer decides in shadow"


def _take_out(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    must_name_worker(command)
    step.events += controller.overrides.take_out(command, controller.registry, t_ns)
    step.take(controller.absences.begin(command.target or "", t_ns))
    controller.decide_soon()
    if command.verb == "drain":
        return f"{command.target} takes no new requests; those it has move on to other workers"
    return f"{command.target} takes no new requests; those it has end where they are"


def _readmit(controller: "Controller", command: Command, t_ns: int, step: "Step") -> str:
    must_name_worker(command)
    worker = known_worker(controller.registry, command.target)
    controller.absences.check_return(worker.worker_id)
    step.events += controller.overrides.readmit(command, t_ns)
    controller.absences.end(worker.worker_id, f"readmitted by {command.owner}: {command.reason}")
    step.take(controller.absences.advance(t_ns))
    controller.decide_soon()
    return f"{worker.worker_id} serves again as {worker.role} once a canary has passed"


def must_name_worker(command: Command) -> None:
    """A command on one worker names it.

    Raises:
        RefusedError: if it does not.
    """
    if not command.target:
        raise RefusedError(f"{command.verb} takes a worker, as in `{command.verb} w3`")


def _must_say_why(command: Command) -> None:
    if not command.reason.strip():
        raise RefusedError(f"{command.verb}: say why (a reason is required)")


def _must_act(controller: "Controller", command: Command) -> None:
    if controller.mode == "observe":
        raise RefusedError(
            f"{command.verb}: the mode is observe and nothing is flipped; set mode auto or approve first"
        )


def _must_be_pending(controller: "Controller", command: Command) -> None:
    proposal = controller.proposal
    if proposal is None:
        raise RefusedError(f"{command.verb}: no decision waits for approval")
    if command.target not in (None, str(proposal.decision_id)):
        raise RefusedError(f"{command.verb}: decision {command.target} is not pending; {proposal.decision_id} is")


_VERBS: Final[dict[str, Callable[["Controller", Command, int, "Step"], str]]] = {
    "pin": _pin,
    "override": _override,
    "freeze": _freeze,
    "release": _release,
    "approve": _approve,
    "reject": _reject,
    "mode": _mode,
    "policy": _policy,
    "shadow": _shadow,
    "drain": _take_out,
    "quarantine": _take_out,
    "readmit": _readmit,
}
