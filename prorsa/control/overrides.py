"""Operator overrides: pin a worker, take it out, hold a split, freeze; their checks, expiry and honest life.

``requested → accepted → draining → effective``, or ``rejected``; ended as ``expired`` or ``released``. Overrides key on
``worker_id`` and live on the run clock. A pin or split that cannot come true is refused by name, at once. A worker
that was taken out (drained, or quarantined as it is) stays out until it is readmitted, or for as long as was said.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from prorsa.clock import nanoseconds, seconds
from prorsa.cluster.registry import Registry, Worker
from prorsa.control.policies import parse_split
from prorsa.control.solver import Bounds
from prorsa.errors import ConfigError, RefusedError
from prorsa.events import Command, Override, OverrideKind, OverrideState, OverrideView, Role, Split

SPLIT = "split"
FREEZE = "freeze"
_KEEP_ENDED_NS = nanoseconds(60.0)


@dataclass(slots=True)
class Entry:
    """One override in force, or lately ended (``ended_ns``)."""

    override_id: str
    kind: OverrideKind
    owner: str
    reason: str
    expires_ns: int | None
    target: str | None = None
    value: str | None = None
    state: OverrideState = "accepted"
    detail: str | None = None
    ended_ns: int | None = None

    def event(self) -> Override:
        """What the journal gets to know of it."""
        return Override(
            override_id=self.override_id,
            kind=self.kind,
            state=self.state,
            owner=self.owner,
            reason=self.reason,
            target=self.target,
            value=self.value,
            expires_ns=self.expires_ns,
            detail=self.detail,
        )

    def view(self, t_ns: int) -> OverrideView:
        """What the console shows of it."""
        ended = self.ended_ns is not None
        return OverrideView(
            override_id=self.override_id,
            kind=self.kind,
            state=self.state,
            owner=self.owner,
            reason=self.reason,
            target=self.target,
            value=self.value,
            expires_in_s=None if ended or self.expires_ns is None else max(0.0, seconds(self.expires_ns - t_ns)),
            detail=self.detail,
        )


class Overrides:
    """All overrides of a run: pins and workers taken out by worker, at most one split and one freeze."""

    def __init__(self, default_life_s: float) -> None:
        self._default_life_s = default_life_s
        self._pins: dict[str, Entry] = {}
        self._out: dict[str, Entry] = {}
        self._split: Entry | None = None
        self._freeze: Entry | None = None
        self._ended: list[Entry] = []

    @property
    def frozen(self) -> Entry | None:
        """The freeze in force."""
        return self._freeze

    @property
    def split(self) -> Entry | None:
        """The split override in force."""
        return self._split

    def pinned(self, worker_id: str) -> Role | None:
        """The role that the worker is pinned to."""
        entry = self._pins.get(worker_id)
        return _role(entry.value) if entry else None

    def pins(self) -> Iterable[Entry]:
        """All pins in force, oldest first."""
        return self._pins.values()

    def out(self, worker_id: str) -> Entry | None:
        """The drain or quarantine that keeps a worker out of the pool."""
        return self._out.get(worker_id)

    def outs(self) -> Iterable[Entry]:
        """All workers that are kept out, oldest first."""
        return self._out.values()

    def views(self, t_ns: int) -> tuple[OverrideView, ...]:
        """All in force, then those that ended in the last minute."""
        self._ended = [entry for entry in self._ended if t_ns - (entry.ended_ns or 0) < _KEEP_ENDED_NS]
        return tuple(entry.view(t_ns) for entry in [*self._in_force(), *self._ended])

    def pin(self, command: Command, registry: Registry, t_ns: int) -> list[Override]:
        """Pin a worker to a role; replaces an earlier pin of the worker.

        Raises:
            RefusedError: for an unknown, dead or unflippable worker, or where all pins together leave no choice.
        """
        role = _role(command.value)
        if command.target is None or role is None:
            raise RefusedError(
                f"pin takes a worker and a role, prefill or decode; got {command.target} {command.value}"
            )
        worker = _flippable(registry, command.target, role)
        self._check_pins(registry, {**{k: _role(e.value) for k, e in self._pins.items()}, worker.worker_id: role})
        events = self._end(self._pins.pop(worker.worker_id, None), "released", t_ns, f"replaced by {command.owner}")
        entry = self._make("pin", command, t_ns)
        self._pins[worker.worker_id] = entry
        return [*events, entry.event()]

    def hold_split(self, command: Command, registry: Registry, t_ns: int) -> list[Override]:
        """Override the split; replaces an earlier split override.

        Raises:
            RefusedError: if it does not add up to the pool, or pins and unflippable workers forbid it.
        """
        bounds = self.bounds(registry)
        if bounds is None:
            raise RefusedError("there is no split to override: fewer than two workers can be prefill or decode")
        try:
            split = parse_split(command.value or "", bounds.workers, where="override")
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        if not bounds.low <= split.prefill <= bounds.high:
            raise RefusedError(
                f"override {split}: pins and unflippable workers leave {bounds.low} to {bounds.high} prefill workers"
            )
        events = self._end(self._split, "released", t_ns, f"replaced by {command.owner}")
        self._split = self._make("split", command, t_ns)
        return [*events, self._split.event()]

    def freeze(self, command: Command, t_ns: int) -> list[Override]:
        """Start no flip until released or expired; flips under way finish. Effective at once."""
        events = self._end(self._freeze, "released", t_ns, f"replaced by {command.owner}")
        self._freeze = self._make("freeze", command, t_ns)
        accepted = self._freeze.event()
        self._freeze.state = "effective"
        return [*events, accepted, self._freeze.event()]

    def take_out(self, command: Command, registry: Registry, t_ns: int) -> list[Override]:
        """Keep a serving worker out of the pool; a pin of it is released.

        Raises:
            RefusedError: for a worker that does not serve, or that the pool cannot do without.
        """
        worker = _serving(registry, command)
        rest = [other for other in registry if other.serving and other.role == worker.role and other is not worker]
        if not rest:
            raise RefusedError(f"{worker.worker_id} is the last serving {worker.role} worker: flip another one first")
        pins = {key: _role(entry.value) for key, entry in self._pins.items() if key != worker.worker_id}
        if worker.role != "mixed" and _bounds(registry, pins, without=worker.worker_id) is None:
            raise RefusedError(
                f"without {worker.worker_id} pins leave no worker for one of the roles; release one first"
            )
        kind: OverrideKind = "drain" if command.verb == "drain" else "quarantine"
        released = self._end(self._pins.pop(worker.worker_id, None), "released", t_ns, f"{kind} by {command.owner}")
        entry = self._out[worker.worker_id] = self._make(kind, command, t_ns)
        return [*released, entry.event()]

    def readmit(self, command: Command, t_ns: int) -> list[Override]:
        """A worker may serve again: what kept it out, if that was an operator, is released."""
        entry = self._out.pop(command.target or "", None)
        return self._end(entry, "released", t_ns, f"by {command.owner}: {command.reason}")

    def release(self, command: Command, t_ns: int) -> list[Override]:
        """End the pin of a worker, the split override or the freeze.

        Raises:
            RefusedError: if there is nothing of that name to release; says what there is.
        """
        detail = f"by {command.owner}: {command.reason}"
        if command.target == SPLIT and self._split:
            entry, self._split = self._split, None
        elif command.target == FREEZE and self._freeze:
            entry, self._freeze = self._freeze, None
        elif command.target in self._pins:
            entry = self._pins.pop(command.target)
        elif command.target in self._out:
            raise RefusedError(f"{command.target} is out of the pool: readmit it instead")
        else:
            there = ", ".join(entry.target or entry.kind for entry in self._in_force()) or "nothing"
            raise RefusedError(f"nothing to release at {command.target!r}; in force: {there}")
        return self._end(entry, "released", t_ns, detail)

    def advance(self, registry: Registry, t_ns: int) -> list[Override]:
        """Expire what has run out, and follow each override on its way to being effective."""
        events: list[Override] = []
        for entry in list(self._in_force()):
            if entry.kind in ("drain", "quarantine") and _came_back(entry, registry):
                self._drop(entry)
                events += self._end(entry, "rejected", t_ns, f"{entry.target} could not be taken out of the pool")
                continue
            if entry.expires_ns is not None and t_ns >= entry.expires_ns:
                self._drop(entry)
                events += self._end(entry, "expired", t_ns, None)
                continue
            state = self._state_of(entry, registry)
            if state != entry.state:
                entry.state = state
                events.append(entry.event())
        return events

    def bounds(self, registry: Registry) -> Bounds | None:
        """How many workers may be prefill; None where no two workers can take different roles."""
        return _bounds(registry, {worker_id: _role(entry.value) for worker_id, entry in self._pins.items()})

    def _in_force(self) -> list[Entry]:
        single = (entry for entry in (self._split, self._freeze) if entry)
        return [*self._pins.values(), *self._out.values(), *single]

    def _drop(self, entry: Entry) -> None:
        if entry.kind == "pin" and entry.target is not None:
            del self._pins[entry.target]
        elif entry.kind in ("drain", "quarantine") and entry.target is not None:
            del self._out[entry.target]
        elif entry.kind == "split":
            self._split = None
        else:
            self._freeze = None

    def _state_of(self, entry: Entry, registry: Registry) -> OverrideState:
        if entry.kind == "pin":
            worker = registry.get(entry.target or "")
            if worker is None or worker.state in ("dead", "quarantined"):
                return "accepted"  # it counts again when the worker is back
            if worker.serving and worker.role == entry.value:
                return "effective"
            return "draining" if worker.switching and worker.to_role == entry.value else "accepted"
        if entry.kind == "split":
            return _split_state(entry, registry.split())
        if entry.kind == "freeze":
            return "effective"
        worker = registry.get(entry.target or "")
        # A worker that dies while it is out is out; whatever comes back under its name is taken out again.
        return "draining" if worker is not None and worker.switching else "effective"

    def _make(self, kind: OverrideKind, command: Command, t_ns: int) -> Entry:
        lasts = kind in ("drain", "quarantine")
        life_s = (None if lasts else self._default_life_s) if command.for_s is None else command.for_s
        return Entry(
            override_id=command.request_id,
            kind=kind,
            owner=command.owner,
            reason=command.reason,
            expires_ns=None if life_s is None else t_ns + nanoseconds(life_s),
            target=command.target if kind in ("pin", "drain", "quarantine") else None,
            value=command.value,
        )

    def _end(self, entry: Entry | None, state: OverrideState, t_ns: int, detail: str | None) -> list[Override]:
        if entry is None:
            return []
        entry.state, entry.detail, entry.ended_ns = state, detail, t_ns
        self._ended.append(entry)
        return [entry.event()]

    @staticmethod
    def _check_pins(registry: Registry, pins: dict[str, Role | None]) -> None:
        if _bounds(registry, pins) is not None:
            return
        named = ", ".join(f"{worker_id}→{role}" for worker_id, role in sorted(pins.items()))
        raise RefusedError(f"pins {named} together leave no worker for one of the roles; release one first")


def _split_state(entry: Entry, now: Split) -> OverrideState:
    """A split is reached by several flips, one after the other: between two of them it is still on its way."""
    if not now.switching and f"{now.prefill}:{now.decode}" == entry.value:
        return "effective"
    # Once it was true, a worker that dies or flips by a pin does not take it back.
    if entry.state == "accepted":
        return "draining" if now.switching else "accepted"
    return entry.state


def _bounds(registry: Registry, pins: dict[str, Role | None], without: str | None = None) -> Bounds | None:
    workers = [
        worker
        for worker in registry
        if worker.role != "mixed" and (worker.serving or worker.switching) and worker.worker_id != without
    ]
    fixed = [_fixed_role(worker, pins.get(worker.worker_id)) for worker in workers]
    low = max(1, fixed.count("prefill"))
    high = len(workers) - max(1, fixed.count("decode"))
    return Bounds(workers=len(workers), low=low, high=high) if low <= high else None


def _fixed_role(worker: Worker, pin: Role | None) -> Role | None:
    if pin is not None:
        return pin
    return None if worker.flippable else worker.role


def _came_back(entry: Entry, registry: Registry) -> bool:
    """Whether a worker serves although it was taken out: the router refused to fence it."""
    worker = registry.get(entry.target or "")
    return worker is not None and worker.serving


def known_worker(registry: Registry, worker_id: str | None) -> Worker:
    """The worker of that id.

    Raises:
        RefusedError: if there is none; names those that there are.
    """
    worker = registry.get(worker_id or "")
    if worker is None:
        known = ", ".join(known.worker_id for known in registry) or "none yet"
        raise RefusedError(f"no worker {worker_id!r}; there are {known}")
    return worker


def _serving(registry: Registry, command: Command) -> Worker:
    worker = known_worker(registry, command.target)
    if worker.switching:
        raise RefusedError(f"{worker.worker_id} is {worker.state}: wait until it serves, then {command.verb} it")
    if not worker.serving:
        raise RefusedError(f"{worker.worker_id} is {worker.state}: it takes no requests as it is")
    return worker


def _flippable(registry: Registry, worker_id: str, role: Role) -> Worker:
    worker = known_worker(registry, worker_id)
    if worker.state in ("dead", "quarantined"):
        raise RefusedError(f"{worker_id} is {worker.state}: it can be pinned when it serves again")
    if worker.role != role and not worker.flippable:
        why = worker.why_not_flippable or ("not known to be flippable" if worker.flippable is None else "not flippable")
        raise RefusedError(f"{worker_id} cannot change from {worker.role} to {role}: {why}")
    return worker


def _role(value: str | None) -> Role | None:
    try:
        role: Role = msgspec.convert(value, Literal["prefill", "decode"])
    except msgspec.ValidationError:
        return None
    return role


def split_of(entry: Entry) -> Split:
    """The split that a split override holds."""
    prefill, decode = map(int, (entry.value or "").split(":"))
    return Split(prefill=prefill, decode=decode)
