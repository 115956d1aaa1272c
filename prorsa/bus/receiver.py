"""The hub's receiving thread: takes batches from publishers at any time, and hands them over a bounded queue.

The queue is a pair of in-process sockets, so that the hub waits for batches and for control requests in one poll. When
it is full the thread stops reading; the sockets' own queues fill, and the events wait in the publishers' buffers.
"""

import threading
from typing import Final

import zmq

from prorsa.bus.sockets import Security, bind, configure

QUEUE_BATCHES: Final = 32
"""Batches that each end of the queue holds."""
INGEST_HWM: Final = 16
"""Batches that the socket queues for each publisher before it stops reading from its connection."""
BURST_BATCHES: Final = 64
"""Batches moved before acknowledgements get their turn."""

_STOP: Final = b""
_ADDRESS: Final = "inproc://received"


class Receiver:
    """Owns the ROUTER socket of publishers.

    A message is ``[public key, routing id, topic, sequence, payload]``; the key is that of its sender, empty without
    keys. Replies go without it.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, security: Security | None = None
    ) -> None:
        self._router = context.socket(zmq.ROUTER)
        configure(self._router, INGEST_HWM, security)
        self._keyed = security is not None
        self.endpoint = bind(self._router, endpoint)
        self.queue = context.socket(zmq.PAIR)
        """The hub's end of the queue, to be polled; read by :meth:`take`."""
        self._far = context.socket(zmq.PAIR)
        for end in (self.queue, self._far):
            configure(end, QUEUE_BATCHES)
        self.queue.bind(_ADDRESS)
        self._far.connect(_ADDRESS)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hub-receiver", daemon=True)
        self._thread.start()

    def take(self) -> list[bytes] | None:
        """The next message, None if there is none now.

        Raises whatever has ended the thread.
        """
        try:
            return self.queue.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            if self._error is not None:
                raise self._error from None
            return None

    def reply(self, frames: list[bytes]) -> None:
        """Send to a publisher. Never waits: a reply that finds no room is dropped, and the publisher asks again."""
        try:
            self.queue.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Stop the thread and close the sockets."""
        while self._thread.is_alive():
            self.reply([_STOP])
            while self.take_quietly():
                pass
            self._thread.join(0.01)
        self.queue.close()

    def take_quietly(self) -> bool:
        """Drop a message, if there is one: what is not acknowledged is sent again."""
        try:
            self.queue.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 - root of the thread; `take` raises it in the hub
            self._error = error
        finally:
            self._router.close()
            self._far.close()

    def _turn(self) -> bool:
        """Wait for either side and serve it; False once told to stop."""
        room = self._far.getsockopt(zmq.EVENTS)
        assert isinstance(room, int)
        if room & zmq.POLLOUT:
            ready = dict(zmq.zmq_poll([(self._router, zmq.POLLIN), (self._far, zmq.POLLIN)], 1000))
        else:
            ready = dict(zmq.zmq_poll([(self._far, zmq.POLLIN | zmq.POLLOUT)], 1000))
        if ready.get(self._far, 0) & zmq.POLLIN and not self._send_replies():
            return False
        if self._router in ready:
            self._receive()
        return True

    def _send_replies(self) -> bool:
        try:
            while True:
                frames = self._far.recv_multipart(zmq.NOBLOCK)
                if frames == [_STOP]:
                    return False
                self._router.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return True

    def _receive(self) -> None:
        for _ in range(BURST_BATCHES):
            if not self._far.poll(0, zmq.POLLOUT):
                return
            try:
                self._far.send_multipart(self._next_message())
            except zmq.Again:
                return

    def _next_message(self) -> list[bytes]:
        if not self._keyed:
            return [b"", *self._router.recv_multipart(zmq.NOBLOCK)]
        frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        # What the authenticator has said of the connection; the way to the hub would lose it.
        return [str(frames[-1].get("User-Id")).encode(), *(frame.bytes for frame in frames)]
