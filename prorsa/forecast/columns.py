"""The live trajectories as arrays with one slot each, so that a tick looks at all of them without a loop."""

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

FREE: Final = -1
HOMES: Final = 12
"""Ranks that are remembered to hold a part of a context: where it was, and where its siblings were."""


class State(IntEnum):
    """Where a live trajectory stands. ``done``, ``failed`` and ``aborted`` are left out: an ended one has no slot."""

    DISPATCHED = 0
    SANDBOX = 1
    READY = 2
    PREFILL = 3
    DECODE = 4
    TOOL = 5
    REWARD = 6


class Columns:
    """Arrays over slots; a slot whose ``state`` is ``FREE`` holds no trajectory.

    Attributes:
        state: int8, a :class:`State` or ``FREE``.
        key: int32, the wait that the trajectory is in, a key of the duration model (tool, start-up, return, reward).
        workload: int32, the number of its workload class; 0 where unknown.
        action: int32, the action (tool, or the class's beginning) that runs, or ran last; 0 where unknown.
        home: int32[HOMES], ranks where it was prefilled, the last first, then those of its siblings; -1 where there is
            none. ``held_tokens`` float64[HOMES], how much of its prompt each held then.
        group: int32, the number of the group that shares its first prompt; -1 where there is none. Numbers are given
            again once all of a group have ended.
        sibling: bool, whether another of its group has its first prompt, the same, computed before it; no longer
            once its own is sent to a worker.
        fate: how much likelier an end is than for others, by what its siblings did; see :mod:`~prorsa.forecast.fates`.
        longer, slower, larger: float64, what is expected of its answers, tools and results as multiples of the usual,
            by what it and its siblings did; see :mod:`~prorsa.forecast.effects`.
        since_s: when that wait began; NaN where unknown.
        expected_s: how long its owner expects the wait to take; NaN where it has not said.
        turn: index of the current turn; -1 before the first.
        prompt_tokens: whole prompt of the current turn; before the first turn that of the dispatch, NaN where unknown.
        first_tokens: prompt of the first turn; NaN before it or where unknown.
        uncached_tokens: of the current request by the router's prefix index, or an estimate; NaN before it is ready.
        computed_tokens: of those, chunks already computed.
        ready_s: when the current request became ready.
        answered_s: end of the answer before that request; NaN for first turns or where unknown.
        output_tokens: of the current turn so far, as last heard at ``output_at_s``.
        admitted: bool, whether decode holds KV for the current request.
        retried: bool, whether the current request has been prefilled before and must be again.
        flushed: bool, whether the context was dropped from every cache since its last prefill.
    """

    def __init__(self, capacity: int = 64) -> None:
        self.state: NDArray[np.int8] = np.full(capacity, FREE, np.int8)
        self.key: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.workload: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.action: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.home: NDArray[np.int32] = np.full((capacity, HOMES), -1, np.int32)
        self.held_tokens = np.zeros((capacity, HOMES))
        self.group: NDArray[np.int32] = np.full(capacity, -1, np.int32)
        self.turn: NDArray[np.int32] = np.full(capacity, -1, np.int32)
        self.since_s = _floats(capacity)
        self.expected_s = _floats(capacity)
        self.prompt_tokens = _floats(capacity)
        self.first_tokens = _floats(capacity)
        self.uncached_tokens = _floats(capacity)
        self.computed_tokens = _floats(capacity)
        self.ready_s = _floats(capacity)
        self.answered_s = _floats(capacity)
        self.output_tokens = _floats(capacity)
        self.output_at_s = _floats(capacity)
        self.admitted = np.zeros(capacity, np.bool_)
        self.retried = np.zeros(capacity, np.bool_)
        self.flushed = np.zeros(capacity, np.bool_)
        self.sibling = np.zeros(capacity, np.bool_)
        self.fate = np.ones(capacity)
        self.longer, self.slower, self.larger = np.ones(capacity), np.ones(capacity), np.ones(capacity)
        self._free = list(range(capacity - 1, -1, -1))

    def prefilled_at(self, slot: int, rank: int) -> int:
        """The current prompt of a slot is prefilled at a rank: its context is at home there.

        Returns:
            0 if it was before, more if it was earlier, -1 if the rank is not known to hold any of it.
        """
        home, held = self.home[slot], self.held_tokens[slot]
        known = np.flatnonzero(home == rank)
        last = int(known[0]) if len(known) else HOMES - 1
        home[1 : last + 1], held[1 : last + 1] = home[:last].copy(), held[:last].copy()
        home[0], held[0] = rank, self.prompt_tokens[slot]
        return last if len(known) else -1

    def found_at(self, slot: int, rank: int, tokens: float) -> None:
        """A rank holds the first ``tokens`` of a slot's context, though the slot was never there."""
        home = self.home[slot]
        if rank in home:
            return
        free = np.flatnonzero(home < 0)
        at = int(free[0]) if len(free) else HOMES - 1
        home[at], self.held_tokens[slot, at] = rank, tokens

    @property
    def capacity(self) -> int:
        """Slots that there are, taken or not."""
        return len(self.state)

    def take(self) -> int:
        """A fresh slot in state ``DISPATCHED``; the arrays double when none is left."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.state[slot] = State.DISPATCHED
        self.key[slot] = self.workload[slot] = self.action[slot] = 0
        self.turn[slot] = -1
        self.home[slot] = self.group[slot] = -1
        for name in _FLOATS:
            getattr(self, name)[slot] = np.nan
        self.computed_tokens[slot] = self.output_tokens[slot] = 0.0
        for name in _FACTORS:
            getattr(self, name)[slot] = 1.0
        for name in _FLAGS:
            getattr(self, name)[slot] = False
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self.state[slot] = FREE
        self._free.append(slot)

    def _grow(self) -> None:
        old = self.capacity
        for name in (*_FLOATS, *_FLAGS, *_FACTORS, *_NUMBERS):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.state[old:] = FREE
        self._free.extend(range(2 * old - 1, old - 1, -1))


_FLOATS: Final = (
    "since_s",
    "expected_s",
    "prompt_tokens",
    "first_tokens",
    "uncached_tokens",
    "computed_tokens",
    "ready_s",
    "answered_s",
    "output_tokens",
    "output_at_s",
)
_FLAGS: Final = ("admitted", "retried", "flushed", "sibling")
_FACTORS: Final = ("fate", "longer", "slower", "larger")
_NUMBERS: Final = ("state", "key", "workload", "action", "home", "held_tokens", "turn", "group")


def _floats(capacity: int) -> NDArray[np.float64]:
    return np.full(capacity, np.nan)
