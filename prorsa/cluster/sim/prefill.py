"""Prefill on a rank: first come first served, in chunks that share a budget of tokens a step."""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import hold, keep_copy, locked_stem, reach, release, reusable, share, store
from prorsa.cluster.sim.decode import deliver, fits, wake
from prorsa.cluster.sim.decode_clock import interrupt
from prorsa.cluster.sim.heap import set_timer, step_timer
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.queues import prefill_queue, push, remove
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import FETCH, IDLE, PREFILL, PREFILLING, QUEUED, ROLE_MIXED, TRANSFER, State


@kernel
def receive(s: State, i: int) -> None:
    """A request reaches its prefill rank; in ``l3`` mode the rest of its prefix is fetched from the store first."""
    trajectory = s.trajectories[i]
    rank = trajectory.prefill
    missing = reusable(s, rank, i) - reach(s, rank, i)
    trajectory.fetched = 0
    if missing > 0:
        trajectory.fetched = reusable(s, rank, i)
        trajectory.phase = FETCH
        set_timer(s, i, s.totals[0].now_s + missing * s.params[0].l3_s_per_token)
    else:
        enqueue(s, i)


@kernel
def enqueue(s: State, i: int) -> None:
    """The request stands in the queue of its prefill rank."""
    rank = s.trajectories[i].prefill
    s.trajectories[i].phase = QUEUED
    push(s, prefill_queue(rank), i)
    interrupt(s, s.ranks[rank].worker)  # a colocated worker looks for prefill after each step
    wake(s, s.ranks[rank].worker)


@kernel
def begin_prefill(s: State, w: int) -> bool:
    """Launch a prefill step of all ranks of the worker; False where none has anything that it could compute."""
    first, ranks = w * s.params[0].ranks, s.params[0].ranks
    slowest_s = 0.0
    for rank in range(first, first + ranks):
        slowest_s = max(slowest_s, _fill_step(s, rank), s.ranks[rank].loading * s.params[0].host_s_per_token)
    if slowest_s == 0:
        return False
    s.workers[w].doing = PREFILLING
    set_timer(s, step_timer(s, w), s.totals[0].now_s + slowest_s)
    return True


@kernel
def _fill_step(s: State, rank: int) -> float:
    """Choose the chunks of a rank's step; returns the seconds it takes, 0 where there is none."""
    params, r = s.params[0], s.ranks[rank]
    budget = params.chunk_tokens
    tokens, attention = 0, 0.0
    r.batch, r.loading = 0, 0
    i = s.queues[prefill_queue(rank)].head
    while i >= 0 and budget > 0:
        trajectory = s.trajectories[i]
        if trajectory.phase == QUEUED and not _start(s, i, rank):
            break
        chunk = min(budget, trajectory.prompt - trajectory.position)
        trajectory.chunk = chunk
        attention += chunk * (0.5 * chunk + trajectory.position)
        budget -= chunk
        tokens += chunk
        r.batch += 1
        i = trajectory.next
    r.step_s = 0.0
    if r.batch > 0:
        r.step_s = params.prefill_a_s + params.prefill_b_s * tokens + params.prefill_c_s * attention
    return r.step_s


@kernel
def _start(s: State, i: int, rank: int) -> bool:
    """Match the prefix and take KV for the whole prompt; False where the pool has no room for it yet."""
    trajectory, r = s.trajectories[i], s.ranks[rank]
    mixed = s.workers[r.worker].role == ROLE_MIXED
    held = trajectory.prompt + 1 if mixed else trajectory.prompt
    need = held - locked_stem(s, rank, i)
    free = s.params[0].kv_tokens - r.locked
    if need > free or (mixed and not fits(s, rank, need, free)):
        return False
    cached = max(hold(s, rank, i, held, trajectory.prompt - 1), trajectory.fetched)
    share(s, rank, i, cached)
    r.loading += trajectory.loaded
    if mixed:
        r.held += 1
        log(s, records.ADMITTED, i, trajectory.turn, trajectory.attempt, rank, trajectory.prompt)
    log(s, records.PREFILL_START, i, trajectory.turn, trajectory.attempt, rank)
    trajectory.phase = PREFILL
    trajectory.cached = cached
    trajectory.position = cached
    r.outstanding += trajectory.prompt - cached - trajectory.owed
    trajectory.owed = trajectory.prompt - cached
    s.totals[0].recomputed += max(min(trajectory.lost, trajectory.prompt) - cached, 0)
    trajectory.lost = 0
    return True


