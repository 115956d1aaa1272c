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


def flip_cost_s(worker: Worker, cost: CostModel, config: ControlConfig, homes: Homes, prefill_workers: int) -> float:
    """Worker-seconds that a flip costs: the flip itself, and computing again the prefixes that prefill loses by it."""
    tokens = prefixes_lost_tokens(worker, config, homes, prefill_workers)
    if not tokens:
        return config.flip_s
    rate = cost.prefill_tokens_per_s(homes.mean_tokens, 0.0)
    return math.inf if rate is None else config.flip_s + tokens / rate


def prefixes_lost_tokens(worker: Worker, config: ControlConfig, homes: Homes, prefill_workers: int) -> float:
    """Prefixes of live trajectories that prefill must compute again because this worker flips.

    A worker that turns to decode takes those at home there from prefill, whether or not it keeps them itself. One that
    turns to prefill takes its share of the trajectories over, most of which it has not seen; and what comes to be at
    home there is lost when it turns back. Only as much counts as is found cached at present. A shared store saves both.
    """
    if config.cache == "l3":
        return 0.0
    if worker.role == "prefill":
        room = (worker.kv_capacity or 0) + config.host_kv_tokens
        return homes.cached_share * min(homes.tokens(worker.worker_id), room)
    return homes.cached_share * homes.total_tokens / (prefill_workers + 1)


def work_lost_tokens(worker: Worker, config: ControlConfig, homes: Homes) -> float:
    """By what a victim is chosen: KV of running requests, which move, and prefixes that will be asked for again."""
    if worker.load is None:
        return 0
    prefixes = prefixes_lost_tokens(worker, config, homes, 0) if worker.role == "prefill" else 0
    return (worker.load.kv_used or 0) + (worker.load.queued_tokens or 0) + prefixes


def victims(registry: Registry, role: Role) -> list[Worker]:
    """Serving workers of a role, in the registry's order."""
    return [worker for worker in registry if worker.serving and worker.role == role]
