"""One trajectory as rollout code sees it."""

import uuid
from typing import Final, Literal, Self

from prorsa.events import EndStatus, TrajectoryDispatched, TrajectoryEnd
from prorsa.rollout.channel import Channel
from prorsa.rollout.scope import Scope
from prorsa.rollout.spans import Reward, Sandbox, Span, Subagent, Tool

SESSION_HEADERS: Final = ("X-Prorsa-Trajectory", "X-Session-ID", "X-SMG-Routing-Key")
"""Headers that carry the session key: Prorsa's router reads any of them, others read the second or the third."""


class Trajectory(Scope):
    """A trajectory, from its dispatch to its end. Made by :meth:`prorsa.rollout.Tracker.trajectory`.

    Use as ``async with`` or ``with`` block, which ends it as ``completed``, as ``failed`` if an exception leaves the
    block, or as ``aborted`` if it was cancelled; or call :meth:`start` and :meth:`end`. May be used from any thread
    and task. In a forked child the end of the block says nothing: the trajectory is still the parent's.
    """

    __slots__ = (
        "_generation", "_group_id", "_owned", "_phase", "_prompt_tokens", "_spans", "_within", "_workload",
        "channel", "status", "trajectory_id",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        trajectory_id: str,
        *,
        group_id: object = None,
        prompt_tokens: int | None = None,
        workload: str | None = None,
        owned: bool = True,
    ) -> None:
        self.channel = channel
        self.trajectory_id = trajectory_id
        """Unique over all processes of the run."""
        self.status: EndStatus | None = None
        """How it ended; None while it goes on."""
        self._group_id = group_id
        self._prompt_tokens = prompt_tokens
        self._workload = workload
        self._owned = owned
        self._phase: Literal["new", "open", "ended"] = "new" if owned else "open"
        self._generation = channel.generation
        self._spans: dict[Span, None] = {}  # what is open, in the order of its beginning
        self._within: Subagent | None = None

    # --- what rollout code calls ------------------------------------------------------------------------------------

    @property
    def session_key(self) -> str:
        """What the router tells this trajectory's requests by; the same as its id."""
        return self.trajectory_id

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers for each of its requests, so that the router knows whose they are; yours to change."""
        return dict.fromkeys(SESSION_HEADERS, self.trajectory_id)

    def start(self) -> Self:
        """The sampler has dispatched it; entering the block does this, if it has not been done before."""
        if self.channel.active:
            with self.channel.lock:
                if self._phase == "new":
                    self._start_locked()
                elif self._phase == "ended":
                    self.channel.problem("order", "a trajectory that has ended is started again")
        return self

    def end(self, status: EndStatus | str | None = None) -> None:
        """It is over: ``completed`` (also if not said), ``truncated``, ``aborted``, ``failed`` or ``filtered``.

        Closes what is open in it. Only the first end counts, so a block may be left with a status of its own.
        """
        if self.channel.active:
            with self.channel.lock:
                self.end_locked(self.channel.end_status(status))

    def sandbox(self, image: str | None = None, expected_s: float | None = None) -> Sandbox:
        """The start-up of its sandbox (not its use): ``async with t.sandbox("swe-bench"): box = await start()``."""
        return Sandbox(self, image, expected_s)

    def tool(self, name: str, expected_s: float | None = None) -> Tool:
        """A tool call: ``async with t.tool("bash", expected_s=4) as tool: ...; tool.output_tokens = 310``."""
        return Tool(self, name, expected_s)

    def reward(self) -> Reward:
        """Its scoring."""
        return Reward(self)

    def subagent(
        self,
        name: str = "agent",
        *,
        trajectory_id: str | None = None,
        prompt_tokens: int | None = None,
        workload: str | None = None,
        expected_s: float | None = None,
    ) -> "Trajectory":
        """A trajectory of its own that this one waits for, as for a tool: it has its own context and session key."""
        given = self.channel.text("trajectory_id", trajectory_id)
        child = Trajectory(
            self.channel,
            given or f"{self.trajectory_id[:240]}.{uuid.uuid4().hex[:8]}",
            group_id=self._group_id,
            prompt_tokens=prompt_tokens,
            workload=workload or self._workload,
        )
        child._within = Subagent(self, name, expected_s)
        child._within.child = child
        return child

    # --- for spans; all under the channel's lock --------------------------------------------------------------------

    def open(self, span: Span) -> None:
        """Begin a span."""
        if self.channel.active:
            with self.channel.lock:
                self.open_locked(span)

    def close(self, span: Span, error: BaseException | None) -> None:
        """End a span; nothing if it is not open, as after the end of the trajectory."""
        if self.channel.active:
            with self.channel.lock:
                self.close_locked(span, error)

    def end_locked(self, status: EndStatus) -> None:
        """End it and what is open in it; the caller holds the channel's lock."""
        if self._phase == "ended":
            return
        if self._phase == "new":
            self._start_locked()
        self._phase = "ended"
        self.status = status
        for span in reversed(list(self._spans)):
            span.cut_short()
            self.close_locked(span, None, cut_short=True)
        self.channel.emit(TrajectoryEnd(trajectory_id=self.trajectory_id, status=status))
        if self._within is not None:
            if status == "failed":
                self._within.status = "error"
            self._within.trajectory.close_locked(self._within, None, cut_short=status == "aborted")

    def _start_locked(self) -> None:
        channel = self.channel
        if self._within is not None:
            self._within.trajectory.open_locked(self._within)
        self._phase = "open"
        self._generation = channel.generation
        event = TrajectoryDispatched(
            trajectory_id=self.trajectory_id,
            group_id=channel.text("group_id", self._group_id),
            prompt_tokens=channel.count("prompt_tokens", self._prompt_tokens),
            workload=channel.text("workload", self._workload),
        )
        channel.emit(event)

    def open_locked(self, span: Span) -> None:
        """Like :meth:`open`; the caller holds the channel's lock."""
        if self._phase == "new":
            self._start_locked()
        if self._phase == "ended" or span in self._spans:
            why = "a trajectory that has ended goes on" if self._phase == "ended" else "a block is entered twice"
            self.channel.problem("order", f"{why}: {type(span).__name__.lower()} is left out")
            return
        self._spans[span] = None
        self.channel.emit(span.opening())

    def close_locked(self, span: Span, error: BaseException | None, *, cut_short: bool = False) -> None:
        """Like :meth:`close`; the caller holds the channel's lock. ``cut_short`` if the span did not end by itself."""
        if span in self._spans:
            del self._spans[span]
            self.channel.emit(span.closing(error, cut_short=cut_short))

    def _leave(self, error: BaseException | None) -> None:
        if not self._owned or self._generation != self.channel.generation:
            return
        if error is None:
            self.end("completed")
        else:
            # Cancellation, of whatever library, does not derive from Exception.
            self.end("failed" if isinstance(error, Exception) else "aborted")