@kernel
def end_prefill(s: State, w: int) -> None:
    """The step is over: chunks are computed, prompts that are complete go on to decode."""
    s.workers[w].doing = IDLE
    s.totals[0].route = 1
    for rank in range(w * s.params[0].ranks, (w + 1) * s.params[0].ranks):
        r = s.ranks[rank]
        if r.batch > 0:
            r.busy_s += r.step_s
        i = s.queues[prefill_queue(rank)].head
        while r.batch > 0:
            following = s.trajectories[i].next
            _advance(s, i, rank)
            r.batch -= 1
            i = following


@kernel
def _advance(s: State, i: int, rank: int) -> None:
    trajectory, r = s.trajectories[i], s.ranks[rank]
    context_before = max(trajectory.position, s.params[0].measured_context)
    trajectory.position += trajectory.chunk
    trajectory.owed -= trajectory.chunk
    r.outstanding -= trajectory.chunk
    r.computed += trajectory.chunk
    s.totals[0].again += max(min(trajectory.known, trajectory.position) - trajectory.position + trajectory.chunk, 0)
    share(s, rank, i, trajectory.position)
    s.totals[0].extrapolated += max(trajectory.position - context_before, 0)
    if trajectory.position < trajectory.prompt:
        return
    computed = trajectory.prompt - trajectory.cached
    log(s, records.PREFILL_END, i, trajectory.turn, trajectory.attempt, rank, trajectory.cached, computed)
    store(s, i, trajectory.prompt)
    keep_copy(s, rank, i, trajectory.prompt)
    remove(s, prefill_queue(rank), i)
    if s.workers[r.worker].role == ROLE_MIXED:
        trajectory.prefill = -1
        deliver(s, i, rank)
    else:
        _transfer(s, i, rank)


@kernel
def _transfer(s: State, i: int, rank: int) -> None:
    """Send decode what it does not hold yet; transfers of one worker share its link, one after the other."""
    trajectory, worker = s.trajectories[i], s.workers[s.ranks[rank].worker]
    tokens = trajectory.prompt - trajectory.decode_cached
    start_s = max(s.totals[0].now_s, worker.link_free_s)
    worker.link_free_s = start_s + tokens * s.params[0].transfer_s_per_token
    trajectory.phase = TRANSFER
    arrived_s = worker.link_free_s + s.params[0].transfer_latency_s
    set_timer(s, i, max(arrived_s, trajectory.restored_s))


@kernel
def transferred(s: State, i: int) -> None:
    """The KV has arrived at decode: prefill keeps its copy as cache, and the first token is out."""
    prompt, decode = s.trajectories[i].prompt, s.trajectories[i].decode
    free_prefill(s, i, prompt, prompt)
    share(s, decode, i, prompt)
    keep_copy(s, decode, i, prompt)
    deliver(s, i, decode)


@kernel
def free_prefill(s: State, i: int, held: int, keep: int) -> None:
    """End the prefill leg of a request that holds ``held`` tokens there, of which ``keep`` stay cached."""
    rank = s.trajectories[i].prefill
    release(s, rank, i, held, keep)
    s.trajectories[i].prefill = -1
    s.workers[s.ranks[rank].worker].requests -= 1
    s.totals[0].route = 1
    wake(s, s.ranks[rank].worker)
