"""What travels over the bus: endpoints, frames and the payloads of the control channel. Needs only the base install.

Every message is three frames ``[topic, sequence, payload]``: ``topic`` is ASCII, ``sequence`` an unsigned 64-bit
big-endian integer, ``payload`` msgpack. ``docs/bus.md`` explains them for clients in other languages.
"""

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from prorsa import events
from prorsa.bus.keys import KEYS_VARIABLE, Keys
from prorsa.errors import ConfigError, EventError, InputError, UnavailableError

EVENTS_TOPIC: Final = b"events"
"""Publisher to hub: a :class:`prorsa.events.Batch`; the sequence is the ``seq`` of its first event. An empty batch
says that the publisher holds nothing older than the sequence."""
ACK_TOPIC: Final = b"ack"
"""Hub to publisher: everything of the source (the payload) up to the sequence is journalled."""
RESEND_TOPIC: Final = b"resend"
"""Hub to publisher: send again from the sequence on; what came after it was not taken."""
REJECTED_TOPIC: Final = b"rejected"
"""Hub to publisher: the message with this sequence holds no batch (the payload says why). Drop it and go on."""
HUB_TOPIC: Final = b"hub"
"""Hub to subscribers: the heartbeat, a :class:`HubStatus`."""
MARK_TOPIC: Final = b"mark"
"""Hub to subscribers: a :class:`Mark` after each burst of events."""

STATUS: Final = b"status"
SNAPSHOT: Final = b"snapshot"
REPLAY: Final = b"replay"
COMMAND: Final = b"command"
LEASE: Final = b"lease"
RECEIVED: Final = b"received"
"""Hub to client: the command is journalled and waits for the controller's answer."""
ERROR: Final = b"error"
"""Hub to client: the request was not served, a :class:`Failure`."""

MAX_IPC_PATH_BYTES: Final = 107
"""Longest path of a Unix socket on Linux."""
REPLAY_PAGE_EVENTS: Final = 1000
"""Most events in one page of a replay."""
LEASE_S: Final = 5.0
"""Wall seconds that a lease lasts without renewal."""

LeaseAction = Literal["acquire", "renew", "release"]

_ENDPOINTS_FILE = "endpoints.json"
_SOCKET_NAMES = ("ingest", "fanout", "control")

_T = TypeVar("_T")


