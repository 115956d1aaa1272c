"""From a wanted split to moves of single workers: overrides first, then guards, then the choice of the victims."""

from dataclasses import dataclass, field

from prorsa.clock import seconds
from prorsa.cluster.executor import Executor
from prorsa.cluster.registry import Registry, Worker
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.guards import Verdicts, flip_cost_s, may_flip, may_turn_back, pool_holds, victims, work_lost_tokens
from prorsa.control.homes import Homes
from prorsa.control.overrides import Overrides, split_of
from prorsa.control.policies import Want
from prorsa.control.solver import Bounds
from prorsa.events import GuardEffect, Move, Role, Split


@dataclass(frozen=True, slots=True)
class Pool:
    """All that planning looks at, at one tick."""

    t_ns: int
    registry: Registry
    executor: Executor
    overrides: Overrides
    cost: CostModel
    config: ControlConfig
    updating_to: str | None
    homes: Homes = field(default_factory=Homes)

    @property
    def parallel_flips(self) -> int:
        """How many workers may be in a flip at a time."""
        return self.config.parallel_flips or max(1, len(self.registry) // 4)


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes of a want: the moves to start now and the split that they lead to."""

    chosen: Split
    moves: tuple[Move, ...]
    by_operator: bool
    guards: tuple[GuardEffect, ...]


def make_plan(want: Want, pool: Pool, bounds: Bounds, *, economy: bool, orders_alone: bool = False) -> Plan:
    """Apply overrides and guards to what the policy wants; the economy guards too where ``economy`` says so.

    With ``orders_alone`` a plan that carries out an operator's pin holds no move of the policy: where plans wait for
    approval, an order must not take others along.
    """
    verdicts = Verdicts()
    current = pool.registry.destined()
    if pool.overrides.frozen is not None:
        entry = pool.overrides.frozen
        left_s = seconds((entry.expires_ns or pool.t_ns) - pool.t_ns)
        verdicts.add("freeze", f"frozen by {entry.owner} for {left_s:.0f} s: {entry.reason}")
        return Plan(current, (), by_operator=False, guards=tuple(verdicts.effects))
    if pool_holds(pool.registry, updating_to=pool.updating_to, verdicts=verdicts):
        return Plan(current, (), by_operator=False, guards=tuple(verdicts.effects))
    pinned = _pin_moves(pool, verdicts)
    target, by_operator = _target(want, pool, bounds, verdicts)
    shift = target.prefill - current.prefill - _prefill_change(pinned)
    economy = economy and not by_operator
    moves = list(pinned)
    if by_operator or not (orders_alone and pinned):
        taken = {move.worker_id for move in pinned}
        moves += _split_moves(shift, pool, want, taken, verdicts, economy=economy)
    moves = _within_limit(moves, pool, verdicts)
    if economy and not _pays([move for move in moves if move not in pinned], want, pool, verdicts):
        moves = [move for move in moves if move in pinned]
    change = _prefill_change(moves)
    chosen = Split(prefill=current.prefill + change, decode=current.decode - change, mixed=current.mixed)
    return Plan(chosen, tuple(moves), by_operator or bool(pinned), tuple(verdicts.effects))


def still_allowed(moves: tuple[Move, ...], pool: Pool) -> tuple[tuple[Move, ...], tuple[GuardEffect, ...]]:
    """Of moves planned earlier, those that the safety guards allow now, and what speaks against the others."""
    verdicts = Verdicts()
    if pool_holds(pool.registry, updating_to=pool.updating_to, verdicts=verdicts):
        return (), tuple(verdicts.effects)
    ready = [
        move
        for move in moves
        if (worker := pool.registry.get(move.worker_id)) is not None
        and worker.serving
        and worker.role == move.from_role
        and pool.overrides.pinned(worker.worker_id) in (None, move.to_role)
        and may_flip(worker, pool.config, pool.t_ns, verdicts, economy=False)
    ]
    return tuple(_within_limit(ready, pool, verdicts)), tuple(verdicts.effects)


def _pin_moves(pool: Pool, verdicts: Verdicts) -> list[Move]:
    moves: list[Move] = []
    for entry in pool.overrides.pins():
        worker = pool.registry.get(entry.target or "")
        role = pool.overrides.pinned(entry.target or "")
        if worker is None or role is None or not worker.serving or worker.role == role:
            continue
        verdicts.add("pin", f"{worker.worker_id} is pinned to {role} by {entry.owner}: {entry.reason}")
        if may_flip(worker, pool.config, pool.t_ns, verdicts, economy=False):
            moves.append(_move(worker, role, f"pinned by {entry.owner}: {entry.reason}"))
    return moves


def _target(want: Want, pool: Pool, bounds: Bounds, verdicts: Verdicts) -> tuple[Split, bool]:
    entry = pool.overrides.split
    wanted = want.split if entry is None else split_of(entry)
    if entry is not None:
        verdicts.add("override", f"split held at {wanted} by {entry.owner}: {entry.reason}")
    prefill = min(max(wanted.prefill, bounds.low), bounds.high)
    target = Split(prefill=prefill, decode=bounds.workers - prefill)
    if prefill != wanted.prefill:
        verdicts.add("one_of_each", f"{wanted} becomes {target}: {bounds.low} to {bounds.high} may be prefill")
    return target, entry is not None


def _split_moves(
    shift: int, pool: Pool, want: Want, taken: set[str], verdicts: Verdicts, *, economy: bool
) -> list[Move]:
    """The moves of ``shift`` workers to prefill (to decode if negative), those first that lose the least work."""
    if shift == 0:
        return []
    from_role: Role = "decode" if shift > 0 else "prefill"
    to_role: Role = "prefill" if shift > 0 else "decode"
    if economy and not may_turn_back(pool.registry, from_role, pool.config, pool.t_ns, verdicts):
        return []
    free = [
        worker
        for worker in victims(pool.registry, from_role)
        if worker.worker_id not in taken
        and pool.overrides.pinned(worker.worker_id) is None
        and may_flip(worker, pool.config, pool.t_ns, verdicts, economy=economy)
    ]
    free.sort(key=lambda worker: work_lost_tokens(worker, pool.config, pool.homes))
    return [_move(worker, to_role, want.reason) for worker in free[: abs(shift)]]


def _within_limit(moves: list[Move], pool: Pool, verdicts: Verdicts) -> list[Move]:
    room = max(0, pool.parallel_flips - len(pool.executor))
    if len(moves) > room:
        verdicts.add("parallel_flips", f"{len(moves)} moves wanted, {pool.parallel_flips} flips at a time allowed")
    moves = moves[:room]
    return _one_of_each(moves, pool, verdicts)


def _one_of_each(moves: list[Move], pool: Pool, verdicts: Verdicts) -> list[Move]:
    """Keep one *serving* worker of each role while the others are on their way."""
    kept: list[Move] = []
    serving = {role: len(victims(pool.registry, role)) for role in ("prefill", "decode")}
    for move in moves:
        if serving[move.from_role] <= 1:
            verdicts.add("one_of_each", f"{move.worker_id} is the last serving {move.from_role} worker")
            continue
        serving[move.from_role] -= 1
        kept.append(move)
    return kept


def _pays(moves: list[Move], want: Want, pool: Pool, verdicts: Verdicts) -> bool:
    if not moves or want.relief_s is None:
        return True
    workers = [worker for move in moves if (worker := pool.registry.get(move.worker_id))]
    prefill_workers = pool.registry.destined().prefill
    cost_s = sum(flip_cost_s(worker, pool.cost, pool.config, pool.homes, prefill_workers) for worker in workers)
    if want.relief_s > cost_s:
        return True
    verdicts.add(
        "payback",
        f"{len(moves)} flip(s) cost {cost_s:.1f} worker-seconds and save {want.relief_s:.1f} "
        f"within {pool.config.decision_horizon_s:g} s",
    )
    return False


def _prefill_change(moves: list[Move]) -> int:
    return sum(1 if move.to_role == "prefill" else -1 for move in moves)


def _move(worker: Worker, to_role: Role, reason: str) -> Move:
    return Move(worker_id=worker.worker_id, from_role=worker.role, to_role=to_role, reason=reason)
