"""Prorsa's router, the same for every policy: first come first served, affine to where the prefix is cached.

A request goes to the prefill rank where the least is to be computed before its first token: the work that is there or
waits for it, plus the part of its prompt that this rank does not hold. So it stays at home unless the queue there is
worse than elsewhere by more than what home saves. First turns go where the fewest live trajectories are at home; where
their group shares a prompt, to where that was sent, by the same rule as later turns.

A request waits in the router while its rank has enough to do. Decode reserves KV before prefill starts, and where no
decode rank can, all that arrived later wait too, as they do in SGLang's own queue: a large request would starve else.
"""

from typing import Final

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import hold, locked_stem, on_device, reach, reusable
from prorsa.cluster.sim.config import RESERVED_DECODE_TOKENS
from prorsa.cluster.sim.decode import fits
from prorsa.cluster.sim.decode_clock import limit_block, settle, settle_where_cached, spare, unbooked_steps
from prorsa.cluster.sim.holders import next_holder
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.prefill import receive
from prorsa.cluster.sim.queues import ROUTER, insert_after, prefill_queue, remove, retracted_queue
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import DECODING, READY, ROLE_DECODE, ROLE_MIXED, State

_NONE: Final = -1
_CLOSED: Final = 1 << 60
"""The load of a rank that takes no prefill."""


@kernel
def route(s: State) -> None:
    """Send every request that can go."""
    s.totals[0].route = 0
    i = s.queues[ROUTER].head
    if i < 0 or s.totals[0].updating != 0:
        return
    open_ranks, least = _open_ranks(s), _NONE
    while i >= 0 and open_ranks > 0:
        following = s.trajectories[i].next
        if least == _NONE:
            least = _least_loaded(s)
        rank = _choose_prefill(s, i, least)
        uncached = s.trajectories[i].prompt - _expected(s, rank, i)
        if s.ranks[rank].blocked == 0:
            decode = rank if _is_mixed(s, rank) else _choose_decode(s, i)
            if decode == _NONE:
                return
            if _is_mixed(s, rank) and not _has_room(s, rank, i):
                s.ranks[rank].blocked = 1
            else:
                _submit(s, i, rank, decode, uncached)
                s.ranks[rank].blocked = s.ranks[rank].outstanding >= _bound_tokens(s, rank)
            open_ranks -= s.ranks[rank].blocked
        s.loads[rank] += uncached
        if rank == least:
            least = _NONE
        i = following


@kernel
def _open_ranks(s: State) -> int:
    """Prefill ranks that take requests now; sets the router's scratch fields of all ranks."""
    count = 0
    for w in range(len(s.workers)):
        worker = s.workers[w]
        serves = worker.serving != 0 and worker.role != ROLE_DECODE
        for rank in range(worker.first_rank, worker.end_rank):
            s.loads[rank] = _CLOSED
            if serves:
                r = s.ranks[rank]
                s.loads[rank] = r.outstanding
                r.blocked = r.outstanding >= _bound_tokens(s, rank)
                count += r.blocked == 0
    return count


@kernel
def _least_loaded(s: State) -> int:
    """The first rank of those with the least to compute, what waits in the router for it counted too."""
    least = 0
    for rank in range(1, len(s.loads)):
        if s.loads[rank] < s.loads[least]:
            least = rank
    return least


@kernel
def _bound_tokens(s: State, rank: int) -> int:
    return s.profiles[s.ranks[rank].profile].bound_tokens


@kernel
def _is_mixed(s: State, rank: int) -> bool:
    return s.workers[s.ranks[rank].worker].role == ROLE_MIXED


@kernel
def _choose_prefill(s: State, i: int, least: int) -> int:
    """The prefill rank with the least to compute before the first token of ``i``; there is one that serves.

    Besides the ranks that hold something of its context, only the ``least`` loaded one can be it. Where it is the same
    home is chosen, else the first.
    """
    home = _home(s, i)
    if home < 0:
        return _fewest_homes(s, i)
    best, best_work = least, _work(s, least, i)
    rank = next_holder(s, i, -1)
    while rank >= 0:
        if s.loads[rank] < best_work:  # at least one token is computed, whatever it holds of the prompt
            work = _work(s, rank, i)
            if work < best_work or (work == best_work and rank < best):
                best, best_work = rank, work
        rank = next_holder(s, i, rank)
    return home if s.loads[home] < best_work and _work(s, home, i) <= best_work else best


@kernel
def _work(s: State, rank: int, i: int) -> int:
    """Tokens that ``rank`` computes before the first token of ``i``, if that is sent there."""
    if s.workers[s.ranks[rank].worker].doing == DECODING and on_device(s, rank, i) > 0:
        settle(s, rank)
    return s.loads[rank] + s.trajectories[i].prompt - _expected(s, rank, i)


@kernel
def _fewest_homes(s: State, i: int) -> int:
    """Of the ranks that take requests now, that where the fewest live trajectories are at home, then the least work."""
    best, best_homes, best_work = _NONE, 0, 0
    for rank in range(len(s.ranks)):
        r = s.ranks[rank]
        if s.loads[rank] == _CLOSED or r.blocked != 0:
            continue
        if best != _NONE and (r.homes > best_homes or (r.homes == best_homes and s.loads[rank] >= best_work)):
            continue
        work = _work(s, rank, i)
        if best == _NONE or r.homes < best_homes or work < best_work:
            best, best_homes, best_work = rank, r.homes, work
    return best


