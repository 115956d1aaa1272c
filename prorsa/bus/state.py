"""What the hub remembers of a run beside its journal: last values, commands and the lease. Pure: no I/O, no clock."""

from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple

import msgspec

from prorsa import events
from prorsa.bus.layout import Row
from prorsa.bus.wire import LEASE_S, LeaseReply, LeaseRequest
from prorsa.errors import EventError, RefusedError
from prorsa.events import AnyEvent, Command, Lease

SNAPSHOT_KEYS: Final = 10_000
"""Last values kept at most; the oldest go first."""
MAX_WAITING: Final = 8
"""Clients that may wait for the answer of one command."""
MAX_UNANSWERED: Final = 1000
"""Commands that clients wait for an answer of; the oldest are forgotten. Without a controller nobody answers."""


def _worker_id(event: AnyEvent) -> str:
    assert isinstance(event, events.WorkerUp | events.WorkerDown | events.WorkerLoad | events.WorkerRole | events.Flip)
    return event.worker_id


def _override_id(event: AnyEvent) -> str:
    assert isinstance(event, events.Override)
    return event.override_id


def _code(event: AnyEvent) -> str:
    assert isinstance(event, events.Alert)
    return event.code


def _single(_: AnyEvent) -> str:
    return ""


SNAPSHOT_TYPES: Final[dict[str, Callable[[AnyEvent], str]]] = {
    "run.begin": _single,
    "run.end": _single,
    "sampler.state": _single,
    "forecast": _single,
    "decision": _single,
    "shadow": _single,
    "admission": _single,
    "view": _single,
    "lease": _single,
    "worker.up": _worker_id,
    "worker.down": _worker_id,
    "worker.load": _worker_id,
    "worker.role": _worker_id,
    "flip": _worker_id,
    "override": _override_id,
    "alert": _code,
}
"""The event types of which a late joiner gets the last value, and what keys it."""


class LastValues:
    """The last event of each key, as stamped msgpack."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[int, bytes]] = {}

    def apply(self, row: Row, event: AnyEvent, stamped: bytes) -> None:
        """Take note of an event, if it is of a type that is kept."""
        key_of = SNAPSHOT_TYPES.get(row.type)
        if key_of is None:
            return
        key = (row.type, key_of(event))
        self._values.pop(key, None)  # so that the order of the table is that of hub_seq
        self._values[key] = (row.hub_seq, stamped)
        if len(self._values) > SNAPSHOT_KEYS:
            del self._values[next(iter(self._values))]

    def select(self, types: Collection[str] | None) -> list[msgspec.Raw]:
        """The stamped events of these types, all if None, in order of ``hub_seq``."""
        return [
            msgspec.Raw(stamped) for (kind, _), (_, stamped) in self._values.items() if types is None or kind in types
        ]


Client = tuple[bytes, int]
"""Where to send an answer: the client's routing id and the sequence of its request."""


