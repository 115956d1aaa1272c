"""In which phase of a rollout a forecast was made: where its error is looked at apart."""

from typing import Final, Literal

from prorsa.clock import NS_PER_S
from prorsa.events import Stamped, StepBegin, WeightsUpdateEnd

Phase = Literal["start", "sync", "drain", "steady"]

PHASES: Final[tuple[Phase, ...]] = ("start", "sync", "drain", "steady")
TRANSIENT: Final[tuple[Phase, ...]] = ("start", "sync", "drain")

TRANSIENT_S: Final = 120.0
"""How long the start of a run, and what follows a step's start or a weight update, counts as a phase of its own."""

DRAINING: Final = 0.9
"""A rollout drains once fewer than this share of the most trajectories that were live since its last start are."""


class PhaseTracker:
    """Follows a run's events and says its phase at each tick.

    ``start``: the first 120 s. ``sync``: 120 s after each start of a step and each weight update. ``drain``: fewer than
    nine tenths of the most trajectories since then are live, so that no more are dispatched. ``steady``: the rest. The
    first that holds, in this order.
    """

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._synced_s = float("-inf")
        self._most_live = 0

    def observe(self, stamped: Stamped) -> None:
        """Take one event of the run."""
        t_s = stamped.t_ns / NS_PER_S
        if self._begun_s is None:
            self._begun_s = t_s
        if isinstance(stamped.event, StepBegin | WeightsUpdateEnd):
            self._synced_s = t_s
            self._most_live = 0

    def at(self, t_s: float, live: int) -> Phase:
        """The phase at a tick with ``live`` trajectories; ticks come in order."""
        self._most_live = max(self._most_live, live)
        if self._begun_s is None or t_s < self._begun_s + TRANSIENT_S:
            return "start"
        if t_s < self._synced_s + TRANSIENT_S:
            return "sync"
        return "drain" if live < DRAINING * self._most_live else "steady"
