"""First-in first-out queues of trajectories, linked through their records; a trajectory stands in one at most."""

from typing import Final

from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.state import State

ROUTER: Final = 0


@entry
def prefill_queue(rank: int) -> int:
    """The queue of requests that a rank is to prefill."""
    return 1 + 3 * rank


@kernel
def join_queue(rank: int) -> int:
    """The queue of requests whose KV has arrived at a rank."""
    return 2 + 3 * rank


@kernel
def retracted_queue(rank: int) -> int:
    """The queue of requests that a rank has retracted."""
    return 3 + 3 * rank


@kernel
def insert_after(s: State, queue: int, before: int, i: int) -> None:
    """Put trajectory ``i`` behind ``before``; at the head where that is -1."""
    q = s.queues[queue]
    after = q.head if before < 0 else s.trajectories[before].next
    s.trajectories[i].prev = before
    s.trajectories[i].next = after
    if before < 0:
        q.head = i
    else:
        s.trajectories[before].next = i
    if after < 0:
        q.tail = i
    else:
        s.trajectories[after].prev = i
    q.size += 1


@kernel
def push(s: State, queue: int, i: int) -> None:
    """Put trajectory ``i`` at the tail."""
    insert_after(s, queue, s.queues[queue].tail, i)


@kernel
def remove(s: State, queue: int, i: int) -> None:
    """Take trajectory ``i`` out of the queue it stands in."""
    q = s.queues[queue]
    trajectory = s.trajectories[i]
    if trajectory.prev < 0:
        q.head = trajectory.next
    else:
        s.trajectories[trajectory.prev].next = trajectory.next
    if trajectory.next < 0:
        q.tail = trajectory.prev
    else:
        s.trajectories[trajectory.next].prev = trajectory.prev
    trajectory.next = -1
    trajectory.prev = -1
    q.size -= 1
