"""Deciding again over a journal: the same code on the same rows must give the same decisions.

A controller's input at a tick is exactly the journal up to ``upto_hub_seq`` of what it published at that tick. So a
replay first collects the ticks, then feeds the events in order and ticks where the recorded controller did.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from prorsa.control.controller import INPUT_TYPES, Controller, Step
from prorsa.control.seen import recorded_rows
from prorsa.events import Decision, Forecast, ForecastRow, ShadowDecision, Stamped, type_name

_Said = Decision | ShadowDecision


@dataclass(frozen=True, slots=True, order=True)
class Tick:
    """One recorded tick; ``perfect`` is what the policy saw, where it was not the predictor's own forecast."""

    upto_hub_seq: int
    t_ns: int
    perfect: tuple[ForecastRow, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class Comparison:
    """The outcome of a replay: decisions, and those in shadow, and how many of them are made alike again."""

    decisions: int = 0
    equal: int = 0
    shadow_decisions: int = 0
    shadow_equal: int = 0
    first_difference: dict[str, object] | None = None

    def to_json(self) -> dict[str, object]:
        """As ``prorsa replay`` prints it."""
        return dataclasses.asdict(self)


def ticks_of(stamped_events: Iterable[Stamped]) -> list[Tick]:
    """The ticks of a journal's ``forecast`` and ``decision`` events, in order, each once."""
    ticks: dict[tuple[int, int], Tick] = {}
    for stamped in stamped_events:
        event = stamped.event
        if not isinstance(event, Forecast | Decision):
            continue
        key = (event.upto_hub_seq, event.tick_ns)
        if key not in ticks or isinstance(event, Forecast):
            perfect = recorded_rows(event) if isinstance(event, Forecast) else ()
            ticks[key] = Tick(event.upto_hub_seq, event.tick_ns, perfect)
    return sorted(ticks.values())


def fold(controller: Controller, stamped_events: Iterable[Stamped], ticks: list[Tick]) -> Iterator[Step]:
    """Feed a controller events and ticks in the order in which the recorded one had them."""
    due = iter(ticks)
    tick = next(due, None)
    for stamped in stamped_events:
        while tick is not None and tick.upto_hub_seq < stamped.hub_seq:
            yield controller.tick(tick.t_ns, tick.upto_hub_seq, tick.perfect)
            tick = next(due, None)
        yield controller.observe(stamped)
    while tick is not None:
        yield controller.tick(tick.t_ns, tick.upto_hub_seq, tick.perfect)
        tick = next(due, None)


def compare(
    controller: Controller,
    read: Callable[[tuple[str, ...]], Iterable[Stamped]],
    *,
    shadows: bool = True,
) -> Comparison:
    """Replay a journal and compare each recorded decision with the one made again.

    Args:
        controller: a fresh one, with the settings that the journal was recorded with (or others, to see what changes).
        read: gives the journal's events of the given types, in order.
        shadows: also compare what was decided in shadow.
    """
    kinds = (Decision, ShadowDecision) if shadows else (Decision,)
    names = tuple(type_name(kind) for kind in kinds)
    recorded = [stamped.event for stamped in read(names) if isinstance(stamped.event, kinds)]
    ticks = ticks_of(read(("forecast", "decision")))
    again = [
        event
        for step in fold(controller, read(INPUT_TYPES), ticks)
        for event in step.events
        if isinstance(event, kinds)
    ]
    result = Comparison()
    for kind in kinds:
        _compare(kind, recorded, again, result)
    return result


def _compare(kind: type[_Said], recorded: Sequence[_Said], again: Sequence[_Said], result: Comparison) -> None:
    before = [event for event in recorded if isinstance(event, kind)]
    now = [event for event in again if isinstance(event, kind)]
    different = [pair for pair in zip(before, now, strict=False) if pair[0] != pair[1]]
    equal = min(len(before), len(now)) - len(different)
    if kind is Decision:
        result.decisions, result.equal = len(before), equal
    else:
        result.shadow_decisions, result.shadow_equal = len(before), equal
    if result.first_difference is None and different:
        result.first_difference = _difference(*different[0])
    elif result.first_difference is None and len(before) != len(now):
        name = "decisions" if kind is Decision else "shadow_decisions"
        result.first_difference = {f"recorded_{name}": len(before), f"replayed_{name}": len(now)}


def _difference(before: _Said, now: _Said) -> dict[str, object]:
    first, second = msgspec.to_builtins(before), msgspec.to_builtins(now)
    fields = {
        name: {"recorded": first.get(name), "replayed": second.get(name)}
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    }
    said = {"type": type_name(before)} if isinstance(before, ShadowDecision) else {}
    return {**said, "decision_id": before.decision_id, "tick_ns": before.tick_ns, "fields": fields}
