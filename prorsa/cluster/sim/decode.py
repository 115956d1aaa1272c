"""Decode on a rank: who is in the batch, who joins and leaves, and what happens when KV runs out."""

from typing import Final

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import hold, reach, release, share, store, trim_stems
from prorsa.cluster.sim.config import RESERVED_DECODE_TOKENS, RETRACT_DECODE_STEPS
from prorsa.cluster.sim.costs import DECODE_STEP, decode_attention_s, decode_slope_s, experts_s
from prorsa.cluster.sim.decode_clock import book, interrupt, series_s
from prorsa.cluster.sim.heap import set_timer, step_timer
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.lifecycle import answered
from prorsa.cluster.sim.queues import insert_after, join_queue, prefill_queue, push, remove, retracted_queue
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import (
    DECODE,
    DECODING,
    IDLE,
    JOIN,
    PREFILL,
    QUEUED,
    RETRACTED,
    ROLE_MIXED,
    SWAP_IN,
    State,
)

_UNLIMITED: Final = 1 << 60


@kernel
def fits(s: State, rank: int, tokens: int, spare_tokens: int) -> bool:
    """Whether decode would reserve ``tokens`` for one more request: with a margin for all that it holds."""
    r = s.ranks[rank]
    if r.held >= r.max_running:
        return False
    margin = RESERVED_DECODE_TOKENS * (r.held + 1) if r.held > 0 else 0
    return tokens + margin <= spare_tokens


@kernel
def deliver(s: State, i: int, rank: int) -> None:
    """The first token of the request's attempt is out: it joins the batch of ``rank``, or is answered by that token.

    The caller holds the prompt's KV and that of the token.
    """
    trajectory = s.trajectories[i]
    trajectory.output = 1
    s.ranks[rank].output += 1
    log(s, records.FIRST_TOKEN, i, trajectory.turn, trajectory.attempt, rank)
    if trajectory.kept + 1 == s.turns[trajectory.turn].output:
        _finish(s, i, rank)
    elif s.workers[s.ranks[rank].worker].role == ROLE_MIXED:
        join(s, i, rank)
    else:
        trajectory.phase = JOIN
        push(s, join_queue(rank), i)
        interrupt(s, s.ranks[rank].worker)
        wake(s, s.ranks[rank].worker)


@kernel
def wake(s: State, w: int) -> None:
    """Let an idle worker look for work once the event is over."""
    s.kicked[w] = 1
    s.totals[0].kick = 1


@kernel
def join(s: State, i: int, rank: int) -> None:
    """Take a request into the running batch, between two steps."""
    trajectory, r = s.trajectories[i], s.ranks[rank]
    trajectory.phase = DECODE
    trajectory.join_step = r.steps
    trajectory.finish_step = r.steps + s.turns[trajectory.turn].output - trajectory.kept - trajectory.output
    trajectory.slot = r.running
    s.running[rank, r.running] = i
    r.running += 1
    r.context += trajectory.prompt + trajectory.output
    r.next_finish = -1


@kernel
def leave(s: State, i: int, rank: int) -> None:
    """Take a request out of the running batch, between two steps; its output so far is noted with it."""
    trajectory, r = s.trajectories[i], s.ranks[rank]
    trajectory.output += r.steps - trajectory.join_step
    r.running -= 1
    r.context -= trajectory.prompt + trajectory.output
    r.next_finish = -1
    last = s.running[rank, r.running]
    s.running[rank, trajectory.slot] = last
    s.trajectories[last].slot = trajectory.slot
    s.running[rank, r.running] = -1
    trajectory.slot = -1


@kernel
def free_decode(s: State, i: int, rank: int, held: int, keep: int) -> None:
    """End the decode leg of a request that holds ``held`` tokens, of which ``keep`` stay cached."""
    release(s, rank, i, held, keep)
    s.ranks[rank].held -= 1
    s.workers[s.ranks[rank].worker].requests -= 1
    s.trajectories[i].decode = -1
    s.totals[0].route = 1
    if s.queues[retracted_queue(rank)].size > 0:
        interrupt(s, s.ranks[rank].worker)
    wake(s, s.ranks[rank].worker)


@kernel
def _finish(s: State, i: int, rank: int) -> None:
    """The request has all its output; its context stays on the rank as cache."""
    trajectory = s.trajectories[i]
    context = trajectory.prompt + trajectory.output
    store(s, i, context)
    free_decode(s, i, rank, context, context)
    measured = s.profiles[s.ranks[rank].profile].measured_context
    if context > measured:
        s.totals[0].extrapolated += min(context - measured, trajectory.output)
    answered(s, i)


