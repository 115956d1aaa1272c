"""Publishes events to the hub without ever getting in its caller's way.

:meth:`Publisher.publish` encodes the event, puts it into a bounded buffer and returns; a daemon thread sends, and
keeps every event until the hub has acknowledged it, which means journalled. After a restart of the hub, or when it is
silent for too long, the thread repeats over a new connection what is not acknowledged; the hub drops the repeats.
"""

import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

import msgspec
import zmq

from prorsa.bus import wire
from prorsa.bus.keys import Keys
from prorsa.bus.outbox import BATCH_EVENTS, Item, Outbox
from prorsa.bus.sockets import Handshakes, configure, refusal
from prorsa.errors import ConfigError, EventError
from prorsa.events import Batch, Event, encode

CAPACITY_EVENTS: Final = 100_000
"""Events that a publisher holds at most, unless told otherwise."""
WINDOW_EVENTS: Final = 16_384
"""Events that are sent and not acknowledged at most; the rest waits in the buffer."""
GATHER_S: Final = 0.001
"""After the first event of a quiet time the thread waits so long for more, to send them as one batch."""
RESEND_S: Final = 1.0
RESEND_MAX_S: Final = 8.0
"""Without an acknowledgement for ``RESEND_S`` everything unacknowledged is sent again over a new connection; each
further time the wait doubles up to ``RESEND_MAX_S``, so that a hub that is only slow is not buried in repeats."""
SEND_HWM: Final = 64
"""Batches in the socket's own queue."""
MAX_SOURCE: Final = 200
"""Longest name of a source."""

_log = logging.getLogger(__name__)


class PublisherStats(NamedTuple):
    """What a publisher has done since it was made, in events.

    Attributes:
        published: taken into the buffer; ``acknowledged`` of these.
        held: in the buffer now.
        lost: dropped because the buffer was full.
        unencodable: refused because msgpack cannot hold them.
        resent: sent again.
        reconnects: connections made anew because the hub was silent.
        rejected: dropped because the hub does not understand the batch that they were in.
        refused: whether a hub is there that does not let this publisher in, because of its keys.
    """

    published: int
    acknowledged: int
    held: int
    lost: int
    unencodable: int
    resent: int
    reconnects: int
    rejected: int
    refused: bool


