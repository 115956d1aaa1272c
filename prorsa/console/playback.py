"""A recording as a feed: paced by a clock of its own, with pause, jumps, steps and speeds."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from prorsa.bus.reading import JournalReader
from prorsa.clock import RunClock, nanoseconds
from prorsa.console.feeds import BURST_EVENTS, HISTORY_S, Sink
from prorsa.console.model import TOPICS
from prorsa.console.status import FeedState, FeedStatus
from prorsa.errors import JournalError
from prorsa.events import Stamped, View

DEFAULT_SPEED: Final = 20.0
SLOWEST: Final = 0.25
FASTEST: Final = 640.0
_POLL_S: Final = 0.05


class JournalFeed:
    """Plays a journal. It is its own player.

    A jump folds the half hour before the place that it goes to, so that the charts have their past there.

    Args:
        directory: the journal.
        speed: run seconds in a wall second to begin with.
        monotonic_ns: the clock that paces; replaced in tests.

    Raises:
        JournalError: if there is no journal, it cannot be read, or it is empty.
    """

    def __init__(
        self, directory: Path, *, speed: float = DEFAULT_SPEED, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._reader = JournalReader(directory)
        first, last = next(self._reader.rows(), None), self._reader.last()
        if first is None or last is None:
            raise JournalError(f"journal {directory} holds no events; name the directory of a recorded run")
        self.directory = directory
        self.from_ns, self.to_ns = first.t_ns, last.t_ns
        self._clock = RunClock(speed, self.from_ns, monotonic_ns)
        self._paused_at_ns: int | None = None
        self._seek_ns: int | None = None
        self._steps = 0
        self._coming: Iterator[Stamped] = iter(())
        self._next: Stamped | None = None
        self._wake = asyncio.Event()

    @property
    def player(self) -> "JournalFeed":
        """Itself."""
        return self

    @property
    def now_ns(self) -> int:
        """Where in the recording it stands."""
        now_ns = self._clock.now_ns() if self._paused_at_ns is None else self._paused_at_ns
        return min(now_ns, self.to_ns)

    def status(self) -> FeedStatus:
        """Where it stands and whether it plays."""
        return FeedStatus(
            kind="replay",
            state=self._state(),
            where=str(self.directory),
            now_ns=self.now_ns,
            speed=self._clock.speed,
            from_ns=self.from_ns,
            to_ns=self.to_ns,
        )

    def _state(self) -> FeedState:
        if self.now_ns >= self.to_ns and self._seek_ns is None:
            return "ended"
        return "playing" if self._paused_at_ns is None else "paused"

    # --- the controls ----------------------------------------------------------------------------------------------

    def toggle(self) -> None:
        """Play or pause; at the end, play from the beginning."""
        if self._state() == "ended":
            self.seek(self.from_ns)
            self._resume(self.from_ns)
        elif self._paused_at_ns is None:
            self._paused_at_ns = self.now_ns
        else:
            self._resume(self._paused_at_ns)
        self._wake.set()

    def seek(self, t_ns: int) -> None:
        """Jump to a run time, or to the end of the recording that is nearest to it."""
        self._seek_ns = min(max(t_ns, self.from_ns), self.to_ns)
        if self._paused_at_ns is not None:
            self._paused_at_ns = self._seek_ns
        else:
            self._clock.steer(self._seek_ns)
        self._wake.set()

    def step(self) -> None:
        """Go on to the next view, and pause there."""
        self._paused_at_ns = self.now_ns
        self._steps += 1
        self._wake.set()

    def scale(self, factor: float) -> None:
        """Multiply the speed, between a quarter and 640 times that of the run."""
        speed = min(max(self._clock.speed * factor, SLOWEST), FASTEST)
        self._clock.steer(self._clock.now_ns(), speed)

    def _resume(self, at_ns: int) -> None:
        self._paused_at_ns = None
        self._clock.steer(at_ns)

    # --- the player ------------------------------------------------------------------------------------------------

    async def run(self, sink: Sink) -> None:
        """Hand events to ``sink`` as their time comes, until cancelled."""
        self._go_to(0)
        self._clock.steer(self.now_ns)
        try:
            while True:
                self._wake.clear()
                await self._advance(sink)
                await self._sleep()
        finally:
            self._reader.close()

    async def _advance(self, sink: Sink) -> None:
        """Fold all whose time has come, after a jump that was asked for."""
        if self._seek_ns is not None:
            target_ns, self._seek_ns = self._seek_ns, None
            sink.reset()
            self._go_to(self._reader.seq_before(max(target_ns - nanoseconds(HISTORY_S), 0)))
        folded = 0
        while self._next is not None and self._seek_ns is None and self._due(self._next):
            self._take(sink, self._next)
            folded += 1
            if folded % BURST_EVENTS == 0:
                await asyncio.sleep(0)

    def _due(self, stamped: Stamped) -> bool:
        return self._steps > 0 or stamped.t_ns <= self.now_ns

    def _take(self, sink: Sink, stamped: Stamped) -> None:
        sink.apply(stamped)
        self._next = next(self._coming, None)
        if self._steps and (isinstance(stamped.event, View) or self._next is None):
            self._steps -= 1
            self._paused_at_ns = stamped.t_ns

    async def _sleep(self) -> None:
        idle = self._next is None or self._paused_at_ns is not None
        try:
            async with asyncio.timeout(None if idle else _POLL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _go_to(self, after_seq: int) -> None:
        self._coming = self._reader.read(after_seq, types=TOPICS)
        self._next = next(self._coming, None)
