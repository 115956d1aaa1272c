"""Puts what many sources send into one order. Pure: no I/O, no clock.

Each source's events are taken in the order of their ``seq``, each once. What comes after a hole is not taken: the
source is asked to send again from the hole on. A hole that the source itself announces (``bus.overflow``), or cannot
fill any more, is passed over. So per source the journal is always in order, and its state is one number.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from prorsa.bus.layout import Row
from prorsa.bus.outbox import Item
from prorsa.bus.wire import Counters
from prorsa.errors import EventError
from prorsa.events import EVENT_TYPES, AnyEvent, BusOverflow, Event, decode, encode, type_name

UNKNOWN_KIND: Final = "unknown"


class Rejected(NamedTuple):
    """An event that was not taken; ``kind`` is its type, or ``unknown``."""

    source: str
    kind: str
    text: str


class Taken(NamedTuple):
    """What became of a batch.

    Attributes:
        rows, events: what is to be journalled, and the same decoded.
        ack_seq: the source's last ``seq`` that is settled once the rows are journalled; None to say nothing.
        resend_seq: what the source should send again from; None if nothing is missing.
    """

    rows: list[Row]
    events: list[AnyEvent]
    ack_seq: int | None
    resend_seq: int | None
    rejected: list[Rejected]


class _Sender(NamedTuple):
    source: str
    run_id: str | None
    refused_types: frozenset[str]


class Orderer:
    """Gives ``hub_seq`` and run time to events.

    Args:
        source: the name under which the hub itself speaks.
        run_id: the run; batches of another run are rejected.
        last_seq: the last ``hub_seq`` that is journalled.
        last_t_ns: the run time of that event; later ones never go below it.
        source_seqs: the last ``seq`` taken of each source.
    """

    def __init__(self, source: str, run_id: str, last_seq: int, last_t_ns: int, source_seqs: dict[str, int]) -> None:
        self.source = source
        self.last_seq = last_seq
        self.last_t_ns = last_t_ns
        self.source_seqs = dict(source_seqs)
        self._run_id = run_id
        self._holes: dict[str, int] = {}
        self._received = self._ordered = self._gaps = self._repaired = self._rejected = 0

    @property
    def counters(self) -> Counters:
        """What has been counted; ``journalled`` is what was given an order."""
        return Counters(self._received, self._ordered, self._gaps, self._repaired, self._rejected)

    def take(
        self,
        source: str,
        run_id: str | None,
        first_seq: int,
        items: Sequence[Item],
        t_ns: int,
        refused_types: frozenset[str] = frozenset(),
    ) -> Taken:
        """Take one batch of ``source``, which may send no ``refused_types``, that arrived at run time ``t_ns``."""
        self._received += len(items)
        self._advance_time(t_ns)
        expected = self.source_seqs.get(source, 0) + 1
        if first_seq > expected:
            if not self._may_pass_over(source, expected, items):
                return self._ask_again(source, expected)
            self.source_seqs[source] = first_seq - 1
            expected = first_seq
        elif source in self._holes and first_seq + len(items) > expected:
            del self._holes[source]
            self._repaired += 1
        taken = Taken([], [], None, None, [])
        sender = _Sender(source, run_id, refused_types)
        for seq, (ts_ns, raw) in enumerate(items[expected - first_seq :], expected):
            self._take_one(taken, sender, seq, ts_ns, raw)
        return taken._replace(ack_seq=self.source_seqs.get(source, 0))

    def own(self, event: Event, t_ns: int, ts_ns: int) -> Row:
        """An event of the hub itself."""
        self._advance_time(t_ns)
        seq = self.source_seqs.get(self.source, 0) + 1
        return self._row(self.source, seq, ts_ns, type_name(event), encode(event))

    def reject_message(self) -> None:
        """Count a message that holds no batch."""
        self._rejected += 1

    def _take_one(self, taken: Taken, sender: _Sender, seq: int, ts_ns: int, raw: msgspec.Raw) -> None:
        source = sender.source
        try:
            event = self._check(sender, raw)
        except EventError as error:
            self.source_seqs[source] = seq
            self._rejected += 1
            taken.rejected.append(Rejected(source, _kind(raw), str(error)))
            return
        taken.rows.append(self._row(source, seq, ts_ns, type_name(event), bytes(raw)))
        taken.events.append(event)

    def _check(self, sender: _Sender, raw: msgspec.Raw) -> AnyEvent:
        if sender.run_id not in (None, self._run_id):
            raise EventError(f"it belongs to run {sender.run_id}, this hub serves {self._run_id}; restart the source")
        event = decode(raw)
        if sender.refused_types and (kind := type_name(event)) in sender.refused_types:
            raise EventError(f"{kind}: the key it came with may not send such events; controllers use operator.key")
        return event

    def _row(self, source: str, seq: int, ts_ns: int, kind: str, event: bytes) -> Row:
        self.last_seq += 1
        self.source_seqs[source] = seq
        self._ordered += 1
        return Row(self.last_seq, self.last_t_ns, source, seq, ts_ns, kind, event)

    def _advance_time(self, t_ns: int) -> None:
        self.last_t_ns = max(self.last_t_ns, t_ns)

    def _may_pass_over(self, source: str, expected: int, items: Sequence[Item]) -> bool:
        """Whether the hole before a batch is one that its source has announced, or cannot fill."""
        known = source in self.source_seqs
        if items and not _announces(items[0][1], expected):
            return False
        if known and source not in self._holes:
            self._gaps += 1
        self._holes.pop(source, None)
        return True

    def _ask_again(self, source: str, expected: int) -> Taken:
        if source in self.source_seqs and source not in self._holes:
            self._holes[source] = expected
            self._gaps += 1
        return Taken([], [], None, expected, [])


def _announces(raw: msgspec.Raw, expected: int) -> bool:
    try:
        event = decode(raw)
    except EventError:
        return False
    return isinstance(event, BusOverflow) and event.first_seq <= expected


def _kind(raw: msgspec.Raw) -> str:
    try:
        found = msgspec.msgpack.decode(raw, type=_Tag).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UNKNOWN_KIND
    return found if found in EVENT_TYPES else UNKNOWN_KIND


class _Tag(msgspec.Struct):
    type: str
