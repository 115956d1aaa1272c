"""Outbox and orderer together over a channel that loses, repeats and breaks: everything arrives once and in order."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa import events
from prorsa.bus.layout import Row
from prorsa.bus.order import Orderer
from prorsa.bus.outbox import Outbox
from prorsa.events import Batch
from tests.bus.conftest import token


class Line:
    """A publisher's outbox, an orderer, and what is under way between them."""

    def __init__(self, capacity: int) -> None:
        self.outbox = Outbox("me", None, capacity)
        self.orderer = Orderer("hub", "run-1", 0, 0, {})
        self.rows: list[Row] = []
        self.kept: list[int] = []
        self.under_way: list[tuple[int, bytes]] = []
        self.spoiled: set[int] = set()
        self.never_told: list[int] = []
        self.count = 0
        self._journeys: set[int] = set()

    def publish(self, size: int) -> None:
        numbers = list(range(self.count, self.count + size))
        self.count += size
        items = [(1, msgspec.Raw(events.encode(token(number)))) for number in numbers]
        taken = self.outbox.add(items[0]) if size == 1 else self.outbox.add_all(items)
        self.kept += numbers if taken else []

    def send(self) -> None:
        if (batch := self.outbox.next_batch()) is not None:
            assert batch.payload is not None
            self.under_way.append((batch.first_seq, batch.payload))
            self._journeys.add(batch.first_seq)
            self.outbox.mark_sent()

    def spoil(self) -> None:
        """Send a batch that the hub will never understand; it has not been sent before."""
        batch = self.outbox.next_batch()
        if batch is None or batch.first_seq in self._journeys:
            return
        assert batch.payload is not None
        self.spoiled.add(batch.first_seq)
        for seq, (_, raw) in enumerate(msgspec.msgpack.decode(batch.payload, type=Batch).items, batch.first_seq):
            event = events.decode(raw)
            self.never_told.append(seq)
            if isinstance(event, events.BusOverflow):
                self.never_told += range(event.first_seq, event.first_seq + event.lost)
            elif isinstance(event, events.LlmFirstToken):
                self.kept.remove(int(event.rid))
        self.send()

    def lose(self) -> None:
        del self.under_way[:1]

    def repeat(self) -> None:
        self.under_way += self.under_way[:1]

    def give_up_waiting(self) -> None:
        self.under_way.clear()
        self.outbox.rewind()

    def deliver(self, t_ns: int, *, answer: bool = True) -> None:
        if not self.under_way:
            return
        first_seq, payload = self.under_way.pop(0)
        batch = msgspec.msgpack.decode(payload, type=Batch)
        if batch.items and first_seq in self.spoiled:
            if answer:
                self.outbox.reject(first_seq, 1)
            return
        taken = self.orderer.take(batch.source, batch.run_id, first_seq, batch.items, t_ns)
        self.rows += taken.rows
        if answer and taken.ack_seq is not None:
            self.outbox.acknowledge(taken.ack_seq, 1)
        if answer and taken.resend_seq is not None:
            self.outbox.rewind(taken.resend_seq)
            if taken.resend_seq < self.outbox.oldest_seq:
                empty = events.encode(Batch("me", None, []))
                self.under_way.append((self.outbox.oldest_seq, empty))

    def restart_hub(self) -> None:
        """The next hub knows what the journal holds."""
        seqs = {"me": self.rows[-1].seq} if self.rows else {}
        last = self.rows[-1] if self.rows else None
        self.orderer = Orderer("hub", "run-1", last.hub_seq if last else 0, last.t_ns if last else 0, seqs)

    def settle(self) -> None:
        for _ in range(10_000):
            if self.outbox.settled:
                return
            if self.outbox.in_flight and not self.under_way:
                self.give_up_waiting()
            self.send()
            self.deliver(10**9)
        raise AssertionError("it does not come to rest")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6)),
        st.tuples(st.just("deliver"), st.integers(0, 10**6)),
        st.tuples(st.just("deliver_unanswered"), st.integers(0, 10**6)),
        st.tuples(st.sampled_from(["send", "spoil", "lose", "repeat", "give_up_waiting", "restart_hub"]), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=300)
