"""Fans events out to subscribers over a PUB socket: one event a message, with marks and heartbeats in between."""

from collections.abc import Sequence
from typing import Final

import msgspec
import zmq

from prorsa.bus import wire
from prorsa.bus.layout import Row
from prorsa.bus.sockets import Security, bind, configure

FANOUT_HWM: Final = 20_000
"""Messages queued for one subscriber; a slower one loses what comes beyond, notices, and asks for a replay."""

MARK_EVENTS: Final = 1000
"""Events after which a mark is sent, if a burst is longer."""


def stamp(row: Row) -> bytes:
    """A row as a stamped event; the event's bytes go in as they are."""
    return wire.encode((row.hub_seq, row.t_ns, row.source, row.seq, row.ts_ns, msgspec.Raw(row.event)))


class Fanout:
    """The PUB socket of a hub or of a replay.

    Args:
        counts: how many events of each type the run has had so far.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        counts: dict[str, int],
        security: Security | None = None,
    ) -> None:
        self.heads = dict(counts)
        """How many events of each type have been sent, which is the sequence of the last one."""
        self._beats = 0
        self._marks = 0
        self._socket = context.socket(zmq.PUB)
        configure(self._socket, FANOUT_HWM, security)
        self.endpoint = bind(self._socket, endpoint)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, rows: Sequence[Row]) -> list[bytes]:
        """Send each row as a stamped event, with marks; returns the stamped events."""
        sent: list[bytes] = []
        for at in range(0, len(rows), MARK_EVENTS):
            sent += self._send_marked(rows[at : at + MARK_EVENTS])
        return sent

    def _send_marked(self, rows: Sequence[Row]) -> list[bytes]:
        heads, send = self.heads, self._socket.send_multipart
        sent = []
        for row in rows:
            sequence = heads[row.type] = heads.get(row.type, 0) + 1
            payload = stamp(row)
            send(wire.pack(row.type.encode(), sequence, payload))
            sent.append(payload)
        self._marks += 1
        send(wire.pack(wire.MARK_TOPIC, self._marks, wire.encode(wire.Mark(rows[-1].hub_seq, heads))))
        return sent

    def beat(self, status: wire.HubStatus) -> None:
        """Send the heartbeat."""
        self._beats += 1
        self._socket.send_multipart(wire.pack(wire.HUB_TOPIC, self._beats, wire.encode(status)))
