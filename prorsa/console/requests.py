"""The life of what an operator has asked for: ``requested → accepted → draining → effective``, or how else it ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from prorsa.events import Command, Override, OverrideView

ENDED: Final = frozenset({"rejected", "expired", "released", "unanswered"})
_OVERRIDE_VERBS: Final = {
    "pin": "pin",
    "split": "override",
    "freeze": "freeze",
    "drain": "drain",
    "quarantine": "quarantine",
}
_LASTING_VERBS: Final = frozenset(_OVERRIDE_VERBS.values())


@dataclass(slots=True)
class RequestLife:
    """One request and every state that it has been seen in, in that order.

    ``unanswered`` is the console's own word: nobody has answered in time, so whether the request took effect is
    unknown; the same request sent again is safe.
    """

    request_id: str
    verb: str
    target: str | None
    value: str | None
    owner: str
    reason: str
    states: list[str] = field(default_factory=list)
    entered_ns: list[int | None] = field(default_factory=list)
    """When each of the states was entered, in run time, as far as that is known."""
    detail: str | None = None
    expires_ns: int | None = None
    mine: bool = False

    @property
    def state(self) -> str:
        """The state that it is in."""
        return self.states[-1]

    @property
    def asked_ns(self) -> int | None:
        """When it was first heard of, in run time; None where only a view has told of it."""
        return next((t_ns for t_ns in self.entered_ns if t_ns is not None), None)

    @property
    def lasting(self) -> bool:
        """Whether it puts something in force that ends later: a pin, a split, a freeze, a worker out of the pool."""
        return self.verb in _LASTING_VERBS

    @property
    def pending(self) -> bool:
        """Whether it still has to come into effect."""
        return self.state in ("requested", "draining") or (self.state == "accepted" and self.lasting)

    @property
    def in_force(self) -> bool:
        """Whether it holds now, or is on its way to."""
        return self.lasting and self.state in ("accepted", "draining", "effective")

    def enter(self, state: str, t_ns: int | None = None) -> None:
        """Note a state and when it was entered; the same again is no change."""
        if not self.states or self.state != state:
            self.states.append(state)
            self.entered_ns.append(t_ns)

    def what(self) -> str:
        """The request in a few words: ``pin w3 prefill``."""
        return " ".join(part for part in (self.verb, self.target, self.value) if part)


class Requests:
    """Every request the console knows of, newest last; at most ``limit``, of which those in force are never dropped."""

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self._by_id: dict[str, RequestLife] = {}

    def __iter__(self) -> Iterator[RequestLife]:
        return iter(self._by_id.values())

    def get(self, request_id: str) -> RequestLife | None:
        """The request of that id."""
        return self._by_id.get(request_id)

    def command(self, command: Command, *, mine: bool = False, t_ns: int | None = None) -> RequestLife:
        """Fold a command as it was sent, or as it was answered; once it is further on, that is no news."""
        life = self._by_id.get(command.request_id)
        if life is None:
            life = RequestLife(
                command.request_id, command.verb, command.target, command.value, command.owner, command.reason
            )
            self._add(life)
        life.mine = life.mine or mine
        if not life.states or life.state in ("requested", "unanswered"):
            life.enter(command.state, t_ns)
            life.detail = command.detail or life.detail
        return life

    def unanswered(self, request_id: str, detail: str) -> None:
        """Nobody answered a request of ours in time."""
        life = self._by_id[request_id]
        if life.state == "requested":
            life.enter("unanswered")
            life.detail = detail

    def override(self, override: Override, *, t_ns: int | None = None) -> None:
        """Fold a change in the life of an override."""
        life = self._override(override, t_ns)
        life.expires_ns = override.expires_ns if override.expires_ns is not None else life.expires_ns

    def seen_in_view(self, override: OverrideView, tick_ns: int) -> None:
        """Fold an override as the view lists it, for a console that came later than its events."""
        life = self._override(override, None)
        if override.expires_in_s is not None and life.expires_ns is None:
            life.expires_ns = tick_ns + round(override.expires_in_s * 1e9)

    def _override(self, override: Override | OverrideView, t_ns: int | None) -> RequestLife:
        life = self._by_id.get(override.override_id)
        if life is None:
            verb = _OVERRIDE_VERBS[override.kind]
            life = RequestLife(
                override.override_id, verb, override.target, override.value, override.owner, override.reason
            )
            self._add(life)
        life.enter(override.state, t_ns)
        life.detail = override.detail or life.detail
        return life

    def _add(self, life: RequestLife) -> None:
        self._by_id[life.request_id] = life
        for old in list(self._by_id.values()):
            if len(self._by_id) <= self.limit:
                break
            if old.states and not old.pending and not old.in_force:
                del self._by_id[old.request_id]

    def holding_out(self, worker_id: str) -> RequestLife | None:
        """The drain or quarantine that keeps a worker out of the pool."""
        held = (life for life in self._by_id.values() if life.in_force and life.target == worker_id)
        return next((life for life in held if life.verb in ("drain", "quarantine")), None)

    def in_force(self) -> list[RequestLife]:
        """What holds now or is on its way to, oldest first."""
        return [life for life in self._by_id.values() if life.in_force]

    def pending(self) -> list[RequestLife]:
        """Requests of ours that still have to come into effect."""
        return [life for life in self._by_id.values() if life.mine and life.pending]
