"""When a synchronous step will be over: with its last trajectory, or, over-sampled, with enough complete groups."""

from collections.abc import Sequence
from math import erf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Expected
from prorsa.forecast.flow import Streams

Array = NDArray[np.float64]

_CONTINUITY: Final = 0.5
"""A count reaches a whole number from half below it on, where a normal distribution stands for it."""


class Left(NamedTuple):
    """Chance that a trajectory in flight has not ended by the end of each second: float64[K] of those that are being
    rewarded, and of the others, which have more turns to go.
    """

    rewarded: Array
    others: Array


class StepGroups:
    """Which groups of a step are complete; O(1) an event.

    Attributes:
        target: groups with which the step is over; None where nothing tells.
    """

    def __init__(self) -> None:
        self.target: int | None = None
        self._group_of: dict[str, str] = {}
        self._rewarded: set[str] = set()
        self._dispatched: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}
        self._size = 1

    def begin(self, target: int | None) -> None:
        """A step begins."""
        self.target = target
        for kept in (self._group_of, self._rewarded, self._dispatched, self._open):
            kept.clear()

    def dispatched(self, trajectory_id: str | None, group_id: str | None) -> None:
        """A trajectory was dispatched."""
        if trajectory_id is None or group_id is None or trajectory_id in self._group_of:
            return
        self._group_of[trajectory_id] = group_id
        number = self._dispatched[group_id] = self._dispatched.get(group_id, 0) + 1
        self._open.setdefault(group_id, [0, 0])[1] += 1
        self._size = max(self._size, number)

    def rewarding(self, trajectory_id: str | None) -> None:
        """A trajectory has had its last turn."""
        group_id = self._group_of.get(trajectory_id or "")
        if group_id in self._open and trajectory_id not in self._rewarded:
            self._rewarded.add(trajectory_id or "")
            self._open[group_id][0] += 1
            self._open[group_id][1] -= 1

    def ended(self, trajectory_id: str | None, *, aborted: bool) -> None:
        """A trajectory has ended; with an aborted one its group will never be complete."""
        group_id = self._group_of.pop(trajectory_id or "", None)
        if group_id is None:
            return
        if aborted:
            self._open.pop(group_id, None)
        elif group_id in self._open:
            self._open[group_id][trajectory_id not in self._rewarded] -= 1

    @property
    def over_sampled(self) -> bool:
        """Whether more groups were dispatched than the step needs."""
        return self.target is not None and len(self._dispatched) > self.target

    def complete_by(self, left: Left) -> Array:
        """float64[K], probability that enough groups are complete."""
        whole = [tuple(open_) for group, open_ in self._open.items() if self._dispatched[group] >= self._size]
        return reached_by(whole, self.target or 0, left)


def reached_by(members: Sequence[tuple[int, ...]], needed: int, left: Left) -> Array:
    """float64[K], probability that so many groups are complete, by how many members each still waits for: of those that
    are being rewarded, and others.
    """
    if not members:
        return np.full(len(left.others), float(needed <= 0))
    kinds, counts = np.unique(np.array(members), axis=0, return_counts=True)
    chance = (1.0 - left.rewarded) ** kinds[:, :1] * (1.0 - left.others) ** kinds[:, 1:]
    mean, variance = counts @ chance, counts @ (chance * (1.0 - chance))
    beyond = (mean - needed + _CONTINUITY) / np.sqrt(2.0 * np.maximum(variance, 1e-12))
    return np.array([0.5 + 0.5 * erf(x) for x in beyond])


def all_by(rewarded: float, others: float, left: Left) -> Array:
    """float64[K], probability that all in flight have ended, so many that are being rewarded and others."""
    over: Array = (1.0 - left.rewarded) ** rewarded * (1.0 - left.others) ** others
    return over


def left_by(rewarded: float, others: float, s: Streams) -> Left:
    """The chances by what the flow says of so many trajectories."""
    gone, by_reward = np.cumsum(s.ended), np.cumsum(s.rewarded)
    return Left(
        np.clip(1.0 - by_reward / max(rewarded, 1.0), 0.0, 1.0),
        np.clip(1.0 - (gone - by_reward) / max(others, 1.0), 0.0, 1.0),
    )


def cut_short(e: Expected, s: Streams, going_on: Array, at: NDArray[np.intp]) -> tuple[Expected, Streams]:
    """What is expected if it comes only as long as nothing is cut off.

    Args:
        going_on: float64[K], probability of that by the end of each second.
        at: int[H], the last second of each horizon.
    """
    comes = np.cumsum(s.tool[0] + s.box[0])
    kept = np.cumsum((s.tool[0] + s.box[0]) * going_on)
    share = np.where(comes > 1e-9, kept / np.maximum(comes, 1e-9), going_on)[at]
    expected = e._replace(
        counts=e.counts * share[:, None],
        sure=e.sure * share,
        found=e.found * share[:, None],
        admissible=e.admissible * share[:, None],
        admissible2=e.admissible2 * share[:, None] ** 2,
        squares=e.squares * share**2,
    )
    names = ("tool", "box", "second", "sampler", "admitted", "kv", "batch")
    return expected, s._replace(**{name: getattr(s, name) * going_on for name in names})
