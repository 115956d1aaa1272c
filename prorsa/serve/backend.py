"""The small protocol between the executor and whatever performs its effects."""

from typing import Protocol

import zmq
import zmq.asyncio
from msgspec import Struct

from prorsa.bus import wire
from prorsa.cluster.effects import Effect
from prorsa.events import EffectResult

EFFECT_TOPIC = b"effect"
ADMISSION_TOPIC = b"admission"


class AdmissionLimit(Struct, frozen=True):
    """Trajectories that may be live at a time; None for no limit."""

    limit: int | None


class Backend(Protocol):
    """Performs effects on workers; what comes of them goes to the bus as ``effect.result`` events.

    :class:`EmbeddedBackend` and :class:`prorsa.cluster.live.LiveBackend` do.
    """

    async def perform(self, effect: Effect) -> EffectResult | None:
        """Perform an effect; None where the workers themselves publish what came of it."""
        ...

    async def admit(self, limit: int | None) -> None:
        """Let so many trajectories be live at a time; None for no limit."""
        ...

    async def close(self) -> None:
        """Let go of sockets."""
        ...


class EmbeddedBackend:
    """Hands effects to the process of the embedded cluster, which answers on the bus.

    An effect that is lost because that process just died is asked for again by the executor.
    """

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self._sent = 0

    async def perform(self, effect: Effect) -> None:
        """Send the effect to the cluster, which publishes the result."""
        self._sent += 1
        await self._socket.send_multipart(wire.pack(EFFECT_TOPIC, self._sent, wire.encode(effect)))

    async def admit(self, limit: int | None) -> None:
        """Send the limit to the cluster."""
        self._sent += 1
        await self._socket.send_multipart(wire.pack(ADMISSION_TOPIC, self._sent, wire.encode(AdmissionLimit(limit))))

    async def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def cluster_endpoint(endpoints: wire.Endpoints) -> str:
    """Where the embedded cluster listens: beside the hub's control socket."""
    head, _, _ = endpoints.control.rpartition("/")
    return f"{head}/cluster"
