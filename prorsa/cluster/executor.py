"""The role-switch executor: a flip as a state machine, without I/O.

``serving → fenced → draining → settling → switching → warming → serving`` in the new role. Each state asks for one
:class:`~prorsa.cluster.effects.Effect` and is left when its result arrives. What is not answered in time is asked for
again; what fails before the role has changed is undone (``restored``: serving in the old role), what fails after it,
or is not known to be safe, is taken out of service (``quarantined``).

An operator may take a worker out without a new role: ``serving → fenced (→ draining) → quarantined``, and have it back:
``quarantined → warming → serving``, after a canary as at the end of a flip.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import Struct

from prorsa.clock import NS_PER_S, seconds
from prorsa.cluster.effects import Action, Effect
from prorsa.cluster.registry import Worker
from prorsa.events import AnyEvent, EffectResult, Flip, Role, WorkerState

_ACTIONS: Final[dict[WorkerState, Action]] = {
    "fenced": "fence",
    "draining": "drain",
    "settling": "settle",
    "switching": "switch",
    "warming": "warm",
}
_AFTER: Final[dict[Action, WorkerState]] = {
    "fence": "draining",
    "drain": "settling",
    "settle": "switching",
    "switch": "warming",
}


Aim = Literal["flip", "drain", "fence", "return"]
"""What becomes of a worker: another role, out of the pool (emptied or not), or back into it."""


class ExecutorConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long each state may take, in run seconds, before its effect is asked for again, and how often it is.

    The defaults leave room for an engine that ends a long step, and stay under SGLang's own 30 s flush time-out.
    """

    fence_s: float = 5.0
    drain_s: float = 30.0
    settle_s: float = 20.0
    switch_s: float = 30.0
    warm_s: float = 15.0
    admit_s: float = 5.0
    tries: int = 3

    def deadline_s(self, action: Action) -> float:
        """The time that one try of ``action`` may take."""
        limits: dict[Action, float] = {
            "fence": self.fence_s,
            "drain": self.drain_s,
            "settle": self.settle_s,
            "switch": self.switch_s,
            "warm": self.warm_s,
            "admit": self.admit_s,
        }
        return limits[action]


@dataclass(slots=True)
class Actions:
    """What a transition gives: events to journal first, then effects to perform."""

    events: list[AnyEvent] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def add(self, other: "Actions") -> None:
        """Append what another transition gave."""
        self.events += other.events
        self.effects += other.effects


@dataclass(slots=True)
class _Flip:
    flip_id: str
    worker: Worker
    from_role: Role
    to_role: Role
    epoch: int
    reason: str
    decision_id: int | None
    started_ns: int
    state: WorkerState
    action: Action
    asked_ns: int
    tries: int = 1
    requests_resumed: int = 0
    kv_tokens_dropped: int = 0
    undo_reason: str | None = None
    aim: Aim = "flip"

    @property
    def last_action(self) -> Action:
        """The action after which it has reached what it is for."""
        last: dict[Aim, Action] = {"flip": "admit", "drain": "drain", "fence": "fence", "return": "admit"}
        return "admit" if self.undo_reason else last[self.aim]

    @property
    def effect_id(self) -> str:
        suffix = "-undo" if self.undo_reason else ""
        return f"{self.flip_id}/{self.action}{suffix}"


