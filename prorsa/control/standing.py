"""What the ratio formula remembers: the backlog that stands, and moves that did not hold."""

import math
from collections import deque
from typing import Final

from prorsa.clock import seconds
from prorsa.control.policies.base import Context

_FORGET_S: Final = 300.0
"""After how long doubt about moves has lost 63 %: phases of a rollout last minutes."""
_MOST_TURNS: Final = 5.0
"""Turns that are remembered at the most: 32 times the cost."""


class Standing:
    """The backlog that does not go away: the least that there has been over the decision horizon at the present split.

    A burst is worked off within it by any split that fits the load. Where all trajectories wait in turn, no more come
    than are answered: the present split seems to fit what arrives, whatever it is. Only what stands tells otherwise.
    """

    def __init__(self) -> None:
        self._backlogs: deque[tuple[int, float]] = deque()
        self._prefill: int | None = None

    def update(self, context: Context, backlog_tokens: float) -> float:
        """Take the backlog at a decision; tokens that have waited all the time, 0 before a whole horizon was seen."""
        horizon_s = context.config.decision_horizon_s
        if context.current.prefill != self._prefill:
            self._prefill = context.current.prefill
            self._backlogs.clear()
        while len(self._backlogs) > 1 and seconds(context.t_ns - self._backlogs[1][0]) >= horizon_s:
            self._backlogs.popleft()
        self._backlogs.append((context.t_ns, backlog_tokens))
        if seconds(context.t_ns - self._backlogs[0][0]) < horizon_s:
            return 0.0
        return min(tokens for _, tokens in self._backlogs)

    def state(self) -> str:
        """A short text that differs when anything here does."""
        return " ".join(f"{t_ns}:{tokens:.9g}" for t_ns, tokens in self._backlogs)


class Turns:
    """Moves that were turned round: each doubles what the next must save, and all are forgotten within minutes.

    A move that is turned round has cost its prefixes twice and has saved nothing that lasts.
    """

    def __init__(self) -> None:
        self._prefill: int | None = None
        self._direction = 0
        self._doubt = 0.0
        self._as_of_ns = 0

    @property
    def factor(self) -> float:
        """How many times its cost a move must save."""
        return float(2.0**self._doubt)

    def update(self, context: Context) -> None:
        """See at a decision what has come of the last one."""
        prefill = context.current.prefill
        self._doubt *= math.exp(-seconds(context.t_ns - self._as_of_ns) / _FORGET_S)
        self._as_of_ns = context.t_ns
        if self._prefill is not None and prefill != self._prefill:
            direction = 1 if prefill > self._prefill else -1
            if direction == -self._direction:
                self._doubt = min(self._doubt + 1.0, _MOST_TURNS)
            self._direction = direction
        self._prefill = prefill

    def state(self) -> str:
        """A short text that differs when anything here does."""
        return f"{self._prefill} {self._direction} {self._doubt:.9g}"