class Publisher:
    """Sends events of one source to the hub.

    Thread-safe. A process that forks gets a fresh publisher in the child, with a source of its own and nothing held.

    Args:
        endpoint: the hub's ``ingest`` endpoint.
        source: name of the source; a boot nonce is added: ``<name>#<nonce>``.
        run_id: the run that the events belong to; None for whichever the hub serves.
        capacity: events held at most; beyond it events are dropped, counted, and announced as ``bus.overflow``.
        keys: for a hub that asks for keys, of a publisher or an operator.

    Raises:
        ConfigError: if the endpoint is none, the source has no name or too long a one, or the keys are a viewer's.
    """

    def __init__(
        self,
        endpoint: str,
        source: str,
        *,
        run_id: str | None = None,
        capacity: int = CAPACITY_EVENTS,
        keys: Keys | None = None,
    ) -> None:
        _check(endpoint, source, keys)
        self.endpoint = endpoint
        self._keys = keys
        self._name = source
        self._run_id = run_id
        self._capacity = capacity
        self._begin()
        _publishers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, event: Event) -> bool:
        """Take an event; never blocks and never raises.

        Returns:
            False if it was dropped: the buffer is full, the publisher closed, or msgpack cannot hold the event.
        """
        items = self._encode((event,))
        if items is None:
            return False
        with self._changed:
            taken = not self._closing and self._outbox.add(items[0])
            self._published += taken
            if taken:
                self._wake()
        return taken

    def publish_all(self, events: Iterable[Event]) -> bool:
        """Take events that belong together: one batch on the wire, journalled in one transaction or not at all.

        Returns:
            False if all of them were dropped, for the reasons of :meth:`publish`.
        """
        items = self._encode(tuple(events))
        if items is None:
            return False
        with self._changed:
            taken = not self._closing and self._outbox.add_all(items)
            if taken:
                self._published += len(items)
                self._wake()
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False if that takes longer than ``timeout_s``."""
        with self._changed:
            return (
                self._changed.wait_for(lambda: self._outbox.settled or self._stopped, timeout_s)
                and self._outbox.settled
            )

    def stats(self) -> PublisherStats:
        """What this publisher has done so far."""
        with self._changed:
            return PublisherStats(
                self._published,
                self._acknowledged,
                self._outbox.held,
                self._outbox.lost,
                self._unencodable,
                self._resent,
                self._reconnects,
                self._rejected,
                self._refused,
            )

    def close(self, timeout_s: float = 2.0) -> bool:
        """Take no more events, wait up to ``timeout_s`` for the acknowledgements, and stop.

        Returns:
            Whether everything was acknowledged.
        """
        with self._changed:
            self._closing = True
            self._closed_at = time.monotonic() + timeout_s
            thread = self._thread
            self._wake()
        if thread is not None:
            thread.join()
        return self._outbox.settled

    # --- the caller's side ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.source = f"{self._name}#{uuid.uuid4().hex[:8]}"
        """The source as the hub sees it: name and boot nonce."""
        self._changed = threading.Condition(threading.Lock())
        self._outbox = Outbox(self.source, self._run_id, self._capacity)
        self._thread: threading.Thread | None = None
        self._bell: socket.socket | None = None
        self._rung = self._closing = self._stopped = self._refused = self._warned = False
        self._closed_at = 0.0
        self._published = self._acknowledged = self._unencodable = 0
        self._resent = self._reconnects = self._rejected = 0

    def _encode(self, events: tuple[Event, ...]) -> list[Item] | None:
        ts_ns = time.time_ns()
        try:
            return [(ts_ns, msgspec.Raw(encode(event))) for event in events]
        except (TypeError, ValueError, OverflowError, RecursionError):
            with self._changed:
                self._unencodable += len(events)
            return None

    def _wake(self) -> None:
        """Have the thread look, which starts it if need be; the caller holds the lock."""
        if self._thread is None and not self._closing:
            self._start_thread()
        if self._bell is not None and not self._rung and not self._stopped:
            self._rung = True
            self._bell.send(b"\0")

    def _start_thread(self) -> None:
        try:
            bell, listener = socket.socketpair()
        except OSError:  # no file descriptors: the event is held, and the next one tries again
            return
        thread = threading.Thread(target=self._run, args=(listener,), name=f"prorsa-{self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no threads, or the interpreter is about to end
            bell.close()
            listener.close()
            return
        self._bell, self._thread = bell, thread

    # --- the thread's side ------------------------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        # A context of its own: the host program may end the shared one whenever it likes.
        with listener, zmq.Context() as context, _Sender(context, self.endpoint, listener, self._keys) as sender:
            try:
                while not self._finished():
                    if sender.wait():
                        self._answer_bell(listener)
                    if sender.connected_again():
                        self._begin_again()
                    for topic, sequence in sender.replies():
                        self._take_reply(sender, topic, sequence)
                    self._send_waiting(sender)
                    self._check_silence(sender)
            finally:
                self._end()

    def _end(self) -> None:
        with self._changed:
            self._stopped = True
            if self._bell is not None:
                self._bell.close()
            self._changed.notify_all()

    def _finished(self) -> bool:
        with self._changed:
            return self._closing and (self._outbox.settled or time.monotonic() >= self._closed_at)

    def _answer_bell(self, listener: socket.socket) -> None:
        with self._changed:
            gather = not self._closing and self._outbox.held - self._outbox.in_flight < BATCH_EVENTS
        if gather:
            time.sleep(GATHER_S)
        with self._changed:
            listener.recv(1)
            self._rung = False

    def _take_reply(self, sender: "_Sender", topic: bytes, sequence: int) -> None:
        with self._changed:
            if topic == wire.ACK_TOPIC:
                freed = self._outbox.acknowledge(sequence, time.time_ns())
                self._acknowledged += freed
                if freed:
                    sender.heard()
                    self._changed.notify_all()
            elif topic == wire.REJECTED_TOPIC:
                self._rejected += self._outbox.reject(sequence, time.time_ns())
                self._changed.notify_all()
            elif topic == wire.RESEND_TOPIC:
                self._resent += self._outbox.rewind(sequence)
                if sequence < self._outbox.oldest_seq:
                    sender.send(self._outbox.oldest_seq, encode(Batch(self.source, self._run_id, [])))

    def _send_waiting(self, sender: "_Sender") -> None:
        while True:
            with self._changed:
                batch = self._outbox.next_batch() if self._outbox.in_flight < WINDOW_EVENTS else None
            if batch is None or batch.payload is None or not sender.send(batch.first_seq, batch.payload):
                return
            with self._changed:
                self._outbox.mark_sent()

    def _begin_again(self) -> None:
        """The connection was lost and is back: what was under way with it may be lost."""
        with self._changed:
            self._resent += self._outbox.rewind()

    def _check_silence(self, sender: "_Sender") -> None:
        with self._changed:
            self._refused = sender.refused
            if not sender.silent(self._outbox.in_flight > 0):
                return
            self._resent += self._outbox.rewind()
            self._reconnects += 1
        if sender.refused and not self._warned:
            self._warned = True
            _log.warning("%s: the hub at %s takes no events; %s", self.source, self.endpoint, refusal(self._keys))
        sender.reconnect()


class _Sender:
    """The DEALER socket and what is known about the hub's silence. Lives in the publisher's thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, bell: socket.socket, keys: Keys | None
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._keys = keys
        self._bell = bell
        self._patience_s = RESEND_S
        self._silent_since: float | None = None
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    @property
    def refused(self) -> bool:
        """Whether a hub is there that does not let us in."""
        return self._handshakes.refused

    def connected_again(self) -> bool:
        """Whether the connection was lost and has come back since the last call."""
        if not self._handshakes.read() or self._handshakes.made < 2:
            return False
        self._silent_since = None
        return True

    def wait(self) -> bool:
        """Wait until there is something to do; True if the bell rang."""
        # An idle publisher wakes once a second, one that waits for the hub ten times.
        pause_ms = 100 if self._silent_since is not None or self._blocked else 1000
        return self._bell.fileno() in dict(self._poller.poll(pause_ms))

    def replies(self) -> list[tuple[bytes, int]]:
        """What the hub has answered since the last call: topic and sequence."""
        found: list[tuple[bytes, int]] = []
        try:
            while True:
                frame = wire.unpack(self._socket.recv_multipart(zmq.NOBLOCK))
                found.append((frame.topic, frame.sequence))
        except (zmq.Again, EventError):  # nothing more, or another program behind the endpoint
            return found

    def send(self, first_seq: int, payload: bytes) -> bool:
        """Send a batch; False if the hub takes no more for now."""
        try:
            self._socket.send_multipart(wire.pack(wire.EVENTS_TOPIC, first_seq, payload), zmq.NOBLOCK)
        except zmq.Again:
            self._block(blocked=True)
            return False
        self._block(blocked=False)
        return True

    def heard(self) -> None:
        """The hub has journalled something."""
        self._patience_s = RESEND_S
        self._silent_since = None

    def silent(self, waiting: bool) -> bool:
        """Whether the hub has been silent for too long while something ``waiting`` is in flight, or lets us not in.

        ZeroMQ gives up a peer that has refused it; only a new socket finds out that it does so no more.
        """
        if not (waiting or self.refused):
            self._silent_since = None
            return False
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since > self._patience_s

    def reconnect(self) -> None:
        """Connect anew, which also forgets what the old connection still had in its queue."""
        self._disconnect()
        self._connect()
        self._silent_since = None
        self._patience_s = min(2 * self._patience_s, RESEND_MAX_S)

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, SEND_HWM, self._keys)
        # Queue nothing for a hub that is not there: what is in no queue needs no resend.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._handshakes = Handshakes(self._socket)
        self._socket.connect(self._endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._handshakes.events, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)
        self._block(blocked=False)

    def _disconnect(self) -> None:
        self._handshakes.close()
        self._socket.close()

    def _block(self, *, blocked: bool) -> None:
        self._blocked = blocked
        self._poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if blocked else zmq.POLLIN)


def _check(endpoint: str, source: str, keys: Keys | None) -> None:
    if not endpoint.startswith(("tcp://", "ipc://")):
        raise ConfigError(f"{endpoint!r} is not a hub's ingest endpoint: give tcp://HOST:PORT or ipc://PATH")
    if not 0 < len(source) <= MAX_SOURCE:
        raise ConfigError(f"source {source[:20]!r}…: give it a name of 1 to {MAX_SOURCE} characters")
    if keys is not None and keys.role == "viewer":
        raise ConfigError("a viewer's key may not publish: give publisher.key")


_publishers: "weakref.WeakSet[Publisher]" = weakref.WeakSet()


def _after_fork() -> None:
    for publisher in _publishers:
        publisher._begin()  # noqa: SLF001 - the thread and the socket stayed in the parent


os.register_at_fork(after_in_child=_after_fork)
