"""Decode in closed form: how far a worker's block of decode steps has come.

As long as nobody joins or leaves, step ``k`` of a block takes ``base + k * slope`` (every running request's context
grows by one token a step), so ``n`` steps take ``n * base + slope * n * (n - 1) / 2``. The start of a block is fixed
when it begins and its length only ever shortened, so that looking at a worker never changes its times.

With several ranks a step takes as long as the attention of its slowest rank and the experts of all; a block ends
before another rank becomes the slowest. The experts take the same in each step of a block, as the batch is the same.
"""

import math

from prorsa.cluster.sim.cache import evict, on_device
from prorsa.cluster.sim.costs import decode_attention_s, decode_slope_s
from prorsa.cluster.sim.heap import set_timer, step_timer
from prorsa.cluster.sim.holders import next_holder
from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.state import DECODING, State


@kernel
def series_s(base_s: float, slope_s: float, steps: int) -> float:
    """Seconds of the first ``steps`` steps of a block."""
    return steps * base_s + slope_s * (0.5 * steps * (steps - 1))


@entry
def steps_done(s: State, w: int) -> int:
    """Steps of the worker's block that are complete now; 0 where it is not decoding."""
    worker, now_s = s.workers[w], s.totals[0].now_s
    if worker.doing != DECODING:
        return 0
    base, slope, elapsed = worker.block_base_s, worker.block_slope_s, now_s - worker.block_start_s
    if slope > 0:
        linear = base - slope / 2
        guess = int((math.sqrt(linear * linear + 2 * slope * max(elapsed, 0.0)) - linear) / slope)
    else:
        guess = int(elapsed / base)
    done = min(max(guess, 0), worker.block_steps)
    # The closed form may be off by a rounding; what counts is the time at which the step's timer fires.
    while done < worker.block_steps and worker.block_start_s + series_s(base, slope, done + 1) <= now_s:
        done += 1
    while done > 0 and worker.block_start_s + series_s(base, slope, done) > now_s:
        done -= 1
    return done


@kernel
def book(s: State, w: int, done: int) -> None:
    """Account for the KV growth of the block's first ``done`` steps: one token a request and step."""
    worker = s.workers[w]
    steps = done - worker.booked
    if steps <= 0:
        return
    worker.booked = done
    for rank in range(worker.first_rank, worker.end_rank):
        s.ranks[rank].locked += s.ranks[rank].running * steps
        evict(s, rank)


@kernel
def catch_up(s: State) -> None:
    """Bring every KV account to now; due before anything looks at caches or touches a pool in mid block."""
    for w in range(len(s.workers)):
        if s.workers[w].doing == DECODING:
            book(s, w, steps_done(s, w))


@kernel
def settle(s: State, rank: int) -> None:
    """Bring the KV account of the rank's worker to now; due before anything takes KV there in mid block."""
    w = s.ranks[rank].worker
    if s.workers[w].doing == DECODING:
        book(s, w, steps_done(s, w))


@kernel
def settle_where_cached(s: State, i: int) -> None:
    """Bring to now the accounts of the ranks that have any of the context of ``i``; due before anything looks at it."""
    rank = next_holder(s, i, -1)
    while rank >= 0:
        if on_device(s, rank, i) > 0:
            settle(s, rank)
        rank = next_holder(s, i, rank)


@kernel
def end_block_at(s: State, w: int, steps: int) -> None:
    """End the worker's block after ``steps`` steps, where it would go on for longer."""
    worker = s.workers[w]
    if worker.doing == DECODING and steps < worker.block_steps:
        worker.block_steps = steps
        end_s = worker.block_start_s + series_s(worker.block_base_s, worker.block_slope_s, steps)
        set_timer(s, step_timer(s, w), end_s)


@kernel
def interrupt(s: State, w: int) -> None:
    """End the block at the next step boundary, which may be now."""
    worker = s.workers[w]
    if worker.doing != DECODING:
        return
    done = steps_done(s, w)
    at_s = worker.block_start_s + series_s(worker.block_base_s, worker.block_slope_s, done)
    end_block_at(s, w, done if at_s == s.totals[0].now_s else done + 1)


@kernel
def spare(s: State, rank: int) -> int:
    """KV that requests could still get: neither locked nor needed by the step under way. Cache does not count."""
    r = s.ranks[rank]
    return r.kv_tokens - r.locked - r.running * unbooked_steps(s, r.worker)


@kernel
def unbooked_steps(s: State, w: int) -> int:
    """Decode steps whose KV growth is not in the accounts of the worker's ranks yet, the one under way among them."""
    worker = s.workers[w]
    return steps_done(s, w) - worker.booked + 1 if worker.doing == DECODING else 0


@kernel
def limit_block(s: State, w: int) -> None:
    """Shorten the block to the steps for which KV is left, after somebody else has taken some."""
    worker = s.workers[w]
    if worker.doing != DECODING:
        return
    book(s, w, steps_done(s, w))
    for rank in range(worker.first_rank, worker.end_rank):
        r = s.ranks[rank]
        if r.running > 0:
            end_block_at(s, w, worker.booked + (r.kv_tokens - r.locked) // r.running)


@kernel
def output_of(s: State, i: int) -> int:
    """Output tokens of a decoding request's attempt now."""
    trajectory = s.trajectories[i]
    r = s.ranks[trajectory.decode]
    return trajectory.output + r.steps + steps_done(s, r.worker) - trajectory.join_step


@entry
def output_so_far(s: State) -> int:
    """Output tokens of the whole pool since the start."""
    total = 0
    for rank in range(len(s.ranks)):
        r = s.ranks[rank]
        total += r.output + r.running * steps_done(s, r.worker)
    return total


@entry
def attention_s(s: State, rank: int) -> float:
    """Seconds of attention of a rank since the start, complete steps only."""
    r = s.ranks[rank]
    done = steps_done(s, r.worker)
    if done == 0 or r.running == 0:
        return r.attention_s
    return r.attention_s + series_s(decode_attention_s(s, rank), decode_slope_s(s, rank), done)


@entry
def experts_so_far_s(s: State, w: int) -> float:
    """Seconds of a worker's experts since the start, complete steps only; every rank's, as its GPUs compute them."""
    return s.workers[w].experts_s + s.workers[w].block_experts_s * steps_done(s, w)


@entry
def stepping_s(s: State, w: int) -> float:
    """Seconds that a worker has been in steps since the start, complete steps only."""
    worker = s.workers[w]
    return worker.step_s + series_s(worker.block_base_s, worker.block_slope_s, steps_done(s, w))
