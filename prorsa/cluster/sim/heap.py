"""Timers in an indexed binary heap: each timer is in it at most once and is moved in place.

Nothing stale is ever in the heap, so it never outgrows its array and a copy stays small. Timers of the same time fire
in the order in which they were set.

Timer numbers: trajectory ``i`` is ``i``; the step of worker ``w`` is ``N + w``, its effect ``N + W + w``; then the
sampler's, the tick, and the faults'.
"""

from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.state import State


@kernel
def _earlier(s: State, a: int, b: int) -> bool:
    first, second = s.heap[a], s.heap[b]
    if first.time_s != second.time_s:
        return first.time_s < second.time_s
    return first.serial < second.serial


@kernel
def _swap(s: State, a: int, b: int) -> None:
    first, second = s.heap[a], s.heap[b]
    time_s, serial, timer = first.time_s, first.serial, first.timer
    first.time_s, first.serial, first.timer = second.time_s, second.serial, second.timer
    second.time_s, second.serial, second.timer = time_s, serial, timer
    s.heap_slot[first.timer] = a
    s.heap_slot[second.timer] = b


@kernel
def _settle(s: State, at: int) -> None:
    """Restore the order around a slot whose time has changed."""
    while at > 0 and _earlier(s, at, (at - 1) // 2):
        _swap(s, at, (at - 1) // 2)
        at = (at - 1) // 2
    size = s.totals[0].timers
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _earlier(s, child + 1, child):
            child += 1
        if not _earlier(s, child, at):
            return
        _swap(s, at, child)
        at = child


@entry
def set_timer(s: State, timer: int, time_s: float) -> None:
    """Let a timer fire at ``time_s``, also when it is set already."""
    totals = s.totals[0]
    at = s.heap_slot[timer]
    if at < 0:
        at = totals.timers
        totals.timers += 1
        s.heap_slot[timer] = at
        s.heap[at].timer = timer
    totals.serial += 1
    s.heap[at].time_s = time_s
    s.heap[at].serial = totals.serial
    _settle(s, at)


@kernel
def clear_timer(s: State, timer: int) -> None:
    """Take a timer out; nothing happens where it is not set."""
    at = s.heap_slot[timer]
    if at < 0:
        return
    totals = s.totals[0]
    last = totals.timers - 1
    if at != last:
        _swap(s, at, last)
    totals.timers = last
    s.heap_slot[timer] = -1
    if at != last:
        _settle(s, at)


@kernel
def step_timer(s: State, worker: int) -> int:
    """The timer of a worker's step."""
    return s.params[0].trajectories + worker


@kernel
def effect_timer(s: State, worker: int) -> int:
    """The timer of the effect under way on a worker."""
    return s.params[0].trajectories + s.params[0].workers + worker


@entry
def sampler_timer(s: State) -> int:
    """The timer of the sampler: start of the run, end of a weight update."""
    return s.params[0].trajectories + 2 * s.params[0].workers


@entry
def tick_timer(s: State) -> int:
    """The timer of the 1 Hz telemetry."""
    return s.params[0].trajectories + 2 * s.params[0].workers + 1


@entry
def fault_timer(s: State, fault: int) -> int:
    """The timer of a fault: its beginning, then its end."""
    return s.params[0].trajectories + 2 * s.params[0].workers + 2 + fault
