"""Answers the requests of the hub's control socket. No sockets in here: frames come in, frames go out."""

from collections.abc import Callable
from typing import Final

import msgspec

from prorsa.bus import wire
from prorsa.bus.fanout import stamp
from prorsa.bus.reading import JournalReader
from prorsa.bus.state import LastValues
from prorsa.errors import EventError, ProrsaError

MAX_PAGE_EVENTS: Final = wire.REPLAY_PAGE_EVENTS


class ReadDesk:
    """Serves ``status``, ``snapshot`` and ``replay``, of a hub or of a replayed journal."""

    def __init__(self, reader: JournalReader, values: LastValues, status: Callable[[], wire.HubStatus]) -> None:
        self._reader = reader
        self._values = values
        self._status = status
        self._serve: dict[bytes, Callable[[bytes], bytes]] = {
            wire.STATUS: lambda _: wire.encode(self._status()),
            wire.SNAPSHOT: self._snapshot,
            wire.REPLAY: self._replay,
        }

    def serves(self, topic: bytes) -> bool:
        """Whether this is one of the requests served here."""
        return topic in self._serve

    def answer(self, frame: wire.Frame) -> list[bytes]:
        """The answer to a request, a failure if it cannot be served."""
        try:
            return wire.pack(frame.topic, frame.sequence, self._serve[frame.topic](frame.payload))
        except ProrsaError as error:
            return failure(frame, error)

    def _snapshot(self, payload: bytes) -> bytes:
        request = wire.decode(wire.SnapshotRequest, payload)
        status = self._status()
        events = self._values.select(request.topics)
        return wire.encode(wire.Snapshot(status.run_id, status.head_seq, status.heads, events))

    def _replay(self, payload: bytes) -> bytes:
        request = wire.decode(wire.ReplayRequest, payload)
        status = self._status()
        limit = max(1, min(request.limit, MAX_PAGE_EVENTS))
        rows = self._reader.page(request.after_seq, limit, request.topics, status.head_seq)
        upto_seq = rows[-1].hub_seq if len(rows) == limit else status.head_seq
        events = [msgspec.Raw(stamp(row)) for row in rows]
        return wire.encode(wire.ReplayPage(status.run_id, events, upto_seq, status.head_seq, status.heads))


def failure(frame: wire.Frame, error: ProrsaError) -> list[bytes]:
    """The answer that says why a request was not served."""
    what = wire.Failure("input" if isinstance(error, EventError) else "refused", str(error))
    return wire.pack(wire.ERROR, frame.sequence, wire.encode(what))
