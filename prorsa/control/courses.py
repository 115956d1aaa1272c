"""Candidate courses for look-ahead: when to be at which split, as far as flips allow it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from prorsa.control.fluid import Plans
from prorsa.control.solver import Bounds

_LATER_S: Final = (10, 25)
"""When a course may make its first move, other than now."""
_BACK_S: Final = (20, 40)
"""After how long a course that has moved may move again."""
_MOST_TARGETS: Final = 8
"""Splits that are looked at beside the present one: in large pools the nearest ones, then ever farther ones."""


@dataclass(frozen=True, slots=True)
class Flipping:
    """What moving takes and costs.

    Attributes:
        parallel: flips at a time.
        flip_s: from fence to serving.
        to_decode_lost: by flips of prefill workers in the order in which they would be chosen, the share of the live
            trajectories whose prefix goes with each.
        to_prefill_lost: share of what is found cached that a worker which turns to prefill has to compute of the
            trajectories it takes over.
        flush_s: when the prefix caches are dropped anyway; None where that is not announced.
    """

    parallel: int
    flip_s: float
    to_decode_lost: Sequence[float]
    to_prefill_lost: float
    flush_s: float | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """Stay until ``at_s``, then be at ``prefill``; from ``back_at_s`` on, where given, at ``then``."""

    prefill: int
    at_s: int = 0
    then: int | None = None
    back_at_s: int | None = None

    def flips(self, current: int) -> int:
        """How many flips it takes from ``current`` prefill workers."""
        later = 0 if self.then is None else abs(self.then - self.prefill)
        return abs(self.prefill - current) + later


def courses(current: int, bounds: Bounds, seconds: int, announced_s: float | None) -> list[Course]:
    """Courses to compare; the first is to stay. ``announced_s`` is when a planned event is due, if one is."""
    targets = _targets(current, bounds)
    starts = {0, *(at for at in _LATER_S if at < seconds)}
    if announced_s is not None and 0 < announced_s < seconds:
        starts.add(round(announced_s))
    found = [Course(current)]
    found += [Course(prefill, at) for prefill, at in product(targets, sorted(starts))]
    for first, back in product(targets, (at for at in _BACK_S if at < seconds)):
        found += [Course(first, 0, then, back) for then in (current, *targets) if then != first]
    return found


def _targets(current: int, bounds: Bounds) -> list[int]:
    """Numbers of prefill workers to look at, without the present one."""
    others = [prefill for prefill in range(bounds.low, bounds.high + 1) if prefill != current]
    if len(others) <= _MOST_TARGETS:
        return others
    shifts = [1, 2, *(max(3, round(bounds.workers * share)) for share in (0.1, 0.25))]
    near = {current + sign * shift for shift in shifts for sign in (1, -1)}
    return sorted(near & set(others))


def lay_out(found: list[Course], current: int, workers: int, seconds: int, flipping: Flipping) -> Plans:
    """The courses second by second."""
    shape = (len(found), seconds)
    plans = Plans(np.empty(shape), np.empty(shape), np.zeros(shape), np.zeros(shape))
    for index, course in enumerate(found):
        _lay_out_one(plans, index, course, current, workers, flipping)
    return plans


def _lay_out_one(plans: Plans, index: int, course: Course, current: int, workers: int, flipping: Flipping) -> None:
    """Flips start as soon as one may; between them nothing changes."""
    seconds = plans.prefill.shape[1]
    events = sorted({0, *_moments(course, seconds)})
    prefill, lost = current, 0
    under_way: list[tuple[float, int]] = []  # when each flip ends, and what it adds to prefill
    at = 0
    plans.prefill[index], plans.decode[index] = current, workers - current
    while at < seconds:
        under_way = [flip for flip in under_way if flip[0] > at]
        target = _target(course, current, at)
        step = 1 if target > prefill else -1
        while prefill != target and len(under_way) < flipping.parallel:
            lost += _note_losses(plans, index, at, prefill, workers - prefill, step, lost, flipping)
            prefill += step
            under_way.append((at + flipping.flip_s, step))
        plans.prefill[index, at:] = prefill - sum(1 for _, way in under_way if way > 0)
        plans.decode[index, at:] = workers - prefill - sum(1 for _, way in under_way if way < 0)
        ends = [int(np.ceil(end)) for end, _ in under_way]
        later = [moment for moment in (*ends, *events) if moment > at]
        at = min(later, default=seconds)


def _moments(course: Course, seconds: int) -> list[int]:
    moments = [course.at_s] if course.back_at_s is None else [course.at_s, course.back_at_s]
    return [moment for moment in moments if moment < seconds]


def _target(course: Course, current: int, at_s: int) -> int:
    if course.then is not None and course.back_at_s is not None and at_s >= course.back_at_s:
        return course.then
    return course.prefill if at_s >= course.at_s else current


def _note_losses(
    plans: Plans, index: int, at: int, prefill: int, decode: int, step: int, lost: int, flipping: Flipping
) -> int:
    """What a flip that starts at ``at`` loses; 1 if a prefill worker's prefixes go with it."""
    flushed = flipping.flush_s is not None and at >= flipping.flush_s
    if step > 0:
        plans.moved[index, at] += 1.0 / max(decode, 1)
        if not flushed:
            # The new worker takes its share of the trajectories over, and has seen few of them.
            plans.lost_share[index, at] += flipping.to_prefill_lost / (prefill + 1)
        return 0
    if not flushed and lost < len(flipping.to_decode_lost):
        plans.lost_share[index, at] += flipping.to_decode_lost[lost]
    return 1
