"""The Python side of effects: which are asked for, repeats, old epochs, and their answers."""

from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from prorsa.cluster.effects import Action, Effect, done, failed
from prorsa.cluster.sim import flips
from prorsa.cluster.sim.config import ROLES_FIXED
from prorsa.cluster.sim.narrate import worker_id
from prorsa.cluster.sim.state import (
    EFFECT_DRAIN,
    EFFECT_SETTLE,
    EFFECT_SWITCH,
    EFFECT_WARM,
    ROLE_MIXED,
    ROLES,
    State,
)
from prorsa.events import AnyEvent, EffectResult, WorkerRole

KEPT_ANSWERS: Final = 1024
"""Answers that are kept for repeated effects; the oldest go first."""

_TIMED: Final[dict[Action, int]] = {
    "drain": EFFECT_DRAIN,
    "settle": EFFECT_SETTLE,
    "switch": EFFECT_SWITCH,
    "warm": EFFECT_WARM,
}


class _Memory(Struct):
    answers: dict[str, EffectResult]
    pending: dict[int, Effect]
    seen_epochs: dict[int, int]


class Actuator:
    """Performs effects on the engine's state, each once, and answers each as often as it is asked for.

    An effect that failed is not remembered: asked for again, it is tried again.
    """

    def __init__(self, memory: bytes | None = None) -> None:
        self._memory = _Memory({}, {}, {}) if memory is None else msgspec.msgpack.decode(memory, type=_Memory)

    def dump(self) -> bytes:
        """What a checkpoint keeps of it."""
        return msgspec.msgpack.encode(self._memory)

    def copy(self) -> "Actuator":
        """An independent copy."""
        copied = Actuator()
        memory = self._memory
        copied._memory = _Memory(dict(memory.answers), dict(memory.pending), dict(memory.seen_epochs))
        return copied

    def perform(self, state: State, w: int, effect: Effect) -> list[AnyEvent]:
        """Begin an effect; returns what there is to say at once."""
        memory = self._memory
        if effect.effect_id in memory.answers:
            return [memory.answers[effect.effect_id]]
        if memory.pending.get(w) == effect:
            return []
        if effect.epoch < memory.seen_epochs.get(w, 0):
            return [failed(effect, f"epoch {effect.epoch} is over: {memory.seen_epochs[w]} has been seen")]
        refused = self._refusal(state, w, effect)
        if refused is not None:
            return [refused]
        memory.seen_epochs[w] = effect.epoch
        superseded = self._supersede(state, w, effect)
        return superseded + self._begin(state, w, effect)

    def restart(self, state: State) -> None:
        """Every worker that lives serves again in the role that it has; effects under way are forgotten unanswered."""
        self._memory.pending.clear()
        for w in np.flatnonzero(state.workers["down"] == 0).tolist():
            flips.stop_effect(state, w)
            flips.admit(state, w)

    def answer(self, w: int, ok: int, resumed: int, dropped: int) -> EffectResult:
        """The answer to the effect that was under way on worker ``w``; ``ok`` is -1 where the worker has died."""
        effect = self._memory.pending.pop(w)
        if ok < 0:
            return failed(effect, "the worker has died")
        if not ok:
            return failed(effect, f"not done in {effect.deadline_s:g} s")
        drain, switch = effect.action == "drain", effect.action == "switch"
        return self._keep(effect, resumed=resumed if drain else None, dropped=dropped if switch else None)

    def _refusal(self, state: State, w: int, effect: Effect) -> EffectResult | None:
        worker = state.workers[w]
        role = ROLES[worker["role"]]
        pending = self._memory.pending.get(w)
        if worker["down"]:
            return failed(effect, "the worker is dead")
        if pending is not None and pending.action == "switch":
            return failed(effect, f"the worker is switching to {pending.role}")
        if effect.action in ("admit", "warm") and effect.role != role:
            return failed(effect, f"the worker's role is {role}, not {effect.role}")
        if effect.action != "switch" or effect.role == role:
            return None
        if len(state.profiles) > 1:
            return failed(effect, ROLES_FIXED, safe_to_restore=True)
        if ROLE_MIXED in (ROLES.index(effect.role), worker["role"]):
            return failed(effect, f"SGLang cannot switch from {role} to {effect.role}", safe_to_restore=True)
        if worker["serving"] or not flips.is_idle(state, w):
            return failed(effect, "instance is not idle; drain all requests first", safe_to_restore=True)
        return None

    def _supersede(self, state: State, w: int, effect: Effect) -> list[AnyEvent]:
        """A new effect takes the place of the one under way, which fails."""
        pending = self._memory.pending.pop(w, None)
        if pending is None:
            return []
        flips.stop_effect(state, w)
        return [failed(pending, f"superseded by {effect.effect_id}")]

    def _begin(self, state: State, w: int, effect: Effect) -> list[AnyEvent]:
        role = ROLES.index(effect.role)
        if effect.action == "fence":
            flips.fence(state, w)
            return [self._keep(effect)]
        if effect.action == "admit":
            flips.admit(state, w)
            state.workers["epoch"][w] = effect.epoch
            return [WorkerRole(worker_id=worker_id(w), role=effect.role, epoch=effect.epoch), self._keep(effect)]
        if effect.action == "switch" and state.workers["role"][w] == role:
            return [self._keep(effect, dropped=0)]
        self._memory.pending[w] = effect
        flips.start_effect(state, w, _TIMED[effect.action], role, effect.deadline_s)
        return []

    def _keep(self, effect: Effect, *, resumed: int | None = None, dropped: int | None = None) -> EffectResult:
        result = done(effect, requests_resumed=resumed, kv_tokens_dropped=dropped)
        answers = self._memory.answers
        answers[effect.effect_id] = result
        if len(answers) > KEPT_ANSWERS:
            del answers[next(iter(answers))]
        return result
