"""The log: what happened in the run, a line an event, as ``prorsa watch`` tells it. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from prorsa.events import (
    Alert,
    AnyEvent,
    Command,
    Decision,
    Flip,
    Lease,
    Override,
    RunEnd,
    Stamped,
    StepBegin,
    StepEnd,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    type_name,
)
from prorsa.lines import text_of

Tone = Literal["text", "muted", "good", "warning", "critical"]

_BAD_FLIPS: Final = ("quarantined", "restored", "dead")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line: when, from whom, of which kind and how grave; ``event`` is all that was said."""

    hub_seq: int
    t_ns: int
    source: str
    kind: str
    tone: Tone
    text: str
    event: AnyEvent

    def fields(self) -> dict[str, object]:
        """The event's fields, as they are documented."""
        plain: dict[str, object] = msgspec.to_builtins(self.event)
        return {name: value for name, value in plain.items() if name != "type"}


class Log:
    """The latest ``limit`` entries, oldest first."""

    def __init__(self, limit: int = 2000) -> None:
        self.entries: deque[LogEntry] = deque(maxlen=limit)

    def add(self, stamped: Stamped) -> None:
        """Keep an event that is something to tell."""
        text = text_of(stamped.event) or _other(stamped.event)
        if text is None:
            return
        event = stamped.event
        entry = LogEntry(stamped.hub_seq, stamped.t_ns, stamped.source, type_name(event), _tone(event), text, event)
        self.entries.append(entry)


def _other(event: AnyEvent) -> str | None:
    match event:
        case Lease():
            return f"controller lease {event.state}: {event.holder}, epoch {event.epoch}"
        case StepBegin():
            return "step begins" if event.step is None else f"step {event.step} begins"
        case StepEnd():
            return "step ends" if event.step is None else f"step {event.step} ends"
        case WeightsUpdateBegin(expected_in_s=None | 0.0):
            return f"weights: update to {event.version} begins"
        case WeightsUpdateBegin():
            return f"weights: update to {event.version} is expected in {event.expected_in_s:g} s"
        case WeightsUpdateEnd():
            return f"weights: {event.version} is in place" + (", caches flushed" if event.cache_flushed else "")
        case _:
            return None


def _tone(event: AnyEvent) -> Tone:
    match event:
        case Alert():
            return "text" if event.severity == "info" else event.severity
        case WorkerDown() | RunEnd(status="failed"):
            return "critical"
        case Flip():
            return "critical" if event.state in _BAD_FLIPS and event.from_role != event.to_role else "text"
        case Command(state="rejected") | Override(state="rejected"):
            return "warning"
        case Decision():
            return "good" if event.status == "applied" else "warning"
        case Command() | Override():
            return "text"
        case _:
            return "muted"
