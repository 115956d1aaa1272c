"""The event loop: straight to the next event that matters."""

from typing import Final

from prorsa.cluster.sim.decode import begin_block, end_block, swapped_in
from prorsa.cluster.sim.decode_clock import catch_up
from prorsa.cluster.sim.faults import fault_due
from prorsa.cluster.sim.flips import cancel_answered, check_effects, effect_due
from prorsa.cluster.sim.heap import clear_timer, fault_timer, sampler_timer, set_timer, tick_timer
from prorsa.cluster.sim.interrupts import cancel_marked, cut_off, end_update, halt
from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.lifecycle import admit_held, begin, begin_update, rewarded, sandbox_ready, tool_returned
from prorsa.cluster.sim.prefill import begin_prefill, end_prefill, enqueue, transferred
from prorsa.cluster.sim.router import route
from prorsa.cluster.sim.state import (
    CANCELLED,
    CUT_DUE,
    DECODING,
    FETCH,
    IDLE,
    REWARD,
    ROLE_DECODE,
    ROLE_MIXED,
    ROLE_PREFILL,
    SANDBOX,
    SWAP_IN,
    TOOL,
    TRANSFER,
    State,
)

REACHED: Final = 0
"""The engine has come to the time that it was given."""
ANSWERED: Final = 1
"""An effect has just been answered, a worker has died, or is back."""
TICKED: Final = 2
"""A second of simulated time has gone by: telemetry is due."""
FULL: Final = 3
"""The record buffer is to be emptied."""
FINISHED: Final = 4
"""The last trajectory has ended; said once."""


@entry
def run(s: State, until_s: float, room: int) -> int:
    """Simulate up to and including ``until_s``; returns why it stopped. ``room`` is what one event may log."""
    totals = s.totals[0]
    while totals.timers > 0 and s.heap[0].time_s <= until_s:
        if totals.logged + room > len(s.log):
            return FULL
        timer = s.heap[0].timer
        totals.now_s = s.heap[0].time_s
        clear_timer(s, timer)
        if timer == tick_timer(s):
            _tick(s)
            return TICKED
        _fire(s, timer)
        follow_up(s)
        if totals.answered != 0:
            totals.answered = 0
            return ANSWERED
        if totals.ended == s.params[0].trajectories and totals.finished == 0:
            totals.finished = 1
            clear_timer(s, tick_timer(s))
            return FINISHED
    totals.now_s = max(totals.now_s, until_s)
    return REACHED


@kernel
def _fire(s: State, timer: int) -> None:
    trajectories, workers = s.params[0].trajectories, s.params[0].workers
    if timer < trajectories:
        _fire_trajectory(s, timer)
    elif timer < trajectories + workers:
        _end_step(s, timer - trajectories)
    elif timer == sampler_timer(s):
        if s.totals[0].began == 0:
            begin(s)
        elif s.totals[0].training != 0:
            begin_update(s)
        else:
            end_update(s)
    elif timer > tick_timer(s):
        fault_due(s, timer - fault_timer(s, 0))
    else:
        effect_due(s, timer - trajectories - workers)


@kernel
def _fire_trajectory(s: State, i: int) -> None:
    phase = s.trajectories[i].phase
    if phase == TOOL:
        tool_returned(s, i)
    elif phase == TRANSFER:
        transferred(s, i)
    elif phase == SANDBOX:
        sandbox_ready(s, i)
    elif phase == REWARD:
        rewarded(s, i)
    elif phase == FETCH:
        enqueue(s, i)
    elif phase == SWAP_IN:
        swapped_in(s, i)
    elif phase == CANCELLED:
        cancel_answered(s, i)


@kernel
def _end_step(s: State, w: int) -> None:
    if s.workers[w].doing == DECODING:
        end_block(s, w)
    else:
        end_prefill(s, w)
    if s.totals[0].marked > 0:
        cancel_marked(s)
    s.kicked[w] = 1
    s.totals[0].kick = 1


@entry
def open_gate(s: State, limit: int) -> None:
    """From now on so many trajectories may be admitted at a time, 0 for no limit; running ones go on in any case."""
    s.totals[0].gate = limit
    admit_held(s)


@entry
def follow_up(s: State) -> None:
    """What an event leaves to do at its own time: routing, idle workers that have work, effects that came true."""
    totals = s.totals[0]
    if totals.halt != 0:
        halt(s)
    if totals.cut_off == CUT_DUE:
        cut_off(s)
    while totals.route != 0 or totals.kick != 0:
        if totals.route != 0:
            route(s)
        if totals.kick != 0:
            totals.kick = 0
            for w in range(len(s.kicked)):
                if s.kicked[w] != 0:
                    s.kicked[w] = 0
                    if s.workers[w].doing == IDLE:
                        _begin_step(s, w)
    if totals.effects > 0:
        check_effects(s)


@kernel
def _begin_step(s: State, w: int) -> None:
    """A colocated worker takes prefill first, as SGLang does, unless the interval between prefills says decode."""
    if s.totals[0].updating != 0:
        return
    worker = s.workers[w]
    worker.slow = worker.slow_next
    decode_first = worker.role == ROLE_MIXED and worker.decode_first > 0
    if decode_first and begin_block(s, w):
        return
    if worker.role != ROLE_DECODE and begin_prefill(s, w):
        return
    if worker.role != ROLE_PREFILL and not decode_first:
        begin_block(s, w)


@kernel
def _tick(s: State) -> None:
    catch_up(s)
    set_timer(s, tick_timer(s), s.totals[0].now_s + 1.0)
