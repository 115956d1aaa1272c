"""Effects on workers: out of the pool, drained, idle, switched, warmed, and back in.

A drain cancels requests at step boundaries, as an engine does; the router has its answer ``cancel_s`` later and sends
the request on from prompt + output so far. What a cancelled request had computed stays where it is, as cache.
"""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import drop_all, longest, store
from prorsa.cluster.sim.config import MAX_ATTEMPT
from prorsa.cluster.sim.decode import free_decode, leave
from prorsa.cluster.sim.decode_clock import catch_up, interrupt
from prorsa.cluster.sim.heap import clear_timer, effect_timer, set_timer
from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.prefill import free_prefill
from prorsa.cluster.sim.queues import join_queue, prefill_queue, remove, retracted_queue
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.router import readmit
from prorsa.cluster.sim.state import (
    CANCELLED,
    DECODE,
    DECODING,
    EFFECT_DRAIN,
    EFFECT_SETTLE,
    EFFECT_SWITCH,
    EFFECT_WARM,
    FETCH,
    IDLE,
    JOIN,
    NO_EFFECT,
    PREFILL,
    PREFILLING,
    RETAINED,
    RETRACTED,
    ROLE_PREFILL,
    SWAP_IN,
    TRANSFER,
    State,
)


@entry
def fence(s: State, w: int) -> None:
    """Take the worker out of the pool; what it holds goes on."""
    worker = s.workers[w]
    if worker.serving != 0:
        worker.serving = 0
        worker.fenced_s = s.totals[0].now_s
        worker.role_before = worker.role
    s.totals[0].route = 1


@entry
def admit(s: State, w: int) -> None:
    """Put the worker into the pool in the role that it has."""
    worker = s.workers[w]
    if worker.serving == 0:
        worker.serving = 1
        worker.out_s += s.totals[0].now_s - worker.fenced_s
        worker.flips += worker.role != worker.role_before
    s.totals[0].route = 1


@entry
def is_idle(s: State, w: int) -> bool:
    """The idle barrier: no request has a leg here, no abort is unanswered, no step runs."""
    worker = s.workers[w]
    return worker.requests == 0 and worker.cancels == 0 and worker.doing == IDLE


@entry
def start_effect(s: State, w: int, effect: int, role: int, deadline_s: float) -> None:
    """Begin what takes time; the answer is an EFFECT_RESULT record."""
    worker, totals, params = s.workers[w], s.totals[0], s.params[0]
    worker.effect, worker.effect_role, worker.effect_ok, worker.resumed = effect, role, 0, 0
    totals.effects += 1
    ends_s = deadline_s
    if effect == EFFECT_SWITCH:
        takes_s = params.to_prefill_s if role == ROLE_PREFILL else params.to_decode_s
        worker.effect_ok = takes_s <= deadline_s
        ends_s = min(takes_s, deadline_s)
    elif effect == EFFECT_WARM:
        worker.effect_ok = params.warm_s <= deadline_s
        ends_s = min(params.warm_s, deadline_s)
    set_timer(s, effect_timer(s, w), totals.now_s + ends_s)
    if effect == EFFECT_DRAIN:
        _cancel_all(s, w)


@entry
def stop_effect(s: State, w: int) -> None:
    """Forget the effect under way on the worker, if any, without an answer."""
    if s.workers[w].effect != NO_EFFECT:
        s.workers[w].effect = NO_EFFECT
        s.totals[0].effects -= 1
        clear_timer(s, effect_timer(s, w))


@kernel
def answer(s: State, w: int, ok: int, dropped: int) -> None:
    """Answer the effect under way on a worker; ``ok`` is -1 where the worker has died."""
    log(s, records.EFFECT_RESULT, -1, w, ok, s.workers[w].resumed, dropped)
    stop_effect(s, w)
    s.totals[0].answered = 1


@kernel
def effect_due(s: State, w: int) -> None:
    """A switch or warm-up is done, or the patience with the effect is over."""
    worker = s.workers[w]
    dropped = 0
    if worker.effect == EFFECT_SWITCH and worker.effect_ok != 0:
        worker.role = worker.effect_role
        if s.params[0].cache != RETAINED:
            for rank in range(worker.first_rank, worker.end_rank):
                dropped += drop_all(s, rank)
    answer(s, w, worker.effect_ok, dropped)


@kernel
def check_effects(s: State) -> None:
    """Answer the drains and idle barriers that have come true."""
    for w in range(len(s.workers)):
        worker = s.workers[w]
        drained = worker.effect == EFFECT_DRAIN and worker.requests == 0 and worker.cancels == 0
        if drained or (worker.effect == EFFECT_SETTLE and is_idle(s, w)):
            answer(s, w, 1, 0)


@kernel
def has_leg(s: State, i: int, w: int) -> bool:
    """Whether the request of ``i`` has KV at worker ``w``, or is to have."""
    trajectory = s.trajectories[i]
    if trajectory.phase < FETCH or trajectory.phase > SWAP_IN:
        return False
    if trajectory.decode >= 0 and s.ranks[trajectory.decode].worker == w:
        return True
    return trajectory.phase <= TRANSFER and s.ranks[trajectory.prefill].worker == w


