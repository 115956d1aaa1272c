"""Who is live, in which state, and what each waits for."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from prorsa.forecast.columns import FREE, Columns, State
from prorsa.forecast.folding import RecentIds
from prorsa.forecast.requests import LifecycleSink
from prorsa.forecast.waits import Wait

_ENDED: Final = len(State)

MAX_ENDED_IDS: Final = 4096
"""Ended trajectories that are remembered, so that events that come late do not bring them back."""


class Standing(NamedTuple):
    """A live trajectory: its slot, and since when it has been live and in its state, as far as was heard."""

    name: str
    slot: int
    born_s: float | None
    entered_s: float | None


class Roster:
    """The live trajectories and their slots.

    Attributes:
        columns: their state as arrays.
        repaired: counters of events that did not fit; shared with the table.
        done: trajectories that have ended.
    """

    def __init__(self, sink: LifecycleSink, repaired: dict[str, int]) -> None:
        self.columns = Columns()
        self.repaired = repaired
        self.done = 0
        self._sink = sink
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._heard_s: dict[int, float] = {}
        self._counts = [0] * len(State)
        self._flows: Counter[tuple[int, int]] = Counter()
        self._born_s: dict[int, float] = {}
        self._entered_s: dict[int, float] = {}
        self._ended_ids = RecentIds(MAX_ENDED_IDS)

    def __len__(self) -> int:
        return len(self._slots)

    def counts(self) -> dict[str, int]:
        """Live trajectories by the lower-case name of their state."""
        return {state.name.lower(): self._counts[state] for state in State}

    def flows(self) -> dict[str, int]:
        """How many trajectories have gone from one state to another since the run began, as ``decode>tool``."""
        return {f"{_name(before)}>{_name(after)}": count for (before, after), count in self._flows.items()}

    def standings(self) -> Iterator[Standing]:
        """Every live trajectory, in no order."""
        for name, slot in self._slots.items():
            yield Standing(name, slot, self._born_s.get(slot), self._entered_s.get(slot))

    def find(self, name: str | None) -> int | None:
        """The slot of a trajectory if it is live."""
        return self._slots.get(name) if name is not None else None

    def has_ended(self, name: str) -> bool:
        """Whether the trajectory is among those that ended lately."""
        return name in self._ended_ids

    def remember_ended(self, name: str) -> None:
        """A trajectory has ended of which nothing else was heard."""
        self._ended_ids.add(name)

    def slot(self, name: str | None, t_s: float, *, inferred: bool = True) -> int | None:
        """The slot of a trajectory, taken if it is new; None if it is unknown which, or it has ended."""
        if name is None:
            return None
        slot = self._slots.get(name)
        if slot is None:
            if name in self._ended_ids:
                self.repaired["late"] += 1
                return None
            slot = self._take(name)
            self._born_s[slot] = self._entered_s[slot] = t_s
            self.repaired["trajectory_inferred"] += inferred
        self.hear(slot, t_s)
        return slot

    def _take(self, name: str) -> int:
        slot = self.columns.take()
        self._slots[name] = slot
        self._names[slot] = name
        self._counts[State.DISPATCHED] += 1
        self.columns.key[slot] = Wait.START
        return slot

    def hear(self, slot: int, t_s: float) -> None:
        """The trajectory of a slot (-1 for none) has been heard of."""
        if slot >= 0:
            # Taken out and put back: the order of this dict is the order of last hearing.
            self._heard_s.pop(slot, None)
            self._heard_s[slot] = t_s

    def silent_since(self, t_s: float) -> int | None:
        """The slot that was silent for longest, if it was last heard of by ``t_s``."""
        if not self._heard_s:
            return None
        slot, heard_s = next(iter(self._heard_s.items()))
        return slot if heard_s <= t_s else None

    def slots(self) -> list[int]:
        """All slots that are taken."""
        return list(self._names)

    def state(self, slot: int) -> State:
        """The state of a live trajectory."""
        return State(int(self.columns.state[slot]))

    def enter(self, slot: int, state: State) -> None:
        """Move a trajectory to a state."""
        states = self.columns.state
        before = int(states[slot])
        self._counts[before] -= 1
        self._counts[state] += 1
        states[slot] = state
        if before != state:
            self._flows[before, int(state)] += 1
            self._entered_s[slot] = self._heard_s.get(slot, self._entered_s.get(slot, 0.0))

    def wait(self, slot: int, key: int, t_s: float, expected_s: float | None = None) -> None:
        """A wait begins; ``expected_s`` is what its owner expects."""
        columns = self.columns
        columns.key[slot] = key
        columns.since_s[slot] = t_s
        columns.expected_s[slot] = expected_s or np.nan

    def close_wait(self, slot: int, t_s: float) -> None:
        """The wait under way has ended; its length is told unless its beginning is unknown."""
        columns = self.columns
        since_s, expected_s = float(columns.since_s[slot]), float(columns.expected_s[slot])
        if not np.isnan(since_s):
            hint = None if np.isnan(expected_s) else expected_s
            self._sink.waited(int(columns.key[slot]), max(t_s - since_s, 0.0), hint, float(columns.slower[slot]))

    def flush(self) -> None:
        """Every live context has been dropped from all caches."""
        self.columns.flushed[:] = self.columns.state != FREE
        self.columns.home[:] = -1

    def release(self, slot: int) -> None:
        """A trajectory has ended; its slot is free."""
        name = self._names.pop(slot)
        del self._slots[name]
        self._heard_s.pop(slot, None)
        self._ended_ids.add(name)
        self._counts[self.columns.state[slot]] -= 1
        self._flows[int(self.columns.state[slot]), _ENDED] += 1
        self._born_s.pop(slot, None)
        self._entered_s.pop(slot, None)
        self.columns.release(slot)
        self.done += 1
        self._sink.ended()


def _name(state: int) -> str:
    return "done" if state == _ENDED else State(state).name.lower()
