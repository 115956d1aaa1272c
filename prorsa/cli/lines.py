"""One line of text for an event, as ``watch`` prints it."""

from prorsa.clock import seconds
from prorsa.events import Alert, Command, Decision, Flip, Override, RunBegin, RunEnd, Stamped, WorkerDown, WorkerUp


def line_of(stamped: Stamped) -> str | None:
    """A line, or None for an event that is nothing to tell (a decision that holds)."""
    text = _text(stamped)
    return None if text is None else f"{seconds(stamped.t_ns):9.1f} s  {text}"


def _text(stamped: Stamped) -> str | None:
    match stamped.event:
        case Decision(status="hold"):
            return None
        case Decision() as decision:
            moves = ", ".join(f"{move.worker_id}→{move.to_role}" for move in decision.moves)
            return f"decision {decision.decision_id} {decision.status}: {moves}: {decision.reason}"
        case Flip() as flip:
            return f"{flip.worker_id} {flip.from_role}→{flip.to_role} {flip.state} ({flip.elapsed_s or 0:.1f} s)"
        case Override() as override:
            left = "" if override.detail is None else f": {override.detail}"
            return f"{override.kind} {override.target or ''} {override.value or ''} {override.state}{left}"
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
