"""Listens to the hub's heartbeat: is the hub there, and what time is it in the run?"""

import asyncio
import time
from typing import Any, Final, Literal

import zmq
import zmq.asyncio
from msgspec import Struct

from prorsa.bus import wire
from prorsa.bus.sockets import Security, configure
from prorsa.clock import RunClock, nanoseconds
from prorsa.errors import EventError

STALE_S: Final = 1.5
DISCONNECTED_S: Final = 5.0
"""Wall seconds without a heartbeat after which the link is ``stale``, then ``disconnected``."""
CLOCK_SLACK_S: Final = 0.25
"""Wall seconds by which heartbeats may be late before the run clock is set back to them."""
RETRY_S: Final = 1.0
"""A second of silence counts as one retry; ZeroMQ itself connects again more often."""

LinkState = Literal["connecting", "live", "stale", "disconnected"]


class Link(Struct, frozen=True):
    """How a subscriber stands with the hub.

    Attributes:
        age_s: wall seconds since the last heartbeat; None before the first.
        retries: how often the hub has been tried in vain since the last heartbeat.
        gaps: how often events were missing; ``repaired``: how often they have been replayed since.
        head_seq: the hub's last ``hub_seq``, None before the first heartbeat.
    """

    state: LinkState
    age_s: float | None
    retries: int
    gaps: int
    repaired: int
    head_seq: int | None


class Pulse:
    """The last heartbeat, its age, and a run clock that follows it. Has a socket of its own, that is always read."""

    def __init__(self, endpoint: str, security: Security | None = None) -> None:
        self.clock = RunClock()
        self.status: wire.HubStatus | None = None
        """The last heartbeat."""
        self.heard = asyncio.Event()
        """Set from the first heartbeat on."""
        self.retries = 0
        self._endpoint = endpoint
        self._security = security
        self._heard_s = 0.0

    @property
    def age_s(self) -> float | None:
        """Wall seconds since the last heartbeat."""
        return None if self.status is None else time.monotonic() - self._heard_s

    @property
    def state(self) -> LinkState:
        """What the age of the last heartbeat says."""
        age_s = self.age_s
        if age_s is None:
            return "connecting"
        if age_s < STALE_S:
            return "live"
        return "stale" if age_s < DISCONNECTED_S else "disconnected"

    async def listen(self, context: zmq.asyncio.Context) -> None:
        """Follow the heartbeat until cancelled."""
        socket = context.socket(zmq.SUB)
        configure(socket, 100, self._security)
        socket.subscribe(wire.HUB_TOPIC)
        socket.connect(self._endpoint)
        try:
            while True:
                if await socket.poll(round(RETRY_S * 1e3)):
                    self._take(await socket.recv_multipart())
                else:
                    self.retries += 1
        finally:
            socket.close()

    def _take(self, parts: list[Any]) -> None:
        try:
            status = wire.decode(wire.HubStatus, wire.unpack(parts).payload)
        except EventError:  # not a hub; its silence shows
            return
        self.status = status
        self.retries = 0
        self._heard_s = time.monotonic()
        self.heard.set()
        # A heartbeat is late at times, never early: the clock follows the earliest, unless it has run ahead.
        ahead_ns = self.clock.now_ns() - status.t_ns
        if not 0 <= ahead_ns <= nanoseconds(CLOCK_SLACK_S * status.speed) or status.speed != self.clock.speed:
            self.clock.steer(status.t_ns, status.speed)
