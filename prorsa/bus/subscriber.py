"""Receives the events of a run in the order of ``hub_seq``, without holes, whatever happens on the way.

PUB sockets drop what a slow or absent subscriber does not take. The hub therefore says after each burst, and in each
heartbeat, how many events of each type there have been (a mark). Events are handed on once a mark has confirmed that
none is missing; otherwise what is missing comes from the journal, by replay, and the order is kept.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Self

import zmq
import zmq.asyncio

from prorsa.bus import wire
from prorsa.bus.control import ControlClient
from prorsa.bus.keys import Keys
from prorsa.bus.pulse import Link, Pulse
from prorsa.bus.sockets import configure
from prorsa.bus.wire import Endpoints, HubStatus
from prorsa.clock import RunClock
from prorsa.errors import RefusedError, UnavailableError
from prorsa.events import Stamped, decode_stamped

QUEUE_EVENTS: Final = 20_000
"""Events that wait for the consumer at most. When there are more, the subscriber stops reading, the hub drops what is
meant for it, and it replays that from the journal once the consumer has caught up."""
SUBSCRIBER_HWM: Final = 20_000
"""Messages in the socket's own queue."""
DRAIN_MESSAGES: Final = 500
"""Messages taken before other tasks get their turn."""


class Subscriber:
    """An asynchronous iterator over the events of a run.

    Use as ``async with Subscriber(endpoints) as subscriber: async for stamped in subscriber: ...``. Entering waits for
    the hub; after that the subscriber survives restarts of the hub by itself.

    Args:
        endpoints: of the hub.
        topics: event types, or beginnings of them such as ``llm.``; the empty string is all of them.
        after_seq: begin with the journal after this ``hub_seq`` (0: the whole run). None begins with the snapshot, the
            last event of each key (:data:`prorsa.bus.state.SNAPSHOT_TYPES`), and goes on with what is new.
        queue_events: events that wait for the consumer at most.
        connect_timeout_s: how long entering waits for the hub; None waits for ever.
        keys: for a hub that asks for keys, of an operator or a viewer.

    Raises:
        ConfigError: if the hub asks for keys and there are none, or they are another hub's.
        InputError: if no event type begins with one of the topics.
        UnavailableError: on entering, if no hub answers in time.
        RefusedError: while iterating, if another run, or one that has lost its past, is served at the endpoints.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        topics: Sequence[str] = ("",),
        after_seq: int | None = None,
        *,
        queue_events: int = QUEUE_EVENTS,
        connect_timeout_s: float | None = 10.0,
        keys: Keys | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.snapshot: list[Stamped] = []
        """With ``after_seq=None``: the events that iteration begins with."""
        self.run_id: str | None = None
        """The run; known after entering."""
        self._types = wire.resolve_topics(topics)
        self._topics = topics
        self._from_snapshot = after_seq is None
        self._confirmed_seq = after_seq or 0
        self._confirmed_total = 0
        self._queue_events = queue_events
        self._connect_timeout_s = connect_timeout_s
        self._keys = endpoints.fitting(keys)
        self._pulse = Pulse(endpoints.fanout, self._keys)
        self._control = ControlClient(endpoints.control, self._keys)
        self._boot: str | None = None
        self._gaps = self._repaired = 0
        self._unconfirmed: list[Stamped] = []
        self._ready: deque[Stamped] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._attached = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- for the consumer -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        configure(self._socket, SUBSCRIBER_HWM, self._keys)
        for topic in (*self._topics, wire.MARK_TOPIC.decode(), wire.HUB_TOPIC.decode()):
            self._socket.subscribe(topic)
        self._socket.connect(self.endpoints.fanout)
        await self._control.__aenter__()
        self._tasks = [asyncio.create_task(self._pulse.listen(self._context)), asyncio.create_task(self._feed())]
        for task in self._tasks:
            task.add_done_callback(self._wake_waiting)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._attached.wait()
            self._raise_failure()
        except TimeoutError as error:
            silence = self._control.silence()
            await self.__aexit__()
            raise UnavailableError(
                f"no hub answers at {self.endpoints.control} within {self._connect_timeout_s:g} s; {silence}"
            ) from error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._control.__aexit__()
        self._socket.close()
        self._context.term()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Stamped:
        while not self._ready:
            self._raise_failure()
            self._news.clear()
            await self._news.wait()
        stamped = self._ready.popleft()
        self._offer_room()
        return stamped

    def pending(self) -> int:
        """How many events the iterator would give at once, without waiting."""
        return len(self._ready)

    def take(self, limit: int | None = None) -> list[Stamped]:
        """At most ``limit`` of the events that are there now, perhaps none; never waits."""
        count = len(self._ready) if limit is None else min(limit, len(self._ready))
        taken = [self._ready.popleft() for _ in range(count)]
        self._offer_room()
        return taken

    @property
    def link(self) -> Link:
        """How this subscriber stands with the hub."""
        pulse = self._pulse
        head_seq = pulse.status.head_seq if pulse.status else None
        return Link(pulse.state, pulse.age_s, pulse.retries, self._gaps, self._repaired, head_seq)

    @property
    def status(self) -> HubStatus | None:
        """The hub's last heartbeat; None before the first."""
        return self._pulse.status

    @property
    def clock(self) -> RunClock:
        """The run clock, by the hub's heartbeats; goes on by itself while the hub is away."""
        return self._pulse.clock

    # --- the feeding task -------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        # Once a heartbeat arrives the subscription is in force, so nothing is missed after the snapshot.
        await self._socket.poll()
        await self._pulse.heard.wait()
        if self._from_snapshot:
            await self._begin_with_snapshot()
            self._attached.set()
        else:
            await self._check_past()
            self._attached.set()
            await self._catch_up()
        reader: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        while True:
            await self._socket.poll()
            boot = self._boot
            complete = self._drain(reader)
            if boot not in (None, self._boot):
                await self._check_past()
            if not complete:
                self._gaps += 1
                await self._catch_up()
                self._repaired += 1
            await self._wait_for_room()
            await asyncio.sleep(0)

    def _drain(self, reader: "zmq.Socket[bytes]") -> bool:
        """Take the messages that are there; False if some are missing."""
        for _ in range(DRAIN_MESSAGES):
            try:
                topic, _, payload = reader.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if not self._take(topic, payload):
                return False
        return True

    def _take(self, topic: bytes, payload: bytes) -> bool:
        if topic == wire.MARK_TOPIC:
            mark = wire.decode(wire.Mark, payload)
            return self._confirm(mark.head_seq, mark.heads)
        if topic == wire.HUB_TOPIC:
            status = wire.decode(HubStatus, payload)
            self._check_run(status.run_id)
            self._boot = status.boot
            return self._confirm(status.head_seq, status.heads)
        stamped = decode_stamped(payload)
        if stamped.hub_seq > self._confirmed_seq:
            self._unconfirmed.append(stamped)
        return len(self._unconfirmed) <= self._queue_events

    def _confirm(self, head_seq: int, heads: Mapping[str, int]) -> bool:
        """Hand on what a mark confirms; False if something is missing."""
        if head_seq <= self._confirmed_seq:
            return True
        total = self._total(heads)
        if len(self._unconfirmed) != total - self._confirmed_total:
            return False
        self._hand_on(self._unconfirmed)
        self._unconfirmed = []
        self._confirmed_seq, self._confirmed_total = head_seq, total
        return True

    async def _begin_with_snapshot(self) -> None:
        request = wire.SnapshotRequest(self._types)
        snapshot = wire.decode(wire.Snapshot, await self._control.ask(wire.SNAPSHOT, wire.encode(request)))
        self._check_run(snapshot.run_id)
        self.snapshot = [decode_stamped(bytes(raw)) for raw in snapshot.events]
        self._hand_on(self.snapshot)
        self._confirmed_seq, self._confirmed_total = snapshot.head_seq, self._total(snapshot.heads)

    async def _catch_up(self) -> None:
        """Replay from the journal what follows the last confirmed event, up to the hub's head."""
        while True:
            await self._wait_for_room()
            request = wire.ReplayRequest(self._confirmed_seq, self._types)
            page = wire.decode(wire.ReplayPage, await self._control.ask(wire.REPLAY, wire.encode(request)))
            self._check_run(page.run_id)
            self._hand_on([decode_stamped(bytes(raw)) for raw in page.events])
            self._confirmed_seq = max(self._confirmed_seq, page.upto_seq)
            if page.upto_seq >= page.head_seq:
                break
        self._confirmed_total = self._total(page.heads)
        self._unconfirmed = [stamped for stamped in self._unconfirmed if stamped.hub_seq > self._confirmed_seq]

    async def _check_past(self) -> None:
        """Make sure that the hub that answers now has all that we have seen."""
        status = wire.decode(HubStatus, await self._control.ask(wire.STATUS, b""))
        self._check_run(status.run_id)
        if status.head_seq < self._confirmed_seq:
            raise RefusedError(
                f"the journal of run {status.run_id} ends at {status.head_seq}, before hub_seq {self._confirmed_seq} "
                "that this subscriber has seen: it was replaced; attach again from the beginning"
            )

    def _check_run(self, run_id: str) -> None:
        if self.run_id is None:
            self.run_id = run_id
        if run_id != self.run_id:
            raise RefusedError(f"run {run_id} has taken the place of run {self.run_id}; attach again")

    def _total(self, heads: Mapping[str, int]) -> int:
        return sum(heads.values()) if self._types is None else sum(heads.get(name, 0) for name in self._types)

    def _hand_on(self, events: list[Stamped]) -> None:
        self._ready.extend(events)
        self._news.set()

    async def _wait_for_room(self) -> None:
        while len(self._ready) >= self._queue_events:
            self._room.clear()
            await self._room.wait()

    def _offer_room(self) -> None:
        if len(self._ready) <= self._queue_events // 2:
            self._room.set()

    def _wake_waiting(self, _: "asyncio.Task[None]") -> None:
        self._news.set()
        self._attached.set()

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
