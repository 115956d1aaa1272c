"""Answers to commands that only ask: what a command would do, and how the live trajectories stand. Pure.

A dry run carries the command out on a copy of the controller's state and lets that copy plan its next decision with
the same code. So what it says is what would happen if nothing changed before that decision.
"""

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from prorsa.clock import seconds
from prorsa.control.absence import Absences
from prorsa.errors import RefusedError
from prorsa.events import Command, Move, PredictedEffect, Split
from prorsa.forecast.standing import longest_standing

if TYPE_CHECKING:
    from prorsa.cluster.registry import Worker
    from prorsa.control.controller import Controller, Step

CarryOut = Callable[["Controller", Command, int, "Step"], None]
"""Carries a command out on a controller; the answer comes first among the step's events."""


def answer_question(
    controller: "Controller", command: Command, t_ns: int, step: "Step", carry_out: CarryOut
) -> Command:
    """The answer to a command that only asks. ``step`` is an empty one, to be used up.

    Raises:
        RefusedError: where the command itself would be refused, with the same words.
        ConfigError: likewise.
    """
    if command.verb == "details":
        predictor = controller.predictor
        standing = None if predictor is None else longest_standing(predictor.table, seconds(t_ns))
        return msgspec.structs.replace(command, state="accepted", trajectories=standing)
    before, stage = controller.registry.destined(), _copy(controller)
    # Whoever only wonders what would happen need not say why.
    carry_out(
        stage, msgspec.structs.replace(command, dry_run=False, reason=command.reason.strip() or "dry run"), t_ns, step
    )
    answer = next(event for event in step.events if isinstance(event, Command))
    if answer.state == "rejected":
        raise RefusedError(answer.detail or f"{command.verb} would be refused")
    if command.verb in ("drain", "quarantine", "readmit"):
        _settle(stage, command)
    return msgspec.structs.replace(
        command,
        state="accepted",
        detail=answer.detail,
        effect=_effect(controller, stage, command, before, t_ns),
    )


def _settle(stage: "Controller", command: Command) -> None:
    """The worker as it will be once it is out, or back: what the policy then makes of the rest counts too."""
    worker = stage.registry.get(command.target or "")
    assert worker is not None
    stage.executor.on_worker_gone(worker, 0, "rehearsed")
    worker.state = "serving" if command.verb == "readmit" else "quarantined"


def _copy(controller: "Controller") -> "Controller":
    """A controller that shares nothing which planning changes; its predictor stays behind."""
    stage = copy.copy(controller)
    parts = (controller.registry, controller.executor, controller.overrides, controller.alerts)
    stage.registry, stage.executor, stage.overrides, stage.alerts = copy.deepcopy(parts)
    stage.policy, stage.shadow = copy.deepcopy((controller.policy, controller.shadow))
    stage.absences = Absences(stage.registry, stage.executor, stage.overrides)
    return stage


def _effect(
    controller: "Controller", stage: "Controller", command: Command, before: Split, t_ns: int
) -> PredictedEffect:
    if command.verb == "shadow":
        return PredictedEffect(current=before, leads_to=before)
    _, plan = stage.plan(t_ns)
    moves, after = plan.moves, stage.registry.destined()
    leads_to = after if stage.mode == "observe" else _after(after, moves)
    if command.verb == "approve" and controller.proposal is not None:
        moves, leads_to = controller.proposal.moves, after  # the copy has started them
    touched = [move.worker_id for move in moves]
    touched += [command.target or ""] if command.verb in ("drain", "quarantine") else []
    requests, kv_tokens = _touched(controller, touched)
    return PredictedEffect(
        current=before,
        leads_to=leads_to,
        moves=moves,
        guards=plan.guards,
        requests=requests,
        kv_tokens=kv_tokens,
        flip_s=controller.config.flip_s if moves else None,
        waits_for_approval=stage.mode == "approve" and not plan.by_operator and command.verb != "approve",
    )


def _after(before: Split, moves: Iterable[Move]) -> Split:
    change = sum(1 if move.to_role == "prefill" else -1 for move in moves)
    return Split(before.prefill + change, before.decode - change, before.mixed)


def _touched(controller: "Controller", worker_ids: Iterable[str]) -> tuple[int | None, int | None]:
    """Requests on these workers and the KV that they hold; None where one of them has not said."""
    workers = [worker for worker_id in worker_ids if (worker := controller.registry.get(worker_id)) is not None]
    requests, kv_tokens = [_requests(worker) for worker in workers], [_kv(worker) for worker in workers]
    return (
        None if None in requests else sum(value for value in requests if value is not None),
        None if None in kv_tokens else sum(value for value in kv_tokens if value is not None),
    )


def _requests(worker: "Worker") -> int | None:
    load = worker.load
    if load is None or (load.queued is None and load.running is None):
        return None
    return (load.queued or 0) + (load.running or 0)


def _kv(worker: "Worker") -> int | None:
    return None if worker.load is None else worker.load.kv_used
