"""The guards: what may keep a wanted move from being made, each with its reason.

*Safety* guards hold for every policy and for operators: one worker of each role, a limit on flips at a time, no flip
inside a weight update, on a paused worker, between weight versions or on stale telemetry. *Economy* guards hold for
Prorsa's own policies: a dwell time, and a flip that pays for itself within the decision horizon.
"""

import math
from dataclasses import dataclass, field

from prorsa.clock import seconds
from prorsa.cluster.registry import Registry, Worker
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.homes import Homes
from prorsa.events import GuardEffect, Role


@dataclass(slots=True)
class Verdicts:
    """The guards that had an effect, one line a guard, in the order in which they spoke."""

    effects: list[GuardEffect] = field(default_factory=list)

    def add(self, guard: str, text: str) -> None:
        """Note an effect, once for the same text."""
        effect = GuardEffect(guard=guard, text=text)
        if effect not in self.effects:
            self.effects.append(effect)


def pool_holds(registry: Registry, *, updating_to: str | None, verdicts: Verdicts) -> bool:
    """Whether something about the pool as a whole forbids to start any flip now."""
    if updating_to is not None:
        verdicts.add("weights", f"weights are being updated to {updating_to}: no flip starts")
        return True
    versions = sorted({worker.weight_version for worker in registry if worker.serving and worker.weight_version})
    if len(versions) > 1:
        verdicts.add("versions", f"workers serve weight versions {', '.join(versions)}: no flip starts")
        return True
    return False


def may_flip(worker: Worker, config: ControlConfig, t_ns: int, verdicts: Verdicts, *, economy: bool) -> bool:
    """Whether this serving worker may leave its role now."""
    if worker.flippable is not True:
        verdicts.add("flippable", f"{worker.worker_id} is not flippable: {worker.why_not_flippable or 'unknown why'}")
        return False
    if worker.load is not None and worker.load.paused:
        verdicts.add("paused", f"{worker.worker_id} is paused")
        return False
    age_s = worker.age_s(t_ns)
    if age_s is None or age_s > config.stale_s:
        verdicts.add("stale", f"{worker.worker_id}: last report {'never' if age_s is None else f'{age_s:.0f} s ago'}")
        return False
    if economy and worker.role_since_ns is not None and seconds(t_ns - worker.role_since_ns) < config.dwell_s:
        verdicts.add("dwell", f"{worker.worker_id} changed its role less than {config.dwell_s:g} s ago")
        return False
    return True


def may_turn_back(registry: Registry, from_role: Role, config: ControlConfig, t_ns: int, verdicts: Verdicts) -> bool:
    """Whether workers may leave a role that another has just been given: else a pool swings to and fro."""
    for worker in registry:
        if worker.role == from_role and worker.serving and worker.role_since_ns is not None:
            age_s = seconds(t_ns - worker.role_since_ns)
            if age_s < config.dwell_s:
                verdicts.add("dwell", f"{worker.worker_id} became {from_role} {age_s:.0f} s ago: none turns back yet")
                return False
    return True


def flip_cost_s(worker: Worker, cost: CostModel, config: ControlConfig) -> float:
    """Worker-seconds that a flip costs: the flip itself, and computing again what its cache held, if that is lost.

    What a worker's cache holds is an upper bound of what will be asked for again.
    """
    if config.cache != "cold" or worker.load is None or not worker.load.kv_cached:
        return config.flip_s
    rate = cost.prefill_tokens_per_s(worker.load.kv_cached, 0.0)
    return math.inf if rate is None else config.flip_s + worker.load.kv_cached / rate


def work_lost_tokens(worker: Worker, config: ControlConfig, homes: Homes) -> int:
    """By what a victim is chosen: KV of running requests, which move, and prefixes that will be asked for again.

    A worker that turns to decode takes the prefixes of the trajectories at home there from prefill, whether or not it
    keeps them itself; only a shared store saves them.
    """
    if worker.load is None:
        return 0
    prefixes = 0
    if worker.role == "prefill" and config.cache != "l3":
        room = (worker.kv_capacity or 0) + config.host_kv_tokens
        prefixes = min(homes.tokens(worker.worker_id), room)
    return (worker.load.kv_used or 0) + (worker.load.queued_tokens or 0) + prefixes


def victims(registry: Registry, role: Role) -> list[Worker]:
    """Serving workers of a role, in the registry's order."""
    return [worker for worker in registry if worker.serving and worker.role == role]
