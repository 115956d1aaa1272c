"""Asks the hub's control socket, again and again until it answers. Every request is safe to repeat."""

import asyncio
import itertools
import time
from typing import Any, Final, Self

import zmq
import zmq.asyncio

from prorsa.bus import wire
from prorsa.bus.keys import Keys
from prorsa.bus.sockets import Handshakes, configure, refusal
from prorsa.errors import EventError, RefusedError, UnavailableError

RETRY_S: Final = 1.0
"""A request without an answer is sent again after this time."""
CONNECT_PAUSE_S: Final = 0.02
"""How long to wait before another try while there is no connection."""
REQUEST_HWM: Final = 1000
"""Requests queued at most."""


class ControlClient:
    """The client's end of the control socket; any number of requests at a time.

    Use as ``async with ControlClient(endpoints.control) as client``; ``keys`` for a hub that asks for them.
    """

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self.endpoint = endpoint
        self._keys = keys
        self.retries = 0
        """How often a request was sent again."""
        self._refused_s = 0.0
        self._sequences = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[wire.Frame]] = {}

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, REQUEST_HWM, self._keys)
        # Queue nothing while there is no hub: what is in no queue cannot pile up.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._handshakes = Handshakes(self._socket)
        self._socket.connect(self.endpoint)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self._handshakes.close()
        self._socket.close()
        self._context.term()

    async def ask(self, topic: bytes, payload: bytes, timeout_s: float | None = None) -> bytes:
        """Send a request and wait for its answer; without ``timeout_s`` for as long as it takes.

        Raises:
            EventError: if the hub found the request wrong.
            RefusedError: if the state of the run forbids it.
            UnavailableError: if there is no answer in time; says whether the hub or the controller is silent.
        """
        sequence = next(self._sequences)
        answers = self._answers[sequence] = asyncio.Queue()
        heard = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._send(wire.pack(topic, sequence, payload))
                    frame = await _next(answers)
                    while frame is not None and frame.topic == wire.RECEIVED:
                        heard = True
                        frame = await _next(answers)
                    if frame is not None:
                        return _result(frame)
                    self.retries += 1
        except TimeoutError as error:
            raise UnavailableError(self._silence(heard, timeout_s)) from error
        finally:
            del self._answers[sequence]

    def _silence(self, heard: bool, timeout_s: float | None) -> str:
        if heard:
            return (
                f"no controller answers within {timeout_s:g} s; the hub has journalled the command, and a controller "
                "that comes back will find it: repeat the request with the same request id to have the answer"
            )
        return f"no hub answers at {self.endpoint} within {timeout_s:g} s; {self.silence()}"

    def silence(self) -> str:
        """Why no hub answers, as far as its connection shows."""
        self._handshakes.read()
        if self._handshakes.refused:
            return refusal(self._keys)
        return "is the run alive?"

    async def _send(self, frames: list[bytes]) -> None:
        while True:
            try:
                await self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                self._connect_anew()
                await asyncio.sleep(CONNECT_PAUSE_S)
            else:
                return

    def _connect_anew(self) -> None:
        """ZeroMQ gives up a hub that has refused us; it may have been started again with other keys."""
        self._handshakes.read()
        now_s = time.monotonic()
        if self._handshakes.refused and now_s - self._refused_s > RETRY_S:
            self._refused_s = now_s
            self._socket.disconnect(self.endpoint)
            self._socket.connect(self.endpoint)

    async def _read(self) -> None:
        while True:
            parts: list[Any] = await self._socket.recv_multipart()
            try:
                frame = wire.unpack(parts)
            except EventError:  # not a hub; the request will say that none answers
                continue
            if frame.sequence in self._answers:  # else a repeat of an answer that has been used
                self._answers[frame.sequence].put_nowait(frame)


async def _next(answers: "asyncio.Queue[wire.Frame]") -> wire.Frame | None:
    """The next frame, None if it is time to ask again."""
    try:
        async with asyncio.timeout(RETRY_S):
            return await answers.get()
    except TimeoutError:
        return None


def _result(frame: wire.Frame) -> bytes:
    if frame.topic != wire.ERROR:
        return frame.payload
    failure = wire.decode(wire.Failure, frame.payload)
    if failure.kind == "input":
        raise EventError(failure.text)
    raise RefusedError(failure.text)