@kernel
def end_block(s: State, w: int) -> None:
    """The worker's block is over: its tokens are out, who is done leaves."""
    worker = s.workers[w]
    steps = worker.block_steps
    book(s, w, steps)
    for rank in range(worker.first_rank, worker.end_rank):
        advance_batch(s, rank, steps)
    worker.experts_s += worker.block_experts_s * steps
    worker.step_s += series_s(worker.block_base_s, worker.block_slope_s, steps)
    worker.decode_first = max(worker.decode_first - steps, 0)
    worker.doing = IDLE
    for rank in range(worker.first_rank, worker.end_rank):
        finish_due(s, rank)


@kernel
def advance_batch(s: State, rank: int, steps: int) -> None:
    """The rank's running batch has decoded ``steps`` steps, whose KV is booked already."""
    r = s.ranks[rank]
    r.steps += steps
    if r.running == 0:
        return
    r.attention_s += series_s(decode_attention_s(s, rank), decode_slope_s(s, rank), steps)
    r.context += r.running * steps
    r.output += r.running * steps
    if r.running > s.profiles[r.profile].measured_batch:
        s.totals[0].extrapolated += r.running * steps


@kernel
def finish_due(s: State, rank: int) -> None:
    """Answer the requests of the batch that have all their output."""
    r = s.ranks[rank]
    steps = r.steps
    # Not the noted one: a step beside others' prefill is not laid out, so somebody may have joined since it was noted.
    if _next_finish(s, rank) != steps:
        return
    slot = 0
    while slot < r.running:
        i = s.running[rank, slot]
        if s.trajectories[i].finish_step == steps:
            leave(s, i, rank)
            _finish(s, i, rank)
        else:
            slot += 1


@kernel
def begin_block(s: State, w: int) -> bool:
    """Start decoding with whoever is there now; False where nobody is."""
    worker = s.workers[w]
    running = 0
    for rank in range(worker.first_rank, worker.end_rank):
        gather_batch(s, rank)
        running += s.ranks[rank].running
    if running == 0:
        return False
    _lay_out_block(s, w)
    worker.doing = DECODING
    worker.booked = 0
    worker.block_start_s = s.totals[0].now_s
    end_s = worker.block_start_s + series_s(worker.block_base_s, worker.block_slope_s, worker.block_steps)
    set_timer(s, step_timer(s, w), end_s)
    return True


@kernel
def gather_batch(s: State, rank: int) -> None:
    """Settle who is in the rank's batch for its next decode step: all for whom there is KV."""
    _resume_retracted(s, rank)
    _join_waiting(s, rank)
    _retract(s, rank)


