"""Plays a journal as if it were live: to one consumer in the process, or to any subscriber over the bus's sockets."""

import asyncio
import itertools
import math
import uuid
from collections.abc import Iterator
from typing import Final, Self

import zmq
import zmq.asyncio

from prorsa.bus import wire
from prorsa.bus.desk import ReadDesk, failure
from prorsa.bus.fanout import Fanout
from prorsa.bus.journal import JournalReader, row_of
from prorsa.bus.sockets import bind, configure
from prorsa.bus.state import LastValues
from prorsa.bus.wire import Endpoints, HubStatus
from prorsa.clock import NS_PER_S, RunClock
from prorsa.errors import EventError, InputError, RefusedError
from prorsa.events import Stamped

BURST_EVENTS: Final = 256
"""Events given at once before other tasks get their turn."""
BEAT_S: Final = 0.1
"""Wall seconds between heartbeats of a served journal."""
CONTROL_HWM: Final = 1000
"""Requests and answers queued for each client."""


class JournalPlayer:
    """An asynchronous iterator over a journal's events, each given when its time has come.

    Args:
        reader: the journal.
        speed: run seconds per wall second; ``math.inf`` gives everything at once.
        after_seq: begin after this event, at the time of the next.
        hold: at the end wait for a :meth:`seek` instead of ending the iteration.
    """

    def __init__(self, reader: JournalReader, *, speed: float = 1.0, after_seq: int = 0, hold: bool = False) -> None:
        self.reader = reader
        self.position_seq = after_seq
        """``hub_seq`` of the last event given."""
        self._hold = hold
        self._speed = _checked(speed)
        self._paused = False
        self._steps = 0
        self._given = 0
        self._changed = asyncio.Event()
        first, last = next(reader.rows(after_seq), None), reader.last()
        self.end_ns = last.t_ns if last else 0
        """Run time of the last event."""
        self._clock = RunClock(self.clock_speed, first.t_ns if first else self.end_ns)
        self._events = reader.read(after_seq)
        self._next = next(self._events, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Stamped:
        if self._given % BURST_EVENTS == BURST_EVENTS - 1:
            await asyncio.sleep(0)
        await self._wait()
        if self._next is None:
            raise StopAsyncIteration
        return self._give(self._next)

    async def burst(self) -> list[Stamped]:
        """The next event, and with it all that are due, :data:`BURST_EVENTS` at most; empty at the end."""
        await asyncio.sleep(0)
        await self._wait()
        events: list[Stamped] = []
        while self._next is not None and len(events) < BURST_EVENTS and self._is_due(self._next.t_ns):
            events.append(self._give(self._next))
        return events

    async def _wait(self) -> None:
        """Wait until the next event is due, or there is none any more."""
        while True:
            if self._next is None:
                if not self._hold:
                    return
            elif self._is_due(self._next.t_ns):
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    @property
    def position_ns(self) -> int:
        """Run time now, at most that of the last event."""
        if math.isinf(self._speed) and not self._paused:
            return self._next.t_ns if self._next else self.end_ns
        return min(self._clock.now_ns(), self.end_ns)

    @property
    def clock_speed(self) -> float:
        """What a clock beside the player runs at: 0 while it is paused, or has no time because all comes at once."""
        return 0.0 if self._paused or math.isinf(self._speed) else self._speed

    @property
    def ended(self) -> bool:
        """Whether every event has been given."""
        return self._next is None

    @property
    def paused(self) -> bool:
        """Whether time stands still."""
        return self._paused

    @property
    def speed(self) -> float:
        """Run seconds per wall second, while not paused."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._speed = _checked(speed)
        self._set_time(self.position_ns)

    def pause(self) -> None:
        """Let time stand still."""
        at_ns = self.position_ns
        self._paused = True
        self._set_time(at_ns)

    def resume(self) -> None:
        """Let time go on."""
        at_ns = self.position_ns
        self._paused, self._steps = False, 0
        self._set_time(at_ns)

    def step(self, count: int = 1) -> None:
        """Pause, and give the next ``count`` events at once."""
        self.pause()
        self._steps += count
        self._changed.set()

    def seek(self, t_ns: int) -> None:
        """Go on from run time ``t_ns``, forwards or backwards: the next event is the first that is not before it.

        Whoever keeps a state of the run rebuilds it from :meth:`past`.
        """
        self.position_seq = self.reader.seq_before(t_ns)
        self._events = self.reader.read(self.position_seq)
        self._next = next(self._events, None)
        self._set_time(max(0, min(t_ns, self.end_ns)))

    def past(self) -> Iterator[Stamped]:
        """All events before the position, in order."""
        return self.reader.read(upto_seq=self.position_seq)

    def _give(self, stamped: Stamped) -> Stamped:
        self._steps = max(0, self._steps - 1)
        if self._paused:
            self._set_time(stamped.t_ns)
        self.position_seq = stamped.hub_seq
        self._next = next(self._events, None)
        self._given += 1
        return stamped

    def _is_due(self, t_ns: int) -> bool:
        if self._paused:
            return self._steps > 0
        return math.isinf(self._speed) or self._clock.now_ns() >= t_ns

    def _pause_s(self) -> float | None:
        """Wall seconds until the next event; None if only a change can bring it."""
        if self._paused or self._next is None:
            return None
        return max(0.0, (self._next.t_ns - self._clock.now_ns()) / (self._speed * NS_PER_S))

    def _set_time(self, t_ns: int) -> None:
        self._clock.steer(t_ns, self.clock_speed)
        self._changed.set()


async def serve_journal(player: JournalPlayer, endpoints: Endpoints) -> None:
    """Offer a journal over the sockets of a hub, so that any subscriber can attach; runs until cancelled.

    Subscribers get events as they are played; replay and snapshot know what has been played so far. What is before the
    player's position at the call counts as played. Seek only forwards: to a subscriber time never goes back.
    Commands and leases are refused.

    Raises:
        ConfigError: if an endpoint cannot be bound, or could be reached from the network.
    """
    context = zmq.asyncio.Context()
    server = _JournalServer(player, context, endpoints)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.play())
            tasks.create_task(server.beat())
            tasks.create_task(server.answer())
    finally:
        server.close()
        context.term()


class _JournalServer:
    def __init__(self, player: JournalPlayer, context: zmq.asyncio.Context, endpoints: Endpoints) -> None:
        self._player = player
        self._boot = uuid.uuid4().hex[:8]
        self._values = LastValues()
        self._desk = ReadDesk(player.reader, self._values, self._status)
        self._fanout = Fanout(zmq.Context.shadow(context.underlying), endpoints.fanout, {})
        self._head_seq = 0
        past = player.past()
        while events := list(itertools.islice(past, BURST_EVENTS)):
            self._send(events)
        self._control = context.socket(zmq.ROUTER)
        configure(self._control, CONTROL_HWM)
        bind(self._control, endpoints.control)

    def close(self) -> None:
        self._control.close()
        self._fanout.close()

    async def play(self) -> None:
        while events := await self._player.burst():
            self._send(events)

    async def beat(self) -> None:
        while True:
            self._fanout.beat(self._status())
            await asyncio.sleep(BEAT_S)

    async def answer(self) -> None:
        while True:
            client, *parts = await self._control.recv_multipart()
            try:
                frame = wire.unpack(parts)
            except EventError:  # from no client of ours: nobody waits for an answer
                continue
            if self._desk.serves(frame.topic):
                answer = self._desk.answer(frame)
            else:
                answer = failure(frame, RefusedError("this is a replay of a journal: it takes no commands"))
            await self._control.send_multipart([client, *answer])

    def _send(self, events: list[Stamped]) -> None:
        rows = [row_of(stamped) for stamped in events]
        self._head_seq = rows[-1].hub_seq
        for row, stamped, payload in zip(rows, events, self._fanout.send(rows), strict=True):
            self._values.apply(row, stamped.event, payload)

    def _status(self) -> HubStatus:
        player = self._player
        counters = wire.Counters(journalled=sum(self._fanout.heads.values()))
        return HubStatus(
            player.reader.run_id,
            self._boot,
            player.position_ns,
            player.clock_speed,
            self._head_seq,
            self._fanout.heads,
            counters,
        )


def _checked(speed: float) -> float:
    if not speed > 0:
        raise InputError(f"speed {speed:g}: a journal is played at a speed above 0; use pause to stop")
    return speed
