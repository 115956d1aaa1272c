"""Stretches within a trajectory: its sandbox's start-up, its tools, its reward."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Literal, Self

from prorsa.events import (
    Event,
    RewardEnd,
    RewardStart,
    SandboxFailed,
    SandboxReady,
    SandboxStart,
    ToolEnd,
    ToolStart,
)
from prorsa.rollout.scope import Scope

if TYPE_CHECKING:
    from prorsa.rollout.trajectory import Trajectory

Outcome = Literal["ok", "error", "timeout"]

_OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "error", "timeout")


class Span(Scope):
    """A stretch of one trajectory. It is entered once; a trajectory that ends closes what is open in it."""

    __slots__ = ("_generation", "trajectory")

    def __init__(self, trajectory: "Trajectory") -> None:
        self.trajectory = trajectory
        self._generation = -1

    def start(self) -> Self:
        """Mark the beginning; starts the trajectory too if that has not been done."""
        self._generation = self.trajectory.channel.generation
        self.trajectory.open(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end, which ``error`` has brought about, or None if all went well. Only the first call counts."""
        self.trajectory.close(self, error)

    @abstractmethod
    def opening(self) -> Event:
        """The event of the beginning."""

    @abstractmethod
    def closing(self, error: BaseException | None, *, cut_short: bool) -> Event:
        """The event of the end; ``cut_short`` if the trajectory ended first."""

    def cut_short(self) -> None:
        """The trajectory ends while this is open; the caller holds the channel's lock."""

    def _leave(self, error: BaseException | None) -> None:
        # A forked child also leaves the blocks that its parent has entered, and the parent is still in them.
        if self._generation == self.trajectory.channel.generation:
            self.end(error)


class Sandbox(Span):
    """The start-up of a sandbox: ready at the end of the block, failed if an exception ends it."""

    __slots__ = ("_expected_s", "_image")

    def __init__(self, trajectory: "Trajectory", image: str | None, expected_s: float | None) -> None:
        super().__init__(trajectory)
        self._image = image
        self._expected_s = expected_s

    def opening(self) -> Event:
        """``sandbox.start``."""
        channel = self.trajectory.channel
        return SandboxStart(
            trajectory_id=self.trajectory.trajectory_id,
            image=channel.text("image", self._image),
            expected_s=channel.seconds("expected_s", self._expected_s),
        )

    def closing(self, error: BaseException | None, *, cut_short: bool) -> Event:
        """``sandbox.ready`` or ``sandbox.failed``."""
        name = self.trajectory.trajectory_id
        if cut_short:
            return SandboxFailed(trajectory_id=name, reason="the trajectory ended first")
        if error is not None:
            # The type alone: messages may hold what must not get into a journal.
            return SandboxFailed(trajectory_id=name, reason=type(error).__name__)
        return SandboxReady(trajectory_id=name)


class Tool(Span):
    """A tool call.

    Attributes:
        output_tokens: tokens of what it returned; set it where known.
        status: set it where the block does not show it; else ``ok``, ``timeout`` for a TimeoutError, ``error`` for
            other exceptions, and unknown for a cancellation.
    """

    __slots__ = ("_expected_s", "_name", "output_tokens", "status")

    def __init__(self, trajectory: "Trajectory", name: str, expected_s: float | None) -> None:
        super().__init__(trajectory)
        self._name = name
        self._expected_s = expected_s
        self.output_tokens: int | None = None
        self.status: Outcome | None = None

    def opening(self) -> Event:
        """``tool.start``."""
        channel = self.trajectory.channel
        self._name = channel.text("tool name", self._name) or "unknown"
        expected_s = channel.seconds("expected_s", self._expected_s)
        return ToolStart(trajectory_id=self.trajectory.trajectory_id, tool_name=self._name, expected_s=expected_s)

    def closing(self, error: BaseException | None, *, cut_short: bool) -> Event:
        """``tool.end``."""
        channel = self.trajectory.channel
        return ToolEnd(
            trajectory_id=self.trajectory.trajectory_id,
            tool_name=self._name,
            status=channel.one_of("status", self.status, _OUTCOMES) or outcome(error, cut_short=cut_short),
            output_tokens=channel.count("output_tokens", self.output_tokens),
        )


class Subagent(Tool):
    """The time in which a trajectory waits for a trajectory of its own; ends with it, and ends it with itself."""

    __slots__ = ("child",)

    child: "Trajectory"

    def cut_short(self) -> None:
        """The parent ends: so does its sub-agent."""
        self.child.end_locked("aborted")


class Reward(Span):
    """The scoring of a trajectory; ``status`` as for :class:`Tool`."""

    __slots__ = ("status",)

    def __init__(self, trajectory: "Trajectory") -> None:
        super().__init__(trajectory)
        self.status: Outcome | None = None

    def opening(self) -> Event:
        """``reward.start``."""
        return RewardStart(trajectory_id=self.trajectory.trajectory_id)

    def closing(self, error: BaseException | None, *, cut_short: bool) -> Event:
        """``reward.end``."""
        status = self.trajectory.channel.one_of("status", self.status, _OUTCOMES)
        return RewardEnd(
            trajectory_id=self.trajectory.trajectory_id, status=status or outcome(error, cut_short=cut_short)
        )


def outcome(error: BaseException | None, *, cut_short: bool) -> Outcome | None:
    """What the end of a block says: None if it was cancelled, or the trajectory ended first."""
    if cut_short:
        return None
    if error is None:
        return "ok"
    if isinstance(error, TimeoutError):
        return "timeout"
    return "error" if isinstance(error, Exception) else None
