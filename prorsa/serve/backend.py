"""The small protocol between the executor and whatever performs its effects."""

from typing import Protocol

import zmq
import zmq.asyncio

from prorsa.bus import wire
from prorsa.cluster.effects import Effect

EFFECT_TOPIC = b"effect"


class Backend(Protocol):
    """Performs effects on workers; what comes of them goes to the bus as ``effect.result`` events."""

    async def perform(self, effect: Effect) -> None:
        """Start an effect; returns when it has been handed on, not when it is done."""
        ...

    def close(self) -> None:
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
        """Send the effect to the cluster."""
        self._sent += 1
        await self._socket.send_multipart(wire.pack(EFFECT_TOPIC, self._sent, wire.encode(effect)))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def cluster_endpoint(endpoints: wire.Endpoints) -> str:
    """Where the embedded cluster listens: beside the hub's control socket."""
    head, _, _ = endpoints.control.rpartition("/")
    return f"{head}/cluster"