class Executor:
    """All flips under way, at most one a worker."""

    def __init__(self, config: ExecutorConfig) -> None:
        self.config = config
        self._flips: dict[str, _Flip] = {}

    def __len__(self) -> int:
        return len(self._flips)

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._flips

    def under_way(self, to_role: Role) -> int:
        """How many flips to ``to_role`` are under way."""
        return sum(flip.to_role == to_role for flip in self._flips.values())

    def outstanding(self) -> list[Effect]:
        """The effects that await a result, to be asked for again after a restart of the controller."""
        return [self._effect(flip) for flip in self._flips.values()]

    def start(self, worker: Worker, to_role: Role, *, reason: str, decision_id: int | None, t_ns: int) -> Actions:
        """Begin to flip a serving worker; the caller has asked the guards."""
        assert worker.serving, worker
        flip = self._begin(worker, to_role, "flip", reason, decision_id, t_ns)
        worker.to_role = to_role
        return self._enter(flip, "fenced", t_ns)

    def take_out(self, worker: Worker, *, empty: bool, reason: str, t_ns: int) -> Actions:
        """Take a serving worker out of the pool; ``empty``: its requests move on, else they end where they are."""
        assert worker.serving, worker
        flip = self._begin(worker, worker.role, "drain" if empty else "fence", reason, None, t_ns)
        return self._enter(flip, "fenced", t_ns)

    def bring_back(self, worker: Worker, *, reason: str, t_ns: int) -> Actions:
        """Try a quarantined worker with a canary and let it serve again in its role."""
        assert worker.state == "quarantined", worker
        return self._enter(self._begin(worker, worker.role, "return", reason, None, t_ns), "warming", t_ns)

    def _begin(self, worker: Worker, to_role: Role, aim: Aim, reason: str, decision_id: int | None, t_ns: int) -> _Flip:
        assert worker.worker_id not in self._flips, worker
        epoch = worker.epoch + 1
        flip = _Flip(
            flip_id=f"{worker.worker_id}@{epoch}",
            worker=worker,
            from_role=worker.role,
            to_role=to_role,
            epoch=epoch,
            reason=reason,
            decision_id=decision_id,
            started_ns=t_ns,
            state="fenced",
            action="fence",
            asked_ns=t_ns,
            aim=aim,
        )
        self._flips[worker.worker_id] = flip
        return flip

    def on_result(self, result: EffectResult, t_ns: int) -> Actions:
        """Take the result of an effect; results of effects that nobody waits for any more are ignored."""
        flip = self._flips.get(result.worker_id)
        if flip is None or result.effect_id != flip.effect_id:
            return Actions()
        flip.requests_resumed += result.requests_resumed or 0
        flip.kv_tokens_dropped += result.kv_tokens_dropped or 0
        return self._succeed(flip, t_ns) if result.ok else self._fail(flip, result, t_ns)

    def on_worker_gone(self, worker: Worker, t_ns: int, reason: str) -> Actions:
        """A worker has died, or came back afresh, in the middle of its flip."""
        flip = self._flips.pop(worker.worker_id, None)
        if flip is None:
            return Actions()
        flip.reason = reason
        worker.to_role = None
        # A worker that comes back starts with an epoch that no effect of this flip can reach.
        worker.epoch = max(worker.epoch, flip.epoch)
        return Actions(events=[self._event(flip, "dead", t_ns)])

    def on_tick(self, t_ns: int) -> Actions:
        """Ask again for what was not answered in time; give up after the configured number of tries."""
        actions = Actions()
        for flip in list(self._flips.values()):
            if seconds(t_ns - flip.asked_ns) < self.config.deadline_s(flip.action):
                continue
            if flip.tries < self.config.tries:
                flip.tries, flip.asked_ns = flip.tries + 1, t_ns
                actions.effects.append(self._effect(flip))
            else:
                actions.add(self._give_up(flip, t_ns))
        return actions

    def _succeed(self, flip: _Flip, t_ns: int) -> Actions:
        if flip.action == flip.last_action and flip.action != "admit":
            return self._finish(flip, "quarantined", t_ns)
        if flip.action == "warm":
            return self._ask(flip, "admit", t_ns)
        if flip.action == "admit":
            return self._finish(flip, "restored" if flip.undo_reason else "serving", t_ns)
        return self._enter(flip, _AFTER[flip.action], t_ns)

    def _fail(self, flip: _Flip, result: EffectResult, t_ns: int) -> Actions:
        cause = f"{flip.action} failed: {result.detail or 'no detail given'}"
        if flip.aim == "drain" and flip.action == "drain":
            return self._quarantine(flip, cause, t_ns)  # what it still holds ends there; it was to leave the pool
        harmless = flip.action in ("fence", "drain", "settle") or (
            flip.action == "switch" and result.safe_to_restore is True
        )
        if harmless:
            return self._undo(flip, cause, t_ns)
        if flip.action in ("warm", "admit") and flip.tries < self.config.tries:
            flip.tries, flip.asked_ns = flip.tries + 1, t_ns
            return Actions(effects=[self._effect(flip)])
        return self._quarantine(flip, cause, t_ns)

    def _give_up(self, flip: _Flip, t_ns: int) -> Actions:
        cause = f"{flip.action} not answered {flip.tries} times in {self.config.deadline_s(flip.action):g} s each"
        if flip.aim == "drain" and flip.action == "drain":
            return self._quarantine(flip, cause, t_ns)
        if flip.action in ("fence", "drain", "settle"):
            return self._undo(flip, cause, t_ns)
        return self._quarantine(flip, cause, t_ns)

    def _undo(self, flip: _Flip, cause: str, t_ns: int) -> Actions:
        flip.undo_reason = flip.reason = cause
        return self._ask(flip, "admit", t_ns)

    def _quarantine(self, flip: _Flip, cause: str, t_ns: int) -> Actions:
        flip.reason = cause
        return self._finish(flip, "quarantined", t_ns)

    def _finish(self, flip: _Flip, state: WorkerState, t_ns: int) -> Actions:
        del self._flips[flip.worker.worker_id]
        worker = flip.worker
        worker.to_role = None
        worker.epoch = max(worker.epoch, flip.epoch)
        worker.state = "quarantined" if state == "quarantined" else "serving"
        if state == "serving":
            worker.role = flip.to_role
        if state != "quarantined":
            worker.role_since_ns = t_ns
        return Actions(events=[self._event(flip, state, t_ns)])

    def _enter(self, flip: _Flip, state: WorkerState, t_ns: int) -> Actions:
        flip.state = flip.worker.state = state
        actions = self._ask(flip, _ACTIONS[state], t_ns)
        actions.events.insert(0, self._event(flip, state, t_ns))
        return actions

    def _ask(self, flip: _Flip, action: Action, t_ns: int) -> Actions:
        flip.action, flip.asked_ns, flip.tries = action, t_ns, 1
        return Actions(effects=[self._effect(flip)])

    def _effect(self, flip: _Flip) -> Effect:
        changed = flip.action in ("switch", "warm", "admit") and not flip.undo_reason
        return Effect(
            effect_id=flip.effect_id,
            worker_id=flip.worker.worker_id,
            action=flip.action,
            role=flip.to_role if changed else flip.from_role,
            epoch=flip.epoch,
            deadline_s=self.config.deadline_s(flip.action),
        )

    def _event(self, flip: _Flip, state: WorkerState, t_ns: int) -> Flip:
        return Flip(
            flip_id=flip.flip_id,
            worker_id=flip.worker.worker_id,
            from_role=flip.from_role,
            to_role=flip.to_role,
            epoch=flip.epoch,
            state=state,
            reason=flip.reason,
            tick_ns=t_ns,
            decision_id=flip.decision_id,
            elapsed_s=max(0, t_ns - flip.started_ns) / NS_PER_S,
            requests_resumed=flip.requests_resumed,
            kv_tokens_dropped=flip.kv_tokens_dropped,
        )