@kernel
def touches(s: State, i: int, w: int) -> bool:
    """Whether a drain of worker ``w`` cancels the request: not where all that is left here is to send its KV."""
    trajectory = s.trajectories[i]
    if trajectory.phase < FETCH or trajectory.phase > SWAP_IN or trajectory.attempt >= MAX_ATTEMPT:
        return False
    if trajectory.decode >= 0 and s.ranks[trajectory.decode].worker == w:
        return True
    return trajectory.phase <= PREFILL and trajectory.prefill >= 0 and s.ranks[trajectory.prefill].worker == w


@kernel
def in_step(s: State, i: int) -> bool:
    """Whether a step under way computes for the request."""
    trajectory = s.trajectories[i]
    if trajectory.phase == PREFILL:
        return s.workers[s.ranks[trajectory.prefill].worker].doing == PREFILLING
    if trajectory.phase != DECODE:
        return False
    r = s.ranks[trajectory.decode]
    return r.decodes != 0 or s.workers[r.worker].doing == DECODING


@kernel
def mark(s: State, i: int, w: int, why: int) -> None:
    """Let a request be cancelled at the end of the step that it is in."""
    trajectory = s.trajectories[i]
    trajectory.cancel, trajectory.why = w, why
    s.totals[0].marked += 1


@kernel
def _cancel_all(s: State, w: int) -> None:
    catch_up(s)
    for i in range(s.params[0].trajectories):
        if not touches(s, i, w) or s.trajectories[i].cancel >= 0:
            continue
        if in_step(s, i):
            mark(s, i, w, records.DRAIN)
        else:
            cancel(s, i, w, records.DRAIN)
    interrupt(s, w)


@kernel
def cancel(s: State, i: int, w: int, why: int) -> None:
    """Abort both legs of a request; it is back in the router when the abort is answered."""
    trajectory = s.trajectories[i]
    prefill, decode = trajectory.prefill, trajectory.decode
    computed = abort(s, i)
    trajectory.prefill, trajectory.decode = prefill, decode  # where it comes from, for the record of the retry
    store(s, i, computed)
    trajectory.lost = max(trajectory.lost, longest(s, i), computed)
    trajectory.kept += trajectory.output
    trajectory.prompt += trajectory.output
    trajectory.output = 0
    trajectory.cancel, trajectory.why = w, why
    trajectory.phase = CANCELLED
    s.workers[w].cancels += 1
    if why == records.DRAIN:
        s.workers[w].resumed += 1
        s.totals[0].resumed += 1
    else:
        s.totals[0].interrupted += 1
    set_timer(s, i, s.totals[0].now_s + s.params[0].cancel_s)


@kernel
def abort(s: State, i: int) -> int:
    """Take a request off its workers; returns the leading tokens of its context that had been computed there."""
    trajectory = s.trajectories[i]
    if trajectory.phase <= PREFILL:
        return _abort_prefill(s, i)
    trajectory.cached_before += trajectory.cached
    trajectory.cached = 0
    if trajectory.phase == TRANSFER:
        clear_timer(s, i)
        free_prefill(s, i, trajectory.prompt, trajectory.prompt)
        free_decode(s, i, trajectory.decode, trajectory.prompt + 1, trajectory.decode_cached)
        return trajectory.prompt
    return _abort_decode(s, i)


@kernel
def _abort_prefill(s: State, i: int) -> int:
    trajectory = s.trajectories[i]
    rank, mixed = trajectory.prefill, trajectory.prefill == trajectory.decode
    started = trajectory.phase == PREFILL
    if trajectory.phase == FETCH:
        clear_timer(s, i)
    else:
        remove(s, prefill_queue(rank), i)
    s.ranks[rank].outstanding -= trajectory.owed
    trajectory.owed = 0
    computed = trajectory.position if started else 0
    held = trajectory.prompt + mixed if started else 0
    free_prefill(s, i, held, computed)
    if not mixed:
        free_decode(s, i, trajectory.decode, trajectory.prompt + 1, trajectory.decode_cached)
    elif started:
        s.ranks[rank].held -= 1
    return computed


@kernel
def _abort_decode(s: State, i: int) -> int:
    trajectory = s.trajectories[i]
    rank, phase = trajectory.decode, trajectory.phase
    if phase == DECODE:
        leave(s, i, rank)
    context = trajectory.prompt + trajectory.output
    if phase == JOIN:
        remove(s, join_queue(rank), i)
    elif phase == SWAP_IN:
        clear_timer(s, i)
    if phase == RETRACTED:
        remove(s, retracted_queue(rank), i)
        s.workers[s.ranks[rank].worker].requests -= 1
    else:
        free_decode(s, i, rank, context, 0 if phase == SWAP_IN else context)
    return context


@kernel
def forget_cancel(s: State, i: int) -> None:
    """Nobody waits any longer for the answer to the abort of a request."""
    trajectory = s.trajectories[i]
    s.workers[trajectory.cancel].cancels -= 1
    trajectory.cancel = -1


@kernel
def cancel_answered(s: State, i: int) -> None:
    """The abort is answered: the request goes on as the next attempt."""
    trajectory = s.trajectories[i]
    forget_cancel(s, i)
    trajectory.attempt = min(trajectory.attempt + 1, MAX_ATTEMPT)  # a death can come upon the last one
    prefill, decode = trajectory.prefill, trajectory.decode
    log(s, records.RETRY, i, trajectory.turn, trajectory.attempt, trajectory.kept, prefill, decode, trajectory.why)
    trajectory.prefill, trajectory.decode = -1, -1
    readmit(s, i)
