"""Where the console's events come from: a run that goes on, or a recording of one."""

from typing import Protocol

from prorsa.console.status import FeedStatus
from prorsa.events import Stamped


class Sink(Protocol):
    """What takes the events: the model."""

    def apply(self, stamped: Stamped) -> None:
        """Take one event."""

    def reset(self) -> None:
        """Forget all events so far: a replay has jumped."""


class Player(Protocol):
    """The controls of a recording."""

    def toggle(self) -> None:
        """Play if it is paused, else pause."""

    def seek(self, t_ns: int) -> None:
        """Jump to a run time, within the recording."""

    def step(self) -> None:
        """Go on to the next view, and pause there."""

    def scale(self, factor: float) -> None:
        """Multiply the speed."""


class Feed(Protocol):
    """A source of events."""

    @property
    def player(self) -> Player | None:
        """Its controls, if it is a recording."""

    def status(self) -> FeedStatus:
        """How it stands at this moment."""

    async def run(self, sink: Sink) -> None:
        """Hand events to ``sink`` until cancelled.

        Raises:
            ProrsaError: if there is nothing to read.
        """
