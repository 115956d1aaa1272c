"""A recording as a feed: the bus plays it, the console has the controls."""

from pathlib import Path
from typing import Final

from prorsa.bus.journal import JournalReader
from prorsa.bus.replayer import JournalPlayer
from prorsa.clock import nanoseconds
from prorsa.console.feeds import HISTORY_S, Sink
from prorsa.console.model import TOPICS
from prorsa.console.status import FeedState, FeedStatus
from prorsa.errors import JournalError
from prorsa.events import Alert, AnyEvent, Decision, Flip, View, type_name

DEFAULT_SPEED: Final = 20.0
SLOWEST: Final = 0.25
FASTEST: Final = 640.0


class JournalFeed:
    """Plays a journal. It is its own player, whose times count from the run's beginning.

    Args:
        directory: the journal.
        speed: run seconds in a wall second to begin with.

    Raises:
        JournalError: if there is no journal, it cannot be read, or it is empty.
    """

    def __init__(self, directory: Path, *, speed: float = DEFAULT_SPEED) -> None:
        self.directory = directory
        self._reader = JournalReader(directory)
        first = next(self._reader.rows(), None)
        if first is None:
            raise JournalError(f"journal {directory} holds no events; name the directory of a recorded run")
        self.from_ns = first.t_ns
        self._speed = speed
        self._playing: JournalPlayer | None = None
        self._sink: Sink | None = None

    @property
    def player(self) -> "JournalFeed":
        """Itself."""
        return self

    @property
    def position_seq(self) -> int:
        """``hub_seq`` of the last event that was given."""
        return 0 if self._playing is None else self._playing.position_seq

    def status(self) -> FeedStatus:
        """Where it stands and whether it plays."""
        playing = self._playing
        if playing is None:
            return FeedStatus("replay", "connecting", str(self.directory))
        return FeedStatus(
            kind="replay",
            state=_state(playing),
            where=str(self.directory),
            now_ns=playing.position_ns,
            speed=playing.speed,
            from_ns=self.from_ns,
            to_ns=playing.end_ns,
        )

    async def run(self, sink: Sink) -> None:
        """Hand events to ``sink`` as their time comes, until cancelled; at the end wait for a jump."""
        self._sink = sink
        # A player belongs to the event loop that it is made in.
        self._playing = JournalPlayer(self._reader, speed=self._speed, hold=True)
        with self._reader:
            while True:
                for stamped in await self._playing.burst():
                    sink.apply(stamped)

    def toggle(self) -> None:
        """Play or pause; at the end, play from the beginning."""
        if self._playing is None:
            return
        if self._playing.ended:
            self.seek(self.from_ns)
            self._playing.resume()
        elif self._playing.paused:
            self._playing.resume()
        else:
            self._playing.pause()

    def pause(self) -> None:
        """Let time stand still."""
        if self._playing is not None:
            self._playing.pause()

    def seek(self, t_ns: int) -> None:
        """Jump to a run time, or to the end of the recording that is nearest to it.

        What the charts show of the time before it is folded at once.
        """
        if self._playing is None or self._sink is None:
            return
        self._playing.seek(min(max(t_ns, self.from_ns), self._playing.end_ns))
        self._sink.reset()
        begin = self._reader.seq_before(max(t_ns - nanoseconds(HISTORY_S), 0))
        for stamped in self._reader.read(begin, self._playing.position_seq, TOPICS):
            self._sink.apply(stamped)

    def step(self) -> None:
        """Go on to the next view, and pause there."""
        if self._playing is None:
            return
        at_seq = self._playing.position_seq
        view = next(self._reader.rows(at_seq, types=(type_name(View),)), None)
        self._playing.step(view.hub_seq - at_seq if view is not None else 1)

    def next_moment(self, kind: str) -> int | None:
        """Run time just past the next decision that moves workers, flip, or alert raised; None if there is none.

        ``kind`` is ``decision``, ``flip`` or ``alert``.
        """
        for stamped in self._reader.read(self.position_seq, types=(kind,)):
            if _is_moment(stamped.event) and self._playing is not None and stamped.t_ns >= self._playing.position_ns:
                return stamped.t_ns + 1
        return None

    def set_speed(self, speed: float) -> None:
        """Set the speed, between a quarter and 640 times that of the run."""
        self.scale(speed / self._speed)

    def scale(self, factor: float) -> None:
        """Multiply the speed, between a quarter and 640 times that of the run."""
        self._speed = min(max(self._speed * factor, SLOWEST), FASTEST)
        if self._playing is not None:
            self._playing.speed = self._speed


def _is_moment(event: AnyEvent) -> bool:
    match event:
        case Decision():
            return bool(event.moves)
        case Flip():
            return event.state == "fenced" and event.from_role != event.to_role
        case Alert():
            return event.severity != "info"
        case _:
            return False


def _state(playing: JournalPlayer) -> FeedState:
    if playing.ended:
        return "ended"
    return "paused" if playing.paused else "playing"
