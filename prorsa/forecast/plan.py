"""What is known about the run as a whole: the sampler, steps, weight updates and who serves prefill."""

from typing import Final, Protocol

from prorsa import events as ev
from prorsa.clock import NS_PER_S
from prorsa.forecast.ending import StepGroups
from prorsa.forecast.waits import Wait

_HELD_BACK_S: Final = 3.0
"""A sampler that could dispatch and does not for so long is held back."""


class PlanSink(Protocol):
    """Hears how long the run's own waits take."""

    def waited(self, key: int, duration_s: float, expected_s: float | None) -> None:
        """A wait of kind ``key`` has ended after ``duration_s``."""


class RunPlan:
    """Follows run-level events; O(1) each.

    Attributes:
        mode: ``sync`` or ``async``; None before the sampler has said.
        anchor: the wait that the next burst of dispatches is in (a step's end, an update), and when it began; None
            while trajectories are being dispatched.
        flush_at_resume: whether the update under way, or announced, drops the caches.
        held_back: whether the sampler has had room for a while and dispatched nothing: a bound (staleness) holds it
            until the next weight update.
        groups: of the step under way, and how many end it.
        prefill_workers: workers that serve prefill, alone or mixed; None before any worker was heard of.
    """

    def __init__(self, sink: PlanSink) -> None:
        self._sink = sink
        self.mode: str | None = None
        self.anchor: tuple[Wait, float] | None = None
        self.flush_at_resume = False
        self.held_back = False
        self.expected_prompt_tokens: float | None = None
        self._room_since_s: float | None = None
        self._idle = False
        self._queued: int | None = None
        self._in_flight: int | None = None
        self._limit: int | None = None
        self._batch: int | None = None
        self._step_dispatched = 0
        self._step_ended_s: float | None = None
        self.groups = StepGroups()
        self._last_step_dispatched = 0
        self._update_begin_s: float | None = None
        self._roles: dict[str, ev.Role] = {}
        self._switching: set[str] = set()

    # --- what it knows ----------------------------------------------------------------------------------------------

    @property
    def prefill_workers(self) -> int | None:
        """Workers that serve prefill now, alone or mixed; None if no worker was ever heard of."""
        if not self._roles:
            return None
        return sum(role != "decode" and worker not in self._switching for worker, role in self._roles.items())

    def serves_prefill(self, worker_id: str) -> bool:
        """Whether a worker serves prefill now, alone or mixed."""
        return self._roles.get(worker_id, "decode") != "decode" and worker_id not in self._switching

    @property
    def left_to_dispatch(self) -> float:
        """Trajectories that may still be dispatched, in this step if there are steps; infinite where nothing tells."""
        left = float("inf") if self._queued is None else float(self._queued)
        if self.mode == "sync":
            left = min(left, max(self._step_size - self._step_dispatched, 0))
        return left

    @property
    def eventful(self) -> bool:
        """Whether an event of the run itself is under way or announced: a step's end, an update, a bound that holds."""
        return self.anchor is not None or self._update_begin_s is not None

    def updating(self, t_s: float) -> bool:
        """Whether the workers are in a weight update."""
        return self._update_begin_s is not None and self._update_begin_s <= t_s

    def update_begins_in(self, t_s: float) -> float | None:
        """Seconds to the beginning of an announced weight update; 0 if it is under way, None if there is none."""
        return None if self._update_begin_s is None else max(self._update_begin_s - t_s, 0.0)

    def update_elapsed_s(self, t_s: float) -> float:
        """Seconds since the update under way began; 0 if none has."""
        return 0.0 if self._update_begin_s is None else max(t_s - self._update_begin_s, 0.0)

    def due_now(self) -> float:
        """Trajectories that the sampler may dispatch at once: room under its limit, while something is queued."""
        return 0.0 if self.anchor is not None or self._idle else self._room

    def next_burst(self) -> float:
        """Trajectories that are dispatched at once when a step begins, or an update lets the sampler go on; 0 where
        nothing tells.
        """
        if self.held_back:
            return self._room
        size = self._step_size
        bounds = [bound for bound in (self._queued, self._limit) if bound is not None]
        return float(min([size, *bounds]))

    @property
    def _step_size(self) -> int:
        """Trajectories that a step dispatches: its batch, or more where steps are over-sampled."""
        return max(self._batch or 0, self._last_step_dispatched)

    @property
    def finishing(self) -> bool:
        """Whether a synchronous step is under way that dispatches no more, and another is to come after it."""
        under_way = self.mode == "sync" and self.anchor is None and self._step_dispatched > 0
        return under_way and self.left_to_dispatch <= 0 and (self._queued is None or self._queued > 0)

    @property
    def _room(self) -> float:
        """Trajectories that fit under the sampler's limit, while something is queued."""
        if self._queued is None or self._in_flight is None or self._limit is None:
            return 0.0
        return max(min(self.left_to_dispatch, self._limit - self._in_flight), 0.0)

    def advance(self, t_s: float) -> None:
        """A tick: a sampler that leaves room under its limit for longer than a moment dispatches no more for now.

        It is held back; or, if it goes step by step, this is room that a dispatch has taken that was not heard of.
        """
        if self._room <= 0.0 or (self.anchor is not None and not self.held_back):
            self._room_since_s = None
        elif self._room_since_s is None:
            self._room_since_s = t_s
        self._idle = self._room_since_s is not None and t_s - self._room_since_s >= _HELD_BACK_S
        held_back = self._idle and self.mode != "sync"
        if held_back and not self.held_back:
            self.anchor = (Wait.UPDATE, t_s)
        elif self.held_back and not held_back:
            self.anchor = None
        self.held_back = held_back

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, stamped: ev.Stamped) -> None:
        """Take one event."""
        event, t_s = stamped.event, stamped.t_ns / NS_PER_S
        match event:
            case ev.TrajectoryDispatched():
                self._on_dispatched(t_s)
                self.groups.dispatched(event.trajectory_id, event.group_id)
            case ev.RewardStart():
                self.groups.rewarding(event.trajectory_id)
            case ev.TrajectoryEnd():
                self.groups.ended(event.trajectory_id, aborted=event.status == "aborted")
                if self._in_flight is not None:
                    self._in_flight = max(self._in_flight - 1, 0)
            case ev.SamplerState():
                self._on_sampler(event)
            case ev.StepBegin():
                self._last_step_dispatched, self._step_dispatched = self._step_dispatched, 0
                self.groups.begin(event.target_groups)
                if self._step_ended_s is not None:
                    self._sink.waited(Wait.STEP_BREAK, max(t_s - self._step_ended_s, 0.0), None)
                self._end_anchor(t_s)
            case ev.StepEnd():
                self.anchor, self._step_ended_s = (Wait.STEP_GAP, t_s), t_s
            case ev.WeightsUpdateBegin():
                self._on_update_begin(event, t_s)
            case ev.WeightsUpdateEnd():
                self._on_update_end(t_s)
            case ev.WorkerUp() | ev.WorkerRole():
                self._roles[event.worker_id] = event.role
                self._switching.discard(event.worker_id)
            case ev.WorkerDown():
                self._roles.pop(event.worker_id, None)
            case ev.Flip():
                self._on_flip(event)

    def _on_dispatched(self, t_s: float) -> None:
        self._step_dispatched += 1
        if self._queued is not None:
            self._queued = max(self._queued - 1, 0)
        if self._in_flight is not None:
            self._in_flight += 1
        self._room_since_s, self._idle = None, False
        self._end_anchor(t_s)

    def _on_sampler(self, event: ev.SamplerState) -> None:
        self.mode = event.mode or self.mode
        self._queued = event.queued if event.queued is not None else self._queued
        self._in_flight = event.in_flight if event.in_flight is not None else self._in_flight
        self._limit = event.limit if event.limit is not None else self._limit
        self._batch = event.batch_size if event.batch_size is not None else self._batch
        if event.expected_prompt_tokens is not None:
            self.expected_prompt_tokens = event.expected_prompt_tokens

    def _on_update_begin(self, event: ev.WeightsUpdateBegin, t_s: float) -> None:
        self._update_begin_s = t_s + (event.expected_in_s or 0.0)
        self.flush_at_resume = bool(event.cache_flushed)

    def _on_update_end(self, t_s: float) -> None:
        if self._update_begin_s is not None:
            self._sink.waited(Wait.UPDATE, max(t_s - self._update_begin_s, 0.0), None)
        self._update_begin_s = None
        self.flush_at_resume = False
        if self.anchor is not None:
            self.anchor = (Wait.RESUME, t_s)
            self._room_since_s = None

    def _end_anchor(self, t_s: float) -> None:
        if self.anchor is not None:
            key, since_s = self.anchor
            if key == Wait.UPDATE:
                self.anchor, self.held_back = None, False
                return
            self._sink.waited(key, max(t_s - since_s, 0.0), None)
            self.anchor = None

    def _on_flip(self, event: ev.Flip) -> None:
        if event.state in ("serving", "restored"):
            self._switching.discard(event.worker_id)
        else:
            self._switching.add(event.worker_id)
