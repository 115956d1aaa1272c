"""Where the console's events come from: a run that goes on, or a recording of one."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from prorsa.bus.commands import CommandClient
from prorsa.bus.keys import Keys
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints, HubStatus
from prorsa.clock import nanoseconds
from prorsa.console.model import TOPICS
from prorsa.console.status import FeedStatus
from prorsa.errors import UnavailableError
from prorsa.events import Stamped, View

HISTORY_S: Final = 1800.0
"""How much of the run's past, in run time, a console that attaches asks for."""
HISTORY_WORKERS: Final = 64
"""Pool size up to which it asks for all of that: past it for less, since every view has a row for every worker."""
ATTEMPT_S: Final = 2.0
"""Wall seconds that the hub has for an answer before it is asked again."""
BURST_EVENTS: Final = 500
"""Events folded before the screen gets its turn."""


class Sink(Protocol):
    """What takes the events: the model."""

    def apply(self, stamped: Stamped) -> None:
        """Take one event."""

    def reset(self) -> None:
        """Forget all events so far: a replay has jumped."""


class Player(Protocol):
    """The controls of a recording."""

    def toggle(self) -> None:
        """Play if it is paused, else pause."""

    def pause(self) -> None:
        """Let time stand still."""

    def seek(self, t_ns: int) -> None:
        """Jump to a run time, within the recording."""

    def step(self) -> None:
        """Go on to the next view, and pause there."""

    def scale(self, factor: float) -> None:
        """Multiply the speed."""

    def set_speed(self, speed: float) -> None:
        """Set the speed, in run seconds a wall second."""

    def next_moment(self, kind: str) -> int | None:
        """Run time of the next ``decision`` that moves workers, ``flip`` or ``alert``; None if there is none."""


class Feed(Protocol):
    """A source of events."""

    @property
    def player(self) -> Player | None:
        """Its controls, if it is a recording."""

    def status(self) -> FeedStatus:
        """How it stands at this moment."""

    async def run(self, sink: Sink) -> None:
        """Hand events to ``sink`` until cancelled.

        Raises:
            ProrsaError: if there is nothing to read.
        """


class LiveFeed:
    """The events of a run that goes on, from its hub; survives restarts of the hub.

    Args:
        endpoints: of the hub.
        where: how a person would name them.
        keys: for a hub that asks for keys.
        history_s: how much of the run's past to ask for.
        monotonic_s: the clock that ages are read from; replaced in tests.
    """

    player = None

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        where: str | None = None,
        keys: Keys | None = None,
        history_s: float = HISTORY_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints = endpoints
        self.where = where or endpoints.control
        self._keys = keys
        self._history_s = history_s
        self._monotonic_s = monotonic_s
        self._subscriber: Subscriber | None = None
        self._view_at_s: float | None = None
        self._attempts = 0

    def status(self) -> FeedStatus:
        """How the link to the hub stands."""
        subscriber = self._subscriber
        if subscriber is None:
            return FeedStatus("live", "connecting", self.where, retries=self._attempts)
        link, known = subscriber.link, subscriber.status is not None
        return FeedStatus(
            kind="live",
            state=link.state,
            where=self.where,
            now_ns=subscriber.clock.now_ns() if known else None,
            speed=subscriber.clock.speed if known else None,
            age_s=link.age_s,
            view_age_s=None if self._view_at_s is None else self._monotonic_s() - self._view_at_s,
            retries=link.retries,
            gaps=link.gaps,
            repaired=link.repaired,
        )

    async def run(self, sink: Sink) -> None:
        """Wait for the hub, fold what it remembers and the recent past, then follow.

        Raises:
            RefusedError: if another run is served at the endpoints later.
        """
        hub, snapshot = await self._meet()
        after_seq = self._recent(hub, affordable_s(self._history_s, snapshot))
        self._fold(sink, [stamped for stamped in snapshot if stamped.hub_seq <= after_seq])
        self._subscriber = Subscriber(self.endpoints, TOPICS, after_seq, connect_timeout_s=None, keys=self._keys)
        async with self._subscriber as subscriber:
            async for stamped in subscriber:
                self._fold(sink, [stamped, *subscriber.take(BURST_EVENTS)])
                await asyncio.sleep(0)

    async def _meet(self) -> tuple[HubStatus, list[Stamped]]:
        """Ask the hub for its state and its last values, as often as it takes."""
        while True:
            try:
                async with CommandClient(self.endpoints, self._keys) as client:
                    return await client.status(ATTEMPT_S), await client.snapshot(TOPICS, ATTEMPT_S)
            except UnavailableError:
                self._attempts += 1

    @staticmethod
    def _recent(hub: HubStatus, history_s: float) -> int:
        """About where the wanted history begins, taking the run's events as evenly spread in time."""
        known = 1.0 - nanoseconds(history_s) / hub.t_ns if hub.t_ns > 0 else 0.0
        return round(max(known, 0.0) * hub.head_seq)

    def _fold(self, sink: Sink, burst: list[Stamped]) -> None:
        for stamped in burst:
            sink.apply(stamped)
            if isinstance(stamped.event, View):
                self._view_at_s = self._monotonic_s()


def affordable_s(history_s: float, snapshot: Sequence[Stamped]) -> float:
    """How much of the past to ask for: the same work for a pool of any size, by the last view of it."""
    workers = max((len(item.event.workers) for item in snapshot if isinstance(item.event, View)), default=0)
    return history_s * min(1.0, HISTORY_WORKERS / workers) if workers else history_s