@kernel
def _home(s: State, i: int) -> int:
    """The prefill rank that ``i`` was sent to last; before its first turn that of its group's latest; -1 for none."""
    trajectory = s.trajectories[i]
    if trajectory.home >= 0 or trajectory.shared == 0:
        return trajectory.home
    rank = s.groups[s.plan[i].group].rank
    if rank < 0:
        return _NONE
    worker = s.workers[s.ranks[rank].worker]
    return rank if worker.serving != 0 and worker.role != ROLE_DECODE else _NONE


@kernel
def _expected(s: State, rank: int, i: int) -> int:
    """Tokens of the prompt of ``i`` that ``rank`` need not compute, by when it comes to it: its group may be first."""
    tokens = reusable(s, rank, i)
    trajectory = s.trajectories[i]
    if trajectory.home < 0 and trajectory.shared > 0 and s.groups[s.plan[i].group].rank == rank:
        tokens = max(tokens, min(trajectory.shared, trajectory.prompt - 1))
    return tokens


@kernel
def _has_room(s: State, rank: int, i: int) -> bool:
    """Whether a colocated rank could start ``i`` soon, after what waits there already."""
    r = s.ranks[rank]
    waiting = s.queues[prefill_queue(rank)].size
    if r.held + waiting == 0:
        return True
    margin = RESERVED_DECODE_TOKENS * (r.held + waiting + 1)
    need = s.trajectories[i].prompt + 1 - locked_stem(s, rank, i)
    return r.held + waiting < r.max_running and need + margin <= spare(s, rank)


@kernel
def _choose_decode(s: State, i: int) -> int:
    """The decode rank with the most KV to spare, what it holds of the prompt counted too; -1 where none has room."""
    settle_where_cached(s, i)
    prompt = s.trajectories[i].prompt
    best, best_room = _NONE, 0
    for w in range(len(s.workers)):
        worker = s.workers[w]
        if worker.serving == 0 or worker.role != ROLE_DECODE:
            continue
        unbooked = unbooked_steps(s, w)
        for rank in range(worker.first_rank, worker.end_rank):
            if s.queues[retracted_queue(rank)].size > 0:
                continue
            r = s.ranks[rank]
            spare_tokens = r.kv_tokens - r.locked - r.running * unbooked
            room = spare_tokens - RESERVED_DECODE_TOKENS * r.held + min(reach(s, rank, i), prompt)
            need = prompt + 1 - locked_stem(s, rank, i)
            if fits(s, rank, need, spare_tokens) and (best == _NONE or room > best_room):
                best, best_room = rank, room
    return best


@kernel
def _submit(s: State, i: int, prefill: int, decode: int, uncached: int) -> None:
    trajectory = s.trajectories[i]
    remove(s, ROUTER, i)
    trajectory.prefill, trajectory.decode = prefill, decode
    trajectory.owed = uncached
    s.ranks[prefill].outstanding += uncached
    s.workers[s.ranks[prefill].worker].requests += 1
    turn, attempt = trajectory.turn, trajectory.attempt
    if trajectory.home < 0 and trajectory.shared > 0:
        s.groups[s.plan[i].group].rank = prefill
    _move_home(s, i, prefill)
    log(s, records.SUBMIT, i, turn, attempt, trajectory.prompt, uncached, prefill, decode)
    if prefill != decode:
        _reserve(s, i, decode)
    receive(s, i)


@kernel
def _move_home(s: State, i: int, rank: int) -> None:
    trajectory = s.trajectories[i]
    if trajectory.home >= 0:
        s.ranks[trajectory.home].homes -= 1
    trajectory.home = rank
    s.ranks[rank].homes += 1


@kernel
def _reserve(s: State, i: int, rank: int) -> None:
    """Reserve KV on decode for the prompt and the first token that comes with it."""
    trajectory, r = s.trajectories[i], s.ranks[rank]
    settle(s, rank)
    trajectory.decode_cached = hold(s, rank, i, trajectory.prompt + 1, trajectory.prompt)
    trajectory.restored_s = s.totals[0].now_s + trajectory.loaded * s.profiles[r.profile].host_s_per_token
    r.held += 1
    s.workers[r.worker].requests += 1
    limit_block(s, r.worker)
    log(s, records.ADMITTED, i, trajectory.turn, trajectory.attempt, rank, trajectory.prompt)


@kernel
def readmit(s: State, i: int) -> None:
    """A cancelled request is back: it takes the place in the router's queue that its arrival gives it."""
    trajectory = s.trajectories[i]
    trajectory.phase = READY
    place = s.queues[ROUTER].tail
    while place >= 0 and s.trajectories[place].arrival_s > trajectory.arrival_s:
        place = s.trajectories[place].prev
    insert_after(s, ROUTER, place, i)
    s.totals[0].route = 1
