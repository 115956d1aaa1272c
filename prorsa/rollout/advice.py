"""What Prorsa advises a sampler: how many trajectories to have in flight, so that the caches hold their contexts.

A thread asks the hub every few seconds and keeps the last answer; reading it never waits and never raises.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import zmq

from prorsa.bus import wire
from prorsa.bus.keys import Keys
from prorsa.bus.sockets import Handshakes, configure, refusal
from prorsa.bus.wire import Endpoints
from prorsa.errors import EventError, ProrsaError
from prorsa.events import Admission, Stamped, decode_stamped
from prorsa.rollout.channel import HUB_VARIABLE

CONTROL_VARIABLE: Final = "PRORSA_CONTROL"
"""Environment variable with the hub's control endpoint or its run directory."""
ASK_EVERY_S: Final = 2.0
ANSWER_WITHIN_S: Final = 2.0
OLD_S: Final = 180.0
"""The controller repeats its advice every minute; one that has not for so long is not there, and its advice no longer
holds."""
_HWM: Final = 16

_log = logging.getLogger("prorsa.rollout")


class Heard(NamedTuple):
    """The advice that was heard last, its place in the run, and when it was new, on this process's monotonic clock."""

    hub_seq: int
    said: Admission
    at_s: float


class Advice:
    """The number of live trajectories that the workers' caches hold, as the controller says it.

    It begins to ask when it is first read, in whatever process that is: it may be forked over and pickled. Without a
    hub (none given, neither ``PRORSA_CONTROL`` nor a directory in ``PRORSA_HUB``) it knows nothing.

    Args:
        hub: the hub's control endpoint (``tcp://…``, ``ipc://…``) or its run directory; None takes
            ``PRORSA_CONTROL``, or ``PRORSA_HUB`` where that is a directory.
        keys: the key file of a viewer or an operator, for a hub that asks for keys; None takes ``PRORSA_KEYS``.
        ask_every_s: wall seconds between two questions.
    """

    def __init__(
        self,
        hub: str | os.PathLike[str] | None = None,
        *,
        keys: Keys | str | os.PathLike[str] | None = None,
        ask_every_s: float = ASK_EVERY_S,
    ) -> None:
        self._given = (hub, keys, ask_every_s)
        self._heard: Heard | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pid: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _again, self._given

    @property
    def limit(self) -> int | None:
        """Trajectories to have live at the most; None where nothing limits, or nobody has said (lately)."""
        said = self.admission
        return None if said is None else said.limit

    @property
    def admission(self) -> Admission | None:
        """All that the controller said: the limit, from what, and whether routers hold what is beyond it (``gate``)."""
        self._begin()
        heard = self._heard
        return heard.said if heard is not None and time.monotonic() - heard.at_s < OLD_S else None

    def close(self) -> None:
        """Ask no more; what was heard stays until it is old."""
        self._stop.set()

    def _begin(self) -> None:
        """Start the thread, once in each process."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid() or self._stop.is_set():
                return
            self._pid = os.getpid()
            try:
                endpoint, keys = _find(*self._given[:2])
            except (ProrsaError, TypeError) as error:
                _log.warning("no advice on trajectories: %s (the rollout goes on)", error)
                return
            if endpoint is not None:
                threading.Thread(target=self._ask, args=(endpoint, keys), name="prorsa-advice", daemon=True).start()

    def _ask(self, endpoint: str, keys: Keys | None) -> None:
        with _Asker(endpoint, keys) as asker:
            while not self._stop.is_set():
                with contextlib.suppress(EventError):  # no answer that this version understands: none
                    for stamped in asker.ask():
                        self._take(stamped)
                self._stop.wait(self._given[2])

    def _take(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, Admission) and (self._heard is None or stamped.hub_seq != self._heard.hub_seq):
            self._heard = Heard(stamped.hub_seq, stamped.event, time.monotonic())


class _Asker:
    """Asks one hub for the last advice, over a connection that is made anew where the hub has not let us in."""

    def __init__(self, endpoint: str, keys: Keys | None) -> None:
        self._endpoint = endpoint
        self._keys = keys
        self._sequence = 0
        self._warned = False

    def __enter__(self) -> Self:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()
        self._context.term()

    def ask(self) -> Iterator[Stamped]:
        """The last advice as a stamped event; nothing where there is none, or nobody answers in time.

        Raises:
            EventError: for an answer that does not fit.
        """
        self._sequence += 1
        question = wire.encode(wire.SnapshotRequest(["admission"]))
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(wire.pack(wire.SNAPSHOT, self._sequence, question), zmq.NOBLOCK)
        until_s = time.monotonic() + ANSWER_WITHIN_S
        while (left_s := until_s - time.monotonic()) > 0 and self._socket.poll(round(1000 * left_s) + 1):
            frame = wire.unpack(self._socket.recv_multipart())
            if frame.sequence == self._sequence and frame.topic == wire.SNAPSHOT:
                yield from (decode_stamped(bytes(raw)) for raw in wire.decode(wire.Snapshot, frame.payload).events)
                return
        self._look_why()

    def _look_why(self) -> None:
        self._handshakes.read()
        if not self._handshakes.refused:
            return
        if not self._warned:
            self._warned = True
            _log.warning("no advice on trajectories from %s: %s (logged once)", self._endpoint, refusal(self._keys))
        self._disconnect()  # ZeroMQ does not try again where it was refused
        self._connect()

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, _HWM, self._keys)
        self._handshakes = Handshakes(self._socket)
        self._socket.connect(self._endpoint)

    def _disconnect(self) -> None:
        self._handshakes.close()
        self._socket.close()


def _find(
    hub: str | os.PathLike[str] | None, keys: Keys | str | os.PathLike[str] | None
) -> tuple[str | None, Keys | None]:
    """The control endpoint, and the keys that fit it; None where no hub is configured."""
    place = os.fspath(hub) if hub else os.environ.get(CONTROL_VARIABLE)
    tracked = os.environ.get(HUB_VARIABLE)
    if not place and tracked and "://" not in tracked:
        place = tracked
    if not place:
        return None, None
    found = Keys.find(keys)
    if "://" in place:
        return place, found
    endpoints = Endpoints.load(Path(place))
    return endpoints.control, endpoints.fitting(found)


def _again(
    hub: str | os.PathLike[str] | None, keys: Keys | str | os.PathLike[str] | None, ask_every_s: float
) -> Advice:
    return Advice(hub, keys=keys, ask_every_s=ask_every_s)