class Endpoints(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The three sockets of a hub: ``ingest`` (ROUTER), ``fanout`` (PUB) and ``control`` (ROUTER).

    ``hub_key`` is the hub's public key (Z85); None if it asks for no keys, or that is not known. A client's own keys
    are never in here: this is saved where every client of the run may read it.
    """

    ingest: str
    fanout: str
    control: str
    hub_key: str | None = None

    def fitting(self, keys: Keys | None) -> Keys | None:
        """A client's keys, checked.

        Raises:
            ConfigError: if this hub asks for keys and there are none, or they are those of another hub.
        """
        if self.hub_key is not None and keys is None:
            raise ConfigError(f"the hub at {self.control} asks for keys: name a key file (--keys, or {KEYS_VARIABLE})")
        if keys is not None and self.hub_key not in (None, keys.hub):
            raise ConfigError(
                f"these keys are for another hub than the one at {self.control}: take the {keys.role}.key that was "
                "made together with its hub.key"
            )
        return keys

    @classmethod
    def ipc(cls, run_dir: Path) -> "Endpoints":
        """Unix sockets in ``<run_dir>/sockets``, for this user alone.

        A path longer than Unix sockets allow is replaced by a new private directory of the system's temporary files.
        """
        folder = (run_dir / "sockets").absolute()
        if max(len(str(folder / name).encode()) for name in _SOCKET_NAMES) > MAX_IPC_PATH_BYTES:
            folder = Path(tempfile.mkdtemp(prefix="prorsa-"))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        return cls(*(f"ipc://{folder / name}" for name in _SOCKET_NAMES))

    def save(self, run_dir: Path) -> None:
        """Write ``<run_dir>/endpoints.json``, at once or not at all."""
        run_dir.mkdir(parents=True, exist_ok=True)
        draft = run_dir / (_ENDPOINTS_FILE + ".tmp")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        draft.replace(run_dir / _ENDPOINTS_FILE)

    @classmethod
    def load(cls, run_dir: Path) -> "Endpoints":
        """Read ``<run_dir>/endpoints.json``.

        Raises:
            UnavailableError: if there is none: no hub has been started on this directory.
            ConfigError: if it does not fit.
        """
        path = run_dir / _ENDPOINTS_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError as error:
            raise UnavailableError(
                f"no hub in {run_dir}: {path.name} is missing; start a run, or name its run directory"
            ) from error
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}: {error}; remove the file and restart the hub") from error


class Frame(NamedTuple):
    """One message, taken apart."""

    topic: bytes
    sequence: int
    payload: bytes


def pack(topic: bytes, sequence: int, payload: bytes) -> list[bytes]:
    """The three frames of a message."""
    return [topic, sequence.to_bytes(8, "big"), payload]


def unpack(parts: Sequence[bytes]) -> Frame:
    """Take three frames apart.

    Raises:
        EventError: if these are not three frames with a sequence of 8 bytes.
    """
    if len(parts) != 3 or len(parts[1]) != 8:
        sizes = [len(part) for part in parts]
        raise EventError(f"not a bus message: frames of {sizes} bytes; send [topic, 8-byte sequence, msgpack]")
    return Frame(parts[0], int.from_bytes(parts[1], "big"), parts[2])


encode = events.encode
"""A payload as msgpack."""


def decode(kind: type[_T], payload: bytes) -> _T:
    """Decode a payload strictly as ``kind``.

    Raises:
        EventError: if it does not fit; names the field.
    """
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"{kind.__name__}: {error}; the sender speaks another version of the bus") from error


def resolve_topics(topics: Collection[str]) -> list[str] | None:
    """The event types that begin with one of ``topics``; None for all types.

    Raises:
        InputError: if no event type begins with one of them.
    """
    if "" in topics:
        return None
    for topic in topics:
        if not any(name.startswith(topic) for name in events.EVENT_TYPES):
            raise InputError(f"no event type begins with {topic!r}; docs/events.md lists them")
    return sorted(name for name in events.EVENT_TYPES if name.startswith(tuple(topics)))


class Counters(Struct, frozen=True, gc=False):
    """What the hub has counted since it started.

    Attributes:
        received: events that came in, repeats included.
        journalled: events written to the journal.
        gaps: holes in a known source's sequence; ``repaired``: those that a resend has filled.
        rejected: events that did not fit the schema or the run.
    """

    received: int = 0
    journalled: int = 0
    gaps: int = 0
    repaired: int = 0
    rejected: int = 0


class HubStatus(Struct, frozen=True):
    """The heartbeat, and the answer to ``status``.

    Attributes:
        boot: differs with each start of the hub.
        t_ns, speed: the run clock now, and its run seconds per wall second.
        head_seq: the last ``hub_seq``; ``heads``: how many events of each type the run has had.
        lease_holder: who holds the controller lease, None if nobody; ``lease_epoch``: the last epoch given.
    """

    run_id: str
    boot: str
    t_ns: int
    speed: float
    head_seq: int
    heads: dict[str, int]
    counters: Counters
    lease_holder: str | None = None
    lease_epoch: int = 0


class Mark(Struct, frozen=True, array_like=True, gc=False):
    """Everything up to ``head_seq`` has been sent: ``heads`` events of each type. Shows a subscriber what it missed."""

    head_seq: int
    heads: dict[str, int]


class SnapshotRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the last value of each key of these event types; None for all."""

    topics: list[str] | None = None


class Snapshot(Struct, frozen=True):
    """Last values as stamped events in order of ``hub_seq``, valid at ``head_seq``."""

    run_id: str
    head_seq: int
    heads: dict[str, int]
    events: list[msgspec.Raw]


class ReplayRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for one page of the journal after ``after_seq``, of these event types; None for all."""

    after_seq: int
    topics: list[str] | None = None
    limit: int = REPLAY_PAGE_EVENTS


class ReplayPage(Struct, frozen=True):
    """Stamped events; the page holds all that was asked for up to ``upto_seq``, which is ``head_seq`` on the last."""

    run_id: str
    events: list[msgspec.Raw]
    upto_seq: int
    head_seq: int
    heads: dict[str, int]


class LeaseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the controller lease. ``session`` differs with each start of the holder."""

    action: LeaseAction
    holder: str
    session: str
    epoch: int = 0


class LeaseReply(Struct, frozen=True):
    """Whether the caller holds the lease now; who does, under which epoch, and for how many wall seconds still."""

    granted: bool
    holder: str | None
    epoch: int
    expires_in_s: float


class Failure(Struct, frozen=True):
    """Why a request was not served."""

    kind: Literal["input", "refused"]
    text: str