@kernel
def _lay_out_block(s: State, w: int) -> None:
    """Step times and the number of steps until something changes: one is done, KV is full, another rank is slowest."""
    worker = s.workers[w]
    slowest, steps, tokens = -1, _UNLIMITED, 0
    base, slope = 0.0, 0.0
    for rank in range(worker.first_rank, worker.end_rank):
        r = s.ranks[rank]
        if r.running == 0:
            continue
        tokens += r.running
        steps = min(steps, _next_finish(s, rank) - r.steps, (r.kv_tokens - r.locked) // r.running)
        attention_s = decode_attention_s(s, rank)
        if slowest < 0 or attention_s > base or (attention_s == base and r.running > s.ranks[slowest].running):
            slowest, base, slope = rank, attention_s, decode_slope_s(s, rank)
    steps = min(steps, _steps_while_slowest(s, w, base, slope))
    if worker.decode_first > 0 and _prefill_waits(s, w):
        steps = min(steps, worker.decode_first)
    worker.block_experts_s = experts_s(s, w, DECODE_STEP, tokens)
    worker.block_base_s = base + worker.block_experts_s
    worker.block_slope_s, worker.block_steps = slope, steps


@kernel
def _steps_while_slowest(s: State, w: int, base_s: float, slope_s: float) -> int:
    """Steps until the attention of a rank whose steps grow faster is longer than that of the slowest rank."""
    worker, steps = s.workers[w], _UNLIMITED
    for rank in range(worker.first_rank, worker.end_rank):
        closing = decode_slope_s(s, rank) - slope_s
        if s.ranks[rank].running > 0 and closing > 0:
            steps = min(steps, int((base_s - decode_attention_s(s, rank)) / closing) + 1)
    return steps


@kernel
def _prefill_waits(s: State, w: int) -> bool:
    waiting = 0
    for rank in range(s.workers[w].first_rank, s.workers[w].end_rank):
        waiting += s.queues[prefill_queue(rank)].size
    return waiting > 0


@kernel
def _next_finish(s: State, rank: int) -> int:
    r = s.ranks[rank]
    if r.next_finish < 0:
        r.next_finish = _UNLIMITED
        for slot in range(r.running):
            r.next_finish = min(r.next_finish, s.trajectories[s.running[rank, slot]].finish_step)
    return r.next_finish


@kernel
def _join_waiting(s: State, rank: int) -> None:
    queue = join_queue(rank)
    while s.queues[queue].size > 0:
        i = s.queues[queue].head
        remove(s, queue, i)
        join(s, i, rank)


@kernel
def _resume_retracted(s: State, rank: int) -> None:
    """Bring retracted requests back from host memory, in the order they went, as far as there is room."""
    queue = retracted_queue(rank)
    while s.queues[queue].size > 0:
        i = s.queues[queue].head
        trajectory = s.trajectories[i]
        tokens = trajectory.prompt + trajectory.output
        if not fits(s, rank, tokens, s.ranks[rank].kv_tokens - s.ranks[rank].locked):
            return
        remove(s, queue, i)
        hold(s, rank, i, tokens, 0)
        s.ranks[rank].held += 1
        trajectory.phase = SWAP_IN
        set_timer(s, i, s.totals[0].now_s + tokens * s.profiles[s.ranks[rank].profile].host_s_per_token)
        if s.queues[queue].size == 0:
            s.totals[0].route = 1


@kernel
def swapped_in(s: State, i: int) -> None:
    """The KV of a retracted request is back; it joins the batch at the next step boundary."""
    rank = s.trajectories[i].decode
    s.trajectories[i].phase = JOIN
    share(s, rank, i, s.trajectories[i].prompt)
    push(s, join_queue(rank), i)
    interrupt(s, s.ranks[rank].worker)
    wake(s, s.ranks[rank].worker)


@kernel
def _retract(s: State, rank: int) -> None:
    """Where the batch has no room for its next step, send requests away until it has room for a few."""
    r = s.ranks[rank]
    kv_tokens = r.kv_tokens
    if r.locked + r.running <= kv_tokens:
        return
    trim_stems(s, rank)
    if r.locked + r.running <= kv_tokens:
        return
    while r.running > 1 and r.locked + RETRACT_DECODE_STEPS * r.running > kv_tokens:
        _retract_one(s, rank, _cheapest(s, rank))
    if r.locked + r.running > kv_tokens:
        _retract_one(s, rank, s.running[rank, 0])


@kernel
def _cheapest(s: State, rank: int) -> int:
    """Whom SGLang retracts first: the fewest outputs, then the longest prompt, then the last to have joined."""
    steps = s.ranks[rank].steps
    best, best_output = -1, _UNLIMITED
    for slot in range(s.ranks[rank].running):
        i = s.running[rank, slot]
        output = s.trajectories[i].output + steps - s.trajectories[i].join_step
        longer = best < 0 or s.trajectories[i].prompt >= s.trajectories[best].prompt
        if output < best_output or (output == best_output and longer):
            best, best_output = i, output
    return best


@kernel
def _retract_one(s: State, rank: int, i: int) -> None:
    trajectory, r = s.trajectories[i], s.ranks[rank]
    leave(s, i, rank)
    s.totals[0].retractions += 1
    r.held -= 1
    context = trajectory.prompt + trajectory.output
    if s.workers[r.worker].role != ROLE_MIXED:
        release(s, rank, i, context, 0)
        trajectory.phase = RETRACTED
        push(s, retracted_queue(rank), i)
        return
    # A colocated engine keeps the prompt in its cache and prefills the output again, ahead of all that wait and after
    # the prompt that it is in the middle of, which holds its KV already.
    release(s, rank, i, context, trajectory.prompt)
    trajectory.kept += trajectory.output
    trajectory.prompt += trajectory.output
    trajectory.cached_before += trajectory.cached
    trajectory.output = 0
    trajectory.owed = trajectory.prompt - reach(s, rank, i)
    r.outstanding += trajectory.owed
    trajectory.phase = QUEUED
    trajectory.prefill = rank
    insert_after(s, prefill_queue(rank), _last_started(s, rank), i)


@kernel
def _last_started(s: State, rank: int) -> int:
    """The last request of the rank's prefill queue that has its KV; -1 for none. Those stand at its head."""
    last, i = -1, s.queues[prefill_queue(rank)].head
    while i >= 0 and s.trajectories[i].phase == PREFILL:
        last = i
        i = s.trajectories[i].next
    return last
