"""A controller over a simulated cluster: what one says is fed to the other, tick by tick."""

import copy
from collections.abc import Callable, Iterable

from prorsa.clock import nanoseconds
from prorsa.cluster.sim.simulation import Simulation
from prorsa.control.controller import Controller, Step
from prorsa.events import Admission, AnyEvent, ForecastRow, Move, Stamped


def _forget(_: Stamped) -> None:
    """Nobody keeps the events."""


class Driver:
    """Feeds the controller what the simulation emits, and the simulation what the controller decides.

    Args:
        tick_s: run seconds between two ticks.
        ticks: how many have been already, where it takes over in the middle of a run.
        keep: is given every event, stamped as a hub would.
    """

    def __init__(
        self,
        simulation: Simulation,
        controller: Controller,
        tick_s: float,
        *,
        ticks: int = 0,
        keep: Callable[[Stamped], None] = _forget,
    ) -> None:
        self.simulation = simulation
        self.controller = controller
        self.tick_s = tick_s
        self.ticks = ticks
        self.hub_seq = 0
        self._keep = keep
        self._seqs: dict[str, int] = {}

    def fork(self) -> "Driver":
        """An independent copy that goes on as this one would, and whose events nobody keeps."""
        forked = Driver(self.simulation.copy(), copy.deepcopy(self.controller), self.tick_s, ticks=self.ticks)
        forked.hub_seq, forked._seqs = self.hub_seq, dict(self._seqs)
        return forked

    @property
    def due_s(self) -> float:
        """When the next tick is."""
        return (self.ticks + 1) * self.tick_s

    def advance(self) -> None:
        """Simulate up to the next tick, or to the end of the run."""
        while self.simulation.now_s < self.due_s and not self.simulation.done:
            self._take("cluster", self.simulation.advance(self.due_s))

    def tick(self, perfect: tuple[ForecastRow, ...] = ()) -> None:
        """The tick that is due; see `Controller.tick`."""
        now_s = self.due_s
        self.ticks += 1
        self._carry_out(self.controller.tick(nanoseconds(now_s), self.hub_seq, perfect), now_s)

    def observe(self, source: str, t_s: float, event: AnyEvent) -> None:
        """Feed the controller an event from elsewhere, such as an operator's command."""
        self._carry_out(self.controller.observe(self.stamp(source, t_s, event)), t_s)

    def start(self, moves: tuple[Move, ...], t_s: float) -> None:
        """Start flips that somebody else has decided, where they are still possible."""
        step = Step()
        self.controller.start(moves, 0, nanoseconds(t_s), step)
        self._carry_out(step, t_s)

    def stamp(self, source: str, t_s: float, event: AnyEvent) -> Stamped:
        """Give an event its place in the run."""
        self.hub_seq += 1
        seq = self._seqs[source] = self._seqs.get(source, -1) + 1
        stamped = Stamped(self.hub_seq, nanoseconds(t_s), source, seq, 0, event)
        self._keep(stamped)
        return stamped

    def _take(self, source: str, events: Iterable[tuple[float, AnyEvent]]) -> None:
        for t_s, event in events:
            self._carry_out(self.controller.observe(self.stamp(source, t_s, event)), t_s)

    def _carry_out(self, step: Step, t_s: float) -> None:
        for event in step.events:
            self.stamp("controller", t_s, event)
            if isinstance(event, Admission) and event.mode == "gate":
                self._take("cluster", self.simulation.admit(event.limit))
        for effect in step.effects:
            self._take("cluster", self.simulation.perform(effect))
