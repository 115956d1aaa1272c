"""Lines of text for events, as ``watch`` prints them, and for the predicted effect of a command."""

from prorsa.clock import seconds
from prorsa.events import (
    Alert,
    AnyEvent,
    Command,
    Decision,
    Flip,
    Override,
    PredictedEffect,
    RunBegin,
    RunEnd,
    ShadowDecision,
    Stamped,
    WorkerDown,
    WorkerUp,
)


def line_of(stamped: Stamped) -> str | None:
    """A line, or None for an event that is nothing to tell (a decision that holds)."""
    text = text_of(stamped.event)
    return None if text is None else f"{seconds(stamped.t_ns):9.1f} s  {text}"


def text_of(event: AnyEvent) -> str | None:
    """What an event says in a line, or None for one that is nothing to tell."""
    match event:
        case Decision(status="hold"):
            return None
        case Decision() as decision:
            moves = ", ".join(f"{move.worker_id}→{move.to_role}" for move in decision.moves)
            return f"decision {decision.decision_id} {decision.status}: {moves}: {decision.reason}"
        case ShadowDecision(agrees=False) as shadow:
            return f"in shadow, {shadow.policy} would choose {shadow.chosen}: {shadow.reason}"
        case Flip() as flip:
            roles = flip.to_role if flip.from_role == flip.to_role else f"{flip.from_role}→{flip.to_role}"
            return f"{flip.worker_id} {roles} {flip.state} ({flip.elapsed_s or 0:.1f} s)"
        case Override() as override:
            left = "" if override.detail is None else f": {override.detail}"
            return f"{override.kind} {override.target or ''} {override.value or ''} {override.state}{left}"
        case Command() as command if command.asks:
            return None
        case Command() as command:
            said = command.detail or command.reason
            return (
                f"{command.owner}: {command.verb} {command.target or ''} {command.value or ''} {command.state}: {said}"
            )
        case Alert() as alert:
            return f"{alert.severity}: {alert.text}"
        case RunBegin() as run:
            return f"run begins: {run.scenario} on {run.workers} workers"
        case RunEnd() as run:
            return f"run ends: {run.status}"
        case WorkerUp() as worker:
            return f"{worker.worker_id} is up as {worker.role}"
        case WorkerDown() as worker:
            return f"{worker.worker_id} is down: {worker.reason or 'unknown why'}"
        case _:
            return None


def effect_lines(effect: PredictedEffect) -> list[str]:
    """What a dry run says, a fact a line."""
    lines = [f"split {effect.current} now, {effect.leads_to} after the next decision"]
    lines += [f"flip {move.worker_id} {move.from_role}→{move.to_role}: {move.reason}" for move in effect.moves]
    lines += [f"guard {guard.guard}: {guard.text}" for guard in effect.guards]
    if effect.requests is not None:
        lines.append(f"requests on these workers: {effect.requests}")
    if effect.waits_for_approval and effect.moves:
        lines.append("the plan waits for approval")
    return lines