class CommandTable:
    """Commands of the run and their answers, so that a repeated request is neither lost nor done twice."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], Command] = {}
        self._answers: dict[tuple[str, str], bytes] = {}
        self._waiting: dict[tuple[str, str], list[Client]] = {}

    def answer(self, command: Command) -> bytes | None:
        """The stored answer to a request, None if there is none yet.

        Raises:
            EventError: if it is no request.
            RefusedError: if the request id has been used for another request.
        """
        if command.state != "requested":
            raise EventError(f"a command is sent in state `requested`, not `{command.state}`")
        key = (command.client, command.request_id)
        if command.asks:
            return None
        known = self._requests.get(key)
        if known is not None and _content(known) != _content(command):
            raise RefusedError(
                f"request id {command.request_id} of {command.client} was used for `{known.verb}` of another content; "
                "take a new id for a new request"
            )
        return self._answers.get(key)

    def is_new(self, command: Command) -> bool:
        """Whether the request has to be journalled."""
        return (command.client, command.request_id) not in self._requests

    def wait(self, command: Command, client: Client) -> None:
        """Have ``client`` answered once the answer is there; of too many, the longest waiting are forgotten."""
        clients = self._waiting.setdefault((command.client, command.request_id), [])
        if client not in clients:
            clients.append(client)
            del clients[:-MAX_WAITING]
        if len(self._waiting) > MAX_UNANSWERED:
            del self._waiting[next(iter(self._waiting))]

    def apply(self, command: Command, encoded: bytes) -> list[Client]:
        """Take note of a journalled command event; returns who is to be sent it.

        Questions and their answers are not kept: one that is asked again is answered again, as things stand then.
        """
        key = (command.client, command.request_id)
        if command.asks:
            return [] if command.state == "requested" else self._waiting.pop(key, [])
        if command.state == "requested":
            self._requests.setdefault(key, command)
            return []
        self._answers.setdefault(key, encoded)
        return self._waiting.pop(key, [])


def _content(command: Command) -> tuple[str, str | None, str | None]:
    return command.verb, command.target, command.value


class LeaseChange(NamedTuple):
    """What a request did to the lease: the events to journal first, and the answer to give then."""

    events: list[Lease]
    reply: LeaseReply


class LeaseTable:
    """The controller lease. Times are of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.epoch = 0
        """The last epoch granted."""
        self.holder: str | None = None
        """Who holds the lease; None if nobody does."""
        self._session: str | None = None
        self._expires_s = 0.0

    def recover(self, last: Lease, now_s: float) -> None:
        """Take over the journal's last word: a holder keeps the lease for one more term, since it may be alive."""
        self.epoch = last.epoch
        self.holder = last.holder if last.state == "granted" else None
        self._session = None
        self._expires_s = now_s + LEASE_S

    def expire(self, now_s: float, expires_ns: int) -> list[Lease]:
        """End the lease if its time is over."""
        if self.holder is None or now_s < self._expires_s:
            return []
        return [self._end("expired", expires_ns)]

    def request(self, request: LeaseRequest, now_s: float, now_ns: int, expires_ns: int) -> LeaseChange:
        """Answer a request. ``now_ns`` is run time, ``expires_ns`` the run time one term from now."""
        changes = self.expire(now_s, now_ns)
        mine = self.holder == request.holder
        # After a restart of the hub the session is not known: then the epoch tells who it is.
        known = self._session == request.session if self._session is not None else self.epoch == request.epoch
        continues = mine and known
        if request.action == "acquire" and (mine or self.holder is None):
            if not continues:
                # A new holder, or a new start of the old one: the higher epoch shuts the predecessor out.
                self.epoch += 1
                changes.append(Lease(holder=request.holder, epoch=self.epoch, state="granted", expires_ns=expires_ns))
            self._hold(request, now_s)
            return LeaseChange(changes, self._reply(now_s, granted=True))
        if request.action == "acquire" or not continues or request.epoch != self.epoch:
            return LeaseChange(changes, self._reply(now_s, granted=False))
        if request.action == "release":
            changes.append(self._end("released", now_ns))
            return LeaseChange(changes, self._reply(now_s, granted=False))
        self._hold(request, now_s)
        return LeaseChange(changes, self._reply(now_s, granted=True))

    def _hold(self, request: LeaseRequest, now_s: float) -> None:
        self.holder, self._session = request.holder, request.session
        self._expires_s = now_s + LEASE_S

    def _end(self, state: Literal["released", "expired"], expires_ns: int) -> Lease:
        holder, self.holder, self._session = self.holder, None, None
        assert holder is not None
        return Lease(holder=holder, epoch=self.epoch, state=state, expires_ns=expires_ns)

    def _reply(self, now_s: float, *, granted: bool) -> LeaseReply:
        left_s = max(self._expires_s - now_s, 0.0) if self.holder else 0.0
        return LeaseReply(granted, self.holder, self.epoch, left_s)
