"""What stops work in the midst of it, other than a flip: the end of an over-sampled step, and a weight update."""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.config import MAX_ATTEMPT
from prorsa.cluster.sim.decode_clock import catch_up, interrupt
from prorsa.cluster.sim.flips import abort, cancel, forget_cancel, has_leg, in_step, mark, touches
from prorsa.cluster.sim.heap import clear_timer, sampler_timer, set_timer, step_timer
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.lifecycle import after_ends, end, update_weights
from prorsa.cluster.sim.queues import ROUTER, remove
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import CANCELLED, CUT, DONE, FETCH, IDLE, READY, SWAP_IN, State


@kernel
def cut_off(s: State) -> None:
    """Enough groups of the step are complete: what is in flight is aborted, what waits is not dispatched."""
    totals = s.totals[0]
    totals.cut_off = CUT
    first = totals.next_dispatch
    while totals.next_dispatch < s.params[0].trajectories and s.plan[totals.next_dispatch].step == totals.step:
        s.trajectories[totals.next_dispatch].phase = DONE
        totals.next_dispatch += 1
        totals.ended += 1
    if totals.in_flight == 0:
        after_ends(s)
        return
    catch_up(s)
    for i in range(first):
        if s.trajectories[i].phase != DONE:
            _doom(s, i)
    _interrupt_all(s)


@kernel
def _doom(s: State, i: int) -> None:
    trajectory = s.trajectories[i]
    trajectory.doomed = 1
    if not in_step(s, i):
        discard(s, i)
    elif trajectory.cancel < 0:
        mark(s, i, _worker_of(s, i), records.DRAIN)


@kernel
def _worker_of(s: State, i: int) -> int:
    trajectory = s.trajectories[i]
    return s.ranks[trajectory.decode if trajectory.decode >= 0 else trajectory.prefill].worker


@kernel
def _interrupt_all(s: State) -> None:
    for w in range(len(s.workers)):
        interrupt(s, w)


@kernel
def discard(s: State, i: int) -> None:
    """End a trajectory as aborted, wherever it stands; what its request had computed is not kept."""
    trajectory = s.trajectories[i]
    phase, cached = trajectory.phase, trajectory.cached_before + trajectory.cached
    if phase == READY:
        remove(s, ROUTER, i)
    elif FETCH <= phase <= SWAP_IN:
        abort(s, i)
    else:
        clear_timer(s, i)
    if phase == CANCELLED:
        forget_cancel(s, i)
    if READY <= phase <= CANCELLED:
        log(s, records.ANSWERED, i, trajectory.turn, trajectory.attempt, trajectory.kept + trajectory.output, cached, 1)
    s.totals[0].route = 1
    end(s, i, 1)


@kernel
def halt(s: State) -> None:
    """A weight update begins amid a rollout: steps end; requests wait in place, or are aborted for a flush to come."""
    s.totals[0].halt = 0
    catch_up(s)
    if s.params[0].cache_flush != 0:
        for i in range(s.params[0].trajectories):
            _stop_request(s, i)
    _interrupt_all(s)


@kernel
def _stop_request(s: State, i: int) -> None:
    trajectory = s.trajectories[i]
    if not FETCH <= trajectory.phase <= SWAP_IN or trajectory.attempt >= MAX_ATTEMPT or trajectory.cancel >= 0:
        return
    if in_step(s, i):
        mark(s, i, _worker_of(s, i), records.WEIGHTS)
    else:
        cancel(s, i, _worker_of(s, i), records.WEIGHTS)


@kernel
def end_update(s: State) -> None:
    """The weights are there; steps that were under way when the pause began have to be over, too."""
    latest_s = s.totals[0].now_s
    for w in range(len(s.workers)):
        if s.workers[w].doing != IDLE:
            latest_s = max(latest_s, s.heap[s.heap_slot[step_timer(s, w)]].time_s)
    if latest_s > s.totals[0].now_s:
        set_timer(s, sampler_timer(s), latest_s)
    else:
        update_weights(s)


@kernel
def cancel_marked(s: State) -> None:
    """Cancel the marked requests whose step has ended; those that it has finished are answered already."""
    catch_up(s)
    for i in range(s.params[0].trajectories):
        trajectory = s.trajectories[i]
        w = trajectory.cancel
        if w < 0 or trajectory.phase == CANCELLED or in_step(s, i):
            continue
        trajectory.cancel = -1
        s.totals[0].marked -= 1
        if trajectory.doomed != 0:
            if trajectory.phase != DONE:
                discard(s, i)
        elif trajectory.why == records.WEIGHTS:
            _stop_request(s, i)
        elif trajectory.why == records.DOWN:
            if has_leg(s, i, w):
                cancel(s, i, w, records.DOWN)
        elif touches(s, i, w):
            cancel(s, i, w, records.DRAIN)
