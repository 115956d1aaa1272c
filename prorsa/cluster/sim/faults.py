"""Workers that die and come back, or slow down for a while.

A worker dies between two events: the step under way is lost, as is the KV of its requests, in HBM and in host memory.
What its requests have decoded so far the router has, since it streams: they go on elsewhere, and prefill that again.
It comes back as a new process in the role that it was launched in, with nothing cached.
"""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import drop_all
from prorsa.cluster.sim.decode import end_block
from prorsa.cluster.sim.decode_clock import catch_up, interrupt, steps_done
from prorsa.cluster.sim.flips import answer, cancel, has_leg, in_step, mark
from prorsa.cluster.sim.heap import clear_timer, fault_timer, set_timer, step_timer
from prorsa.cluster.sim.interrupts import discard
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import DECODING, IDLE, NO_EFFECT, State


@kernel
def fault_due(s: State, f: int) -> None:
    """A fault begins, or is over."""
    fault = s.faults[f]
    begins = fault.active == 0
    fault.active = begins
    if begins:
        set_timer(s, fault_timer(s, f), s.totals[0].now_s + fault.for_s)
    if fault.dies == 0:
        s.workers[fault.worker].slow_next = fault.factor if begins else 1.0
        interrupt(s, fault.worker)
    elif begins:
        _die(s, fault.worker)
    else:
        _come_back(s, fault.worker)


@kernel
def _die(s: State, w: int) -> None:
    worker = s.workers[w]
    worker.down += 1
    if worker.down > 1:
        return
    catch_up(s)
    _lose_step(s, w)
    for i in range(s.params[0].trajectories):
        if has_leg(s, i, w):
            _lose_request(s, i, w)
    worker.serving = 0
    _drop_caches(s, w)
    log(s, records.WORKER_DOWN, -1, w)
    if worker.effect != NO_EFFECT:
        answer(s, w, -1, 0)
    s.totals[0].answered = 1
    s.totals[0].route = 1


@kernel
def _lose_step(s: State, w: int) -> None:
    """The step under way comes to nothing; those of a decode block before it have been answered."""
    worker = s.workers[w]
    if worker.doing == IDLE:
        return
    clear_timer(s, step_timer(s, w))
    if worker.doing == DECODING:
        worker.block_steps = steps_done(s, w)
        end_block(s, w)
        return
    for rank in range(worker.first_rank, worker.end_rank):
        r = s.ranks[rank]
        if r.decodes != 0:
            r.locked -= r.running
        r.decodes, r.batch = 0, 0
    worker.doing = IDLE


@kernel
def _lose_request(s: State, i: int, w: int) -> None:
    trajectory = s.trajectories[i]
    s.totals[0].marked -= trajectory.cancel >= 0
    trajectory.cancel = -1
    if in_step(s, i):  # of the other leg's worker
        mark(s, i, w, records.DOWN)
    elif trajectory.doomed != 0:
        discard(s, i)
    else:
        cancel(s, i, w, records.DOWN)


@kernel
def _drop_caches(s: State, w: int) -> None:
    for rank in range(s.workers[w].first_rank, s.workers[w].end_rank):
        drop_all(s, rank)


@kernel
def _come_back(s: State, w: int) -> None:
    worker = s.workers[w]
    worker.down -= 1
    if worker.down > 0:
        return
    _drop_caches(s, w)  # of requests whose other leg was in a step when the worker died
    worker.role = worker.launch_role
    worker.epoch = 0
    worker.serving = 1
    log(s, records.WORKER_UP, -1, w)
    s.totals[0].answered = 1
    s.totals[0].route = 1
