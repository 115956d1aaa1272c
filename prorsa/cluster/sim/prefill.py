"""Prefill on a rank: first come first served, in chunks that share a budget of tokens a step.

The ranks of a worker step together (SGLang 0.5.23, DP attention: ``managers/scheduler.py``, ``get_next_batch_to_run``;
``managers/scheduler_components/dp_attn.py``): each takes prefill first if it has any; one that has none runs its decode
batch in the same step, as extends of one token or eagerly, never by the decode graph; one that has neither runs an idle
batch.
"""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import evict, hold, keep_copy, locked_stem, reach, release, reusable, share, store
from prorsa.cluster.sim.costs import PREFILL_STEP, chunk_attention_s, decode_attention_s, experts_s
from prorsa.cluster.sim.decode import advance_batch, deliver, finish_due, fits, gather_batch, wake
from prorsa.cluster.sim.decode_clock import interrupt
from prorsa.cluster.sim.heap import set_timer, step_timer
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.queues import prefill_queue, push, remove
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import FETCH, IDLE, PREFILL, PREFILLING, QUEUED, ROLE_MIXED, TRANSFER, State


@kernel
def receive(s: State, i: int) -> None:
    """A request reaches its prefill worker: HTTP and tokenizer come before the queue, and in ``l3`` mode the fetch of
    the rest of its prefix from the store."""
    trajectory = s.trajectories[i]
    rank = trajectory.prefill
    missing = reusable(s, rank, i) - reach(s, rank, i)
    trajectory.fetched = 0
    delay_s = s.params[0].request_s
    if missing > 0:
        trajectory.fetched = reusable(s, rank, i)
        delay_s += missing * s.params[0].l3_s_per_token
    if delay_s > 0:
        trajectory.phase = FETCH
        set_timer(s, i, s.totals[0].now_s + delay_s)
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
    """Launch a step in which ranks of the worker prefill; False where none has anything that it could compute.

    The ranks of a colocated worker that have no prompt to compute decode one token in it, if they run anything; the
    others idle. The batch of a rank that prefills waits. What a rank loads from its host tier is loaded layer by layer
    beside the step, which takes no less than that.
    """
    worker = s.workers[w]
    tokens, slowest_s, loading_s = 0, 0.0, 0.0
    for rank in range(worker.first_rank, worker.end_rank):
        r = s.ranks[rank]
        r.decodes = 0
        tokens += _fill_step(s, rank)
        slowest_s = max(slowest_s, r.step_attention_s)
        loading_s = max(loading_s, r.loading * s.profiles[r.profile].host_s_per_token)
    if tokens == 0:
        return False
    if worker.role == ROLE_MIXED:
        for rank in range(worker.first_rank, worker.end_rank):
            if s.ranks[rank].batch == 0:
                tokens += _decode_beside(s, rank)
                slowest_s = max(slowest_s, s.ranks[rank].step_attention_s)
    worker.block_experts_s = experts_s(s, w, PREFILL_STEP, tokens)
    worker.block_base_s = max(slowest_s + worker.block_experts_s, loading_s)
    worker.doing = PREFILLING
    set_timer(s, step_timer(s, w), s.totals[0].now_s + worker.block_base_s)
    return True


@kernel
def _fill_step(s: State, rank: int) -> int:
    """Choose the chunks of a rank's step; returns their tokens."""
    r = s.ranks[rank]
    profile = s.profiles[r.profile]
    budget = profile.chunk_tokens
    r.batch, r.loading = 0, 0
    r.step_attention_s = 0.0
    i = s.queues[prefill_queue(rank)].head
    while i >= 0 and budget > 0:
        trajectory = s.trajectories[i]
        if trajectory.phase == QUEUED and not _start(s, i, rank):
            break
        chunk = min(budget, trajectory.prompt - trajectory.position)
        trajectory.chunk = chunk
        r.step_attention_s += chunk_attention_s(s, rank, chunk, trajectory.position)
        budget -= chunk
        r.batch += 1
        i = trajectory.next
    if r.batch > 0:
        r.step_attention_s = (r.step_attention_s + profile.prefill_a_s) * s.workers[r.worker].slow
    return profile.chunk_tokens - budget


@kernel
def _decode_beside(s: State, rank: int) -> int:
    """Let a rank decode one token in a step in which others prefill; returns the tokens."""
    gather_batch(s, rank)
    r = s.ranks[rank]
    if r.running == 0:
        return 0
    r.decodes = 1
    r.step_attention_s = decode_attention_s(s, rank)
    r.locked += r.running
    evict(s, rank)
    return r.running


@kernel
def _start(s: State, i: int, rank: int) -> bool:
    """Match the prefix and take KV for the whole prompt; False where the pool has no room for it yet."""
    trajectory, r = s.trajectories[i], s.ranks[rank]
    mixed = s.workers[r.worker].role == ROLE_MIXED
    held = trajectory.prompt + 1 if mixed else trajectory.prompt
    need = held - locked_stem(s, rank, i)
    free = r.kv_tokens - r.locked
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
    """The step is over: chunks are computed, prompts that are complete go on to decode, who decoded has a token."""
    worker = s.workers[w]
    worker.doing = IDLE
    worker.experts_s += worker.block_experts_s
    worker.step_s += worker.block_base_s
    worker.decode_first = s.params[0].prefill_interval
    s.totals[0].route = 1
    for rank in range(worker.first_rank, worker.end_rank):
        if s.ranks[rank].decodes != 0:
            s.ranks[rank].decodes = 0
            advance_batch(s, rank, 1)
            finish_due(s, rank)
        elif s.ranks[rank].batch > 0:
            _end_chunks(s, rank)


@kernel
def _end_chunks(s: State, rank: int) -> None:
    r = s.ranks[rank]
    r.attention_s += r.step_attention_s
    i = s.queues[prefill_queue(rank)].head
    while r.batch > 0:
        following = s.trajectories[i].next
        _advance(s, i, rank)
        r.batch -= 1
        i = following


@kernel
def _advance(s: State, i: int, rank: int) -> None:
    trajectory, r = s.trajectories[i], s.ranks[rank]
    context_before = max(trajectory.position, s.profiles[r.profile].measured_context)
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
