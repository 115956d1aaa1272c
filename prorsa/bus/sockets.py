"""How every socket of the bus is set up, so that ends that die are noticed and nothing hangs at exit."""

from typing import Any, Final

import zmq

RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1000
"""A lost connection is tried again after ``RECONNECT_MS``, then at growing intervals up to this one."""
HEARTBEAT_MS: Final = 1000
HEARTBEAT_TIMEOUT_MS: Final = 5000
"""ZeroMQ's own heartbeats: a TCP peer that has vanished without a word is dropped after this time."""
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Larger frames are refused, and their connection is closed."""


def configure(socket: "zmq.Socket[Any]", hwm: int) -> None:
    """Set what all sockets of the bus have in common.

    Args:
        socket: not yet bound or connected.
        hwm: messages that it queues in each direction and for each peer.
    """
    socket.set_hwm(hwm)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
