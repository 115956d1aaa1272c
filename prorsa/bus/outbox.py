"""What a publisher holds until the hub has journalled it. Pure: no I/O, no clock, no locks."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from prorsa import events

BATCH_EVENTS: Final = 512
"""Single events are gathered into wire batches of at most this many."""

Item = tuple[int, msgspec.Raw]


class OutBatch:
    """Consecutive events that travel together. Once encoded it never changes, so that a resend is byte for byte."""

    __slots__ = ("first_seq", "items", "payload", "size")

    def __init__(self, first_seq: int, items: list[Item]) -> None:
        self.first_seq = first_seq
        self.items = items
        self.size = len(items)
        self.payload: bytes | None = None

    @property
    def last_seq(self) -> int:
        """``seq`` of its last event."""
        return self.first_seq + self.size - 1


class Outbox:
    """Unacknowledged events of one source, in order, and which of them to send next.

    Args:
        source: whose events these are, with its boot nonce.
        run_id: the run that they belong to; None lets the hub decide.
        capacity: events held at most. What comes when it is full is dropped and counted; once there is room, a
            ``bus.overflow`` event takes the place of what was lost.
    """

    def __init__(self, source: str, run_id: str | None, capacity: int) -> None:
        self.held = 0
        """Events that are not acknowledged."""
        self.in_flight = 0
        """Of these, events that have been sent."""
        self.last_seq = 0
        """The last ``seq`` given out, to kept and lost events alike."""
        self.lost = 0
        """Events dropped so far."""
        self._source = source
        self._run_id = run_id
        self._capacity = capacity
        self._sent: deque[OutBatch] = deque()
        self._unsent: deque[OutBatch] = deque()
        self._open: OutBatch | None = None
        self._unannounced = 0

    @property
    def settled(self) -> bool:
        """Whether nothing is held and no loss waits to be announced."""
        return self.held == 0 and self._unannounced == 0

    @property
    def oldest_seq(self) -> int:
        """The ``seq`` of the oldest event held, or of the next one to come."""
        for batches in (self._sent, self._unsent):
            if batches:
                return batches[0].first_seq
        return self.last_seq + 1

    def add(self, item: Item) -> bool:
        """Take one event; False if it had to be dropped."""
        if not self._has_room(1, item[0]):
            return False
        batch = self._open
        if batch is None or batch.size >= BATCH_EVENTS:
            batch = self._open = self._put([])
        batch.items.append(item)
        batch.size += 1
        self.last_seq += 1
        self.held += 1
        return True

    def add_all(self, items: Sequence[Item]) -> bool:
        """Take events that travel in one batch; False if all of them had to be dropped."""
        if items and not self._has_room(len(items), items[-1][0]):
            return False
        if items:
            self._open = None
            self._put(list(items))
            self.last_seq += len(items)
            self.held += len(items)
        return True

    def next_batch(self) -> OutBatch | None:
        """The oldest batch that is not sent, with its payload; it stays so until :meth:`mark_sent`."""
        if not self._unsent:
            return None
        batch = self._unsent[0]
        if batch is self._open:
            self._open = None
        if batch.payload is None:
            batch.payload = events.encode(events.Batch(self._source, self._run_id, batch.items))
            batch.items = []
        return batch

    def mark_sent(self) -> None:
        """The batch of :meth:`next_batch` is on its way."""
        batch = self._unsent.popleft()
        self._sent.append(batch)
        self.in_flight += batch.size

    def acknowledge(self, seq: int, ts_ns: int) -> int:
        """Everything up to ``seq`` is journalled; returns how many events that frees. ``ts_ns`` is the time now."""
        before = self.held
        # A batch that went out and was rewound is acknowledged by the first of its two journeys.
        for batches in (self._sent, self._unsent):
            while batches and batches[0].payload is not None and batches[0].last_seq <= seq:
                batch = batches.popleft()
                self.held -= batch.size
                if batches is self._sent:
                    self.in_flight -= batch.size
            if batches:
                break
        freed = before - self.held
        self._announce_if_room(ts_ns)
        return freed

    def reject(self, first_seq: int, ts_ns: int) -> int:
        """Drop the batch that begins with ``first_seq``, since the hub will never take it; returns its events."""
        for batches in (self._sent, self._unsent):
            for batch in batches:
                if batch.first_seq == first_seq and batch.payload is not None:
                    batches.remove(batch)
                    self.held -= batch.size
                    if batches is self._sent:
                        self.in_flight -= batch.size
                    self._announce_if_room(ts_ns)
                    return batch.size
        return 0

    def rewind(self, seq: int = 0) -> int:
        """Send again what was sent from ``seq`` on; returns how many events that is."""
        again = 0
        while self._sent and self._sent[-1].last_seq >= seq:
            batch = self._sent.pop()
            self._unsent.appendleft(batch)
            again += batch.size
        self.in_flight -= again
        return again

    def _has_room(self, count: int, ts_ns: int) -> bool:
        # After a loss nothing more is taken until it is announced: the announcement must follow it directly.
        if not self._unannounced and self.held + count <= self._capacity:
            return True
        self._unannounced += count
        self.last_seq += count
        self.lost += count
        if self.held < self._capacity:  # a batch that did not fit, where one event still does
            self._announce(ts_ns)
        return False

    def _announce_if_room(self, ts_ns: int) -> None:
        if self._unannounced and self.held < self._capacity:
            self._announce(ts_ns)

    def _announce(self, ts_ns: int) -> None:
        lost, self._unannounced = self._unannounced, 0
        event = events.BusOverflow(lost=lost, first_seq=self.last_seq - lost + 1)
        self._open = None
        self._put([(ts_ns, msgspec.Raw(events.encode(event)))])
        self.last_seq += 1
        self.held += 1

    def _put(self, items: list[Item]) -> OutBatch:
        batch = OutBatch(self.last_seq + 1, items)
        self._unsent.append(batch)
        return batch