@given(steps, st.integers(1, 12))
def test_what_is_kept_is_ordered_once_and_what_is_lost_is_announced(plan: list[tuple[str, int]], capacity: int) -> None:
    line = Line(capacity)
    for name, value in plan:
        if name == "publish":
            line.publish(value)
        elif name.startswith("deliver"):
            line.deliver(value, answer=name == "deliver")
        else:
            getattr(line, name)()
    line.settle()
    decoded = [events.decode(row.event) for row in line.rows]
    assert [int(e.rid) for e in decoded if isinstance(e, events.LlmFirstToken)] == line.kept
    assert [row.hub_seq for row in line.rows] == list(range(1, len(line.rows) + 1))
    assert [row.t_ns for row in line.rows] == sorted(row.t_ns for row in line.rows)
    seen = {row.seq for row in line.rows}
    announced = [
        seq for e in decoded if isinstance(e, events.BusOverflow) for seq in range(e.first_seq, e.first_seq + e.lost)
    ]
    assert sorted([*seen, *announced, *line.never_told]) == list(range(1, line.outbox.last_seq + 1))
    assert line.spoiled or line.outbox.lost == len(announced) == line.count - len(line.kept)
    assert line.outbox.held == line.outbox.in_flight == 0


def _items(*what: events.Event | bytes) -> list[tuple[int, msgspec.Raw]]:
    return [(7, msgspec.Raw(e if isinstance(e, bytes) else events.encode(e))) for e in what]


def test_a_hole_is_counted_asked_for_and_counted_as_repaired() -> None:
    orderer = Orderer("hub", "run-1", 0, 0, {})
    orderer.take("me", None, 1, _items(token(1)), 5)
    late = orderer.take("me", None, 3, _items(token(3)), 6)
    assert (late.rows, late.ack_seq, late.resend_seq) == ([], None, 2)
    orderer.take("me", None, 3, _items(token(3)), 6)
    assert (orderer.counters.gaps, orderer.counters.repaired) == (1, 0)
    filled = orderer.take("me", None, 2, _items(token(2), token(3)), 7)
    assert [row.seq for row in filled.rows] == [2, 3]
    assert filled.ack_seq == 3
    assert (orderer.counters.gaps, orderer.counters.repaired) == (1, 1)


def test_a_hole_that_cannot_be_filled_stays_a_gap() -> None:
    orderer = Orderer("hub", "run-1", 10, 0, {"me": 4})
    assert orderer.take("me", None, 8, _items(token(8)), 1).resend_seq == 5
    assert orderer.take("me", None, 8, [], 1).ack_seq == 7
    assert [row.seq for row in orderer.take("me", None, 8, _items(token(8)), 1).rows] == [8]
    assert (orderer.counters.gaps, orderer.counters.repaired) == (1, 0)


def test_a_source_that_joins_late_is_no_gap() -> None:
    orderer = Orderer("hub", "run-1", 0, 0, {})
    assert orderer.take("me", None, 8, _items(token(8)), 1).resend_seq == 1
    orderer.take("me", None, 8, [], 1)
    assert [row.seq for row in orderer.take("me", None, 8, _items(token(8)), 1).rows] == [8]
    assert orderer.counters.gaps == 0


def test_bad_events_are_rejected_alone() -> None:
    orderer = Orderer("hub", "run-1", 0, 0, {})
    bad = events.encode({"type": "llm.first_token"})
    taken = orderer.take("me", None, 1, _items(token(1), bad, b"\xc1", token(4)), 1)
    assert [row.seq for row in taken.rows] == [1, 4]
    assert [row.hub_seq for row in taken.rows] == [1, 2]
    assert [rejected.kind for rejected in taken.rejected] == ["llm.first_token", "unknown"]
    assert taken.ack_seq == 4
    assert orderer.counters.rejected == 2


def test_events_of_another_run_are_rejected() -> None:
    orderer = Orderer("hub", "run-1", 0, 0, {})
    taken = orderer.take("me", "run-2", 1, _items(token(1)), 1)
    assert taken.rows == []
    assert "run-2" in taken.rejected[0].text
    assert orderer.take("me", "run-1", 2, _items(token(2)), 1).rows


def test_an_open_batch_is_closed_when_it_is_sent() -> None:
    outbox = Outbox("me", "run-1", 100)
    outbox.add((1, msgspec.Raw(events.encode(token(1)))))
    first = outbox.next_batch()
    outbox.add((1, msgspec.Raw(events.encode(token(2)))))
    assert first is outbox.next_batch()
    assert first is not None
    assert first.payload is not None
    assert len(msgspec.msgpack.decode(first.payload, type=Batch).items) == 1
