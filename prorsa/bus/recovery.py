"""Rebuilds from the journal what a hub remembers beside it."""

from typing import Final

from prorsa.bus.fanout import stamp
from prorsa.bus.reading import JournalReader
from prorsa.bus.state import SNAPSHOT_TYPES, CommandTable, LastValues, LeaseTable
from prorsa.errors import EventError
from prorsa.events import Command, Lease, decode, encode

RECENT_EVENTS: Final = 50_000
"""How far back the last values of events that recur all the time are looked for; older ones are stale anyway."""

_RECURRING: Final = frozenset({"worker.load"})
_LAST_ONLY: Final = frozenset({"run.begin", "run.end", "sampler.state", "forecast", "decision", "view", "lease"})


def recover(reader: JournalReader, now_s: float) -> tuple[LastValues, CommandTable, LeaseTable]:
    """The tables as they were when the last event was journalled; ``now_s`` is of the lease's monotonic clock."""
    return _last_values(reader), _commands(reader), _lease(reader, now_s)


def _last_values(reader: JournalReader) -> LastValues:
    values = LastValues()
    end = reader.last()
    if end is None:
        return values
    rows = [row for kind in _LAST_ONLY if (row := reader.last(kind)) is not None]
    rows += reader.rows(max(0, end.hub_seq - RECENT_EVENTS), types=_RECURRING)
    rows += reader.rows(types=SNAPSHOT_TYPES.keys() - _RECURRING - _LAST_ONLY)
    for row in sorted(rows):
        try:
            values.apply(row, decode(row.event), stamp(row))
        except EventError:  # a damaged row; the reader of the event is told by its own decoding
            continue
    return values


def _commands(reader: JournalReader) -> CommandTable:
    commands = CommandTable()
    for stamped in reader.read(types=["command"]):
        assert isinstance(stamped.event, Command)
        commands.apply(stamped.event, encode(stamped.event))
    return commands


def _lease(reader: JournalReader, now_s: float) -> LeaseTable:
    lease = LeaseTable()
    row = reader.last("lease")
    if row is not None:
        event = decode(row.event)
        assert isinstance(event, Lease)
        lease.recover(event, now_s)
    return lease
