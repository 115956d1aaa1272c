"""How every socket of the bus is set up, so that ends that die are noticed and nothing hangs at exit."""

import ipaddress
import struct
import uuid
from typing import Any, Final, Protocol

import zmq

from prorsa.errors import ConfigError

RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 200
"""A lost connection is tried again after ``RECONNECT_MS``, then at growing intervals up to this one."""
KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_EVERY_S: Final = 1
KEEPALIVE_PROBES: Final = 5
"""TCP drops a peer that has vanished without a word after ``KEEPALIVE_IDLE_S`` and so many unanswered probes.

Not ZeroMQ's own heartbeats: with them libzmq 4.3 aborts the whole process when a peer that does not read dies
(``stream_engine_base.cpp``, ``Assertion failed: !_io_error``).
"""
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Larger frames are refused, and their connection is closed."""


class Security(Protocol):
    """Keys as one end of a connection uses them: :class:`prorsa.bus.keys.Keys` or :class:`prorsa.bus.keys.Door`."""

    def secure(self, socket: "zmq.Socket[Any]") -> None:
        """Set the keys of a socket."""


def configure(socket: "zmq.Socket[Any]", hwm: int, security: Security | None = None) -> None:
    """Set what all sockets of the bus have in common.

    Args:
        socket: not yet bound or connected.
        hwm: messages that it queues in each direction and for each peer.
        security: its keys; None for a socket that is not encrypted.
    """
    socket.set_hwm(hwm)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    if security is not None:
        security.secure(socket)


def bind(socket: "zmq.Socket[Any]", endpoint: str) -> str:
    """Bind a socket; returns its endpoint with wildcards filled in.

    Raises:
        ConfigError: if it cannot be bound, or is open to the network and not encrypted.
    """
    if not (socket.getsockopt(zmq.CURVE_SERVER) or is_local(endpoint)):
        raise ConfigError(
            f"{endpoint} can be reached from the network, and anyone there could command workers: make keys "
            "(`prorsa keys`) and give them to the hub, or bind to 127.0.0.1"
        )
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot bind {endpoint}: {error}; is another hub there, or its folder gone?") from error
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()


def is_local(endpoint: str) -> bool:
    """Whether an endpoint can only be reached from this machine."""
    transport, _, address = endpoint.partition("://")
    if transport != "tcp":
        return transport in ("ipc", "inproc")
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name or an interface
        return host in ("localhost", "lo")


def refusal(security: Security | None) -> str:
    """What to tell whom a hub does not let in."""
    if security is None:
        return "it asks for keys, and there are none: name a key file (--keys, or PRORSA_KEYS)"
    return (
        "it is there and does not let us in: the keys are another hub's or not on its list, their role may not do "
        "this, or it runs without keys; take them from the directory of its hub.key"
    )


class Handshakes:
    """Watches a connecting socket's handshakes: is there anybody, and does it let us in?

    Attributes:
        made: handshakes that succeeded, one for each time the connection came about.
        refused: whether the last attempt failed although somebody is there: keys are missing, wrong or not wanted.
        events: readable when there is something to :meth:`read`.
    """

    _FAILED: Final = (
        zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )

    def __init__(self, socket: "zmq.Socket[Any]") -> None:
        self.made = 0
        self.refused = False
        self._socket = socket
        address = f"inproc://handshakes-{uuid.uuid4().hex}"
        socket.monitor(address, zmq.EVENT_HANDSHAKE_SUCCEEDED | self._FAILED)
        # Of the plain kind also for a socket of asyncio, since it is read without waiting.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(socket.context.underlying)
        self.events = context.socket(zmq.PAIR)
        self.events.setsockopt(zmq.LINGER, 0)
        self.events.setsockopt(zmq.RCVHWM, 0)  # a full queue would hold up the thread that moves all messages
        self.events.connect(address)

    def read(self) -> bool:
        """Take note of what has happened; True if the connection has come about since the last call."""
        before = self.made
        try:
            while True:
                event, _ = struct.unpack("=hi", self.events.recv_multipart(zmq.NOBLOCK)[0])
                self.refused = bool(event & self._FAILED)
                self.made += not self.refused
        except zmq.Again:
            return self.made > before

    def close(self) -> None:
        """Stop watching; before the socket is closed."""
        self._socket.disable_monitor()
        self.events.close()
