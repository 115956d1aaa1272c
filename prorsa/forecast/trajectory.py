"""The lifecycle of every live trajectory, from events that may be lost, repeated or out of order.

``dispatched → sandbox → ready → prefill → decode → tool → ready … → reward``; an ended one has no state. An event that
does not fit is folded or taken as far as it makes sense, and counted in :attr:`TrajectoryTable.repaired`:

====================  =================================================================================================
repaired              what happened
====================  =================================================================================================
duplicate             the event had been seen: by (source, seq), or by (request_id, attempt, event)
late                  it tells of something that is over: a state left, an attempt given up, a trajectory ended
trajectory_inferred   a trajectory shows up that was never dispatched
request_inferred      a request shows up that was never ready or submitted
prefill_inferred      output shows up of a request whose prefill never ended
admission_inferred    a prefill or output shows up of a request that decode never admitted
answer_inferred       the trajectory goes on although its answer never ended
unknown_request       no trajectory is known for a request id
end_inferred          nothing more was heard of a trajectory after its reward
stale                 a trajectory was silent for ``stale_s`` and is given up
====================  =================================================================================================
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from prorsa import events as ev
from prorsa.clock import NS_PER_S
from prorsa.forecast.columns import Columns, State
from prorsa.forecast.folding import SeqFolder
from prorsa.forecast.kin import Kin
from prorsa.forecast.ranks import Ranks
from prorsa.forecast.requests import LifecycleSink, Seen
from prorsa.forecast.roster import Roster, Standing
from prorsa.forecast.turns import PluginEvent, Turns
from prorsa.forecast.waits import Wait, WaitKeys

_REPAIRS: Final = (
    "duplicate",
    "late",
    "trajectory_inferred",
    "request_inferred",
    "prefill_inferred",
    "admission_inferred",
    "answer_inferred",
    "unknown_request",
    "end_inferred",
    "stale",
)

SCORED_S: Final = 10.0
"""A trajectory of which nothing was heard for so long after its reward has ended, though nobody said so."""


class TrajectoryTable:
    """The state machine of all live trajectories; O(1) an event, memory bounded by what is live.

    Args:
        sink: hears each fact once.
        keys: numbers of tools; shared with the models that learn from the sink.
        stale_s: silence after which a trajectory is given up (its end was lost).

    Attributes:
        progress_reports: reports so far of workers that said how much of their prompts is computed.
    """

    def __init__(self, sink: LifecycleSink, keys: WaitKeys, *, stale_s: float = 3600.0) -> None:
        self.repaired = dict.fromkeys(_REPAIRS, 0)
        self.progress_reports = 0
        self._sink = sink
        self._keys = keys
        self._stale_s = stale_s
        self._folder = SeqFolder()
        self._roster = Roster(sink, self.repaired)
        self._scored: deque[tuple[float, str]] = deque()
        self._kin = Kin(self._roster.columns)
        self._turns = Turns(self._roster, sink, self._kin)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ev.TrajectoryDispatched: self._on_dispatched,
            ev.SandboxStart: self._on_sandbox_start,
            ev.SandboxReady: self._on_sandbox_ready,
            ev.TrajectoryReady: self._on_ready,
            ev.LlmSubmit: self._on_submit,
            ev.LlmRetry: self._on_retry,
            ev.LlmQueued: self._on_plugin,
            ev.LlmAdmitted: self._on_plugin,
            ev.LlmPrefillStart: self._on_plugin,
            ev.LlmPrefillEnd: self._on_plugin,
            ev.LlmFirstToken: self._on_plugin,
            ev.LlmProgress: self._on_progress,
            ev.LlmEnd: self._on_end,
            ev.ToolStart: self._on_tool_start,
            ev.ToolEnd: self._on_tool_end,
            ev.RewardStart: self._on_reward_start,
            ev.RewardEnd: self._on_reward_end,
            ev.TrajectoryEnd: self._on_trajectory_end,
            ev.WeightsUpdateEnd: self._on_update_end,
            ev.WorkerUp: self._on_worker_up,
            ev.RunEnd: self._on_run_end,
        }

    # --- what it knows ----------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The state of the live trajectories as arrays."""
        return self._roster.columns

    @property
    def ranks(self) -> Ranks:
        """The ranks that prefill."""
        return self._turns.ranks

    @property
    def live(self) -> int:
        """Trajectories that have begun and not ended."""
        return len(self._roster)

    @property
    def known_requests(self) -> int:
        """Requests that are kept: of live trajectories, and of those that ended a moment ago."""
        return len(self._turns.known)

    @property
    def unknown_requests(self) -> int:
        """Request ids of which workers have told lately and that no submit has named."""
        return len(self._turns.orphans)

    @property
    def sequence_gaps(self) -> int:
        """Sequence numbers that are missing below the highest of their source."""
        return self._folder.lost

    @property
    def repaired_total(self) -> int:
        """Events that did not fit, of all kinds."""
        return sum(self.repaired.values())

    def counts(self) -> dict[str, int]:
        """Live trajectories by state (its name in lower case), and ``done``: those that have ended."""
        return {**self._roster.counts(), "done": self._roster.done}

    def flows(self) -> dict[str, int]:
        """Moves between states since the run began, as ``decode>tool``; ``done`` is the end of a trajectory."""
        return self._roster.flows()

    def standings(self) -> Iterator[Standing]:
        """Every live trajectory with its slot in :attr:`columns`, in no order."""
        return self._roster.standings()

    def tool_name(self, key: int) -> str | None:
        """The name of the tool that a wait is for; None for other waits."""
        return self._keys.name(key)

    def state_of(self, trajectory_id: str) -> State | None:
        """The state of a live trajectory; None if it is not live."""
        slot = self._roster.find(trajectory_id)
        return None if slot is None else self._roster.state(slot)

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, stamped: ev.Stamped) -> bool:
        """Take one event. Returns False if it is a repeat of one already taken."""
        if self._folder.is_repeat(stamped.source, stamped.seq):
            self.repaired["duplicate"] += 1
            return False
        handler = self._handlers.get(type(stamped.event))
        if handler is not None:
            handler(stamped.event, stamped.t_ns / NS_PER_S)
        return True

    def purge(self, t_s: float) -> None:
        """Give up what has been silent for too long: once a tick, amortised O(1) an event."""
        self._turns.purge(t_s)
        self._end_scored(t_s)
        while (slot := self._roster.silent_since(t_s - self._stale_s)) is not None:
            self.repaired["stale"] += 1
            self._release(slot, t_s)

    # --- start-up ---------------------------------------------------------------------------------------------------

    def _on_dispatched(self, event: ev.TrajectoryDispatched, t_s: float) -> None:
        known = self._roster.find(event.trajectory_id) is not None
        slot = self._roster.slot(event.trajectory_id, t_s, inferred=False)
        if slot is None:
            return
        self.repaired["late"] += known
        columns, workload = self.columns, self._keys.workload(event.workload)
        sibling = not known and self._kin.dispatched(slot, event.group_id)
        self._sink.dispatched(workload, sibling=sibling)
        columns.workload[slot] = workload
        if columns.turn[slot] < 0:
            columns.action[slot] = self._keys.beginning[workload]
            if event.prompt_tokens is not None:
                columns.prompt_tokens[slot] = event.prompt_tokens
        if self._roster.state(slot) == State.DISPATCHED:
            self._roster.wait(slot, self._keys.start_key[workload], t_s)

    def _on_sandbox_start(self, event: ev.SandboxStart, t_s: float) -> None:
        slot = self._slot_in(event.trajectory_id, t_s, State.DISPATCHED)
        if slot is not None:
            self._roster.enter(slot, State.SANDBOX)
            self._roster.wait(slot, self._start_key(slot), t_s, event.expected_s)

    def _on_sandbox_ready(self, event: ev.SandboxReady, t_s: float) -> None:
        slot = self._slot_in(event.trajectory_id, t_s, State.DISPATCHED, State.SANDBOX)
        if slot is not None:
            self._roster.close_wait(slot, t_s)
            self._roster.enter(slot, State.SANDBOX)
            self._roster.wait(slot, Wait.RETURN, t_s)

    def _start_key(self, slot: int) -> int:
        return self._keys.start_key[int(self.columns.workload[slot])]

    def _reward_key(self, slot: int) -> int:
        return self._keys.reward_key[int(self.columns.workload[slot])]

    def _slot_in(self, trajectory_id: str | None, t_s: float, *states: State) -> int | None:
        """The slot of a trajectory if it is in one of ``states``, else the event is late."""
        slot = self._roster.slot(trajectory_id, t_s)
        if slot is None or self._roster.state(slot) in states:
            return slot
        self.repaired["late"] += 1
        return None

    # --- requests ---------------------------------------------------------------------------------------------------

    def _on_ready(self, event: ev.TrajectoryReady, t_s: float) -> None:
        turns = self._turns
        name = event.request_id
        request = turns.unnamed(event.trajectory_id) if name is None else turns.known.get(name)
        if request is None:
            slot = self._roster.slot(event.trajectory_id, t_s)
            if slot is not None:
                request = turns.open(slot, t_s, name, event.prompt_tokens, event.new_tokens)
                request.is_repeat(0, Seen.READY)
                turns.adopt_orphans(request)
        elif request.is_repeat(0, Seen.READY):
            self.repaired["duplicate"] += 1
        else:
            self.repaired["late"] += 1
            if request.index_tokens is None:
                turns.index(request, event.new_tokens)

    def _on_submit(self, event: ev.LlmSubmit, t_s: float) -> None:
        turns = self._turns
        request = turns.named(event.trajectory_id, event.request_id) or turns.infer(event, t_s)
        if request is None:
            return
        if request.is_repeat(event.attempt, Seen.SUBMIT):
            self.repaired["duplicate"] += 1
            return
        self._roster.hear(request.slot, t_s)
        if event.attempt > request.attempt:
            turns.restart(request, event.attempt)
        if event.attempt == request.attempt:
            turns.index(request, event.new_tokens)
            turns.placed(request)
        if turns.is_current(request):
            request.turn = event.turn
            self.columns.turn[request.slot] = event.turn
        turns.adopt_orphans(request)

    def _on_retry(self, event: ev.LlmRetry, t_s: float) -> None:
        request = self._turns.known.get(event.request_id)
        if request is None:
            self.repaired["unknown_request"] += 1
        elif request.is_repeat(event.attempt, Seen.RETRY):
            self.repaired["duplicate"] += 1
        elif event.attempt > request.attempt:
            self._roster.hear(request.slot, t_s)
            self._turns.restart(request, event.attempt)

    def _on_plugin(self, event: PluginEvent, t_s: float) -> None:
        """Events that carry a rid; one whose request is not known yet waits for its submit."""
        request_id, attempt = ev.split_rid(event.rid)
        request = self._turns.known.get(request_id)
        if request is None:
            self._turns.keep_orphan(request_id, event, t_s)
            return
        self._roster.hear(request.slot, t_s)
        self._turns.take(request, attempt, event, t_s)

    def _on_progress(self, event: ev.LlmProgress, t_s: float) -> None:
        turns = self._turns
        for rid, tokens in event.output:
            request = turns.of_rid(rid)
            if request is not None and request.output_tokens is None:
                if turns.state(request) != State.DECODE:
                    turns.decoding(request, t_s, inferred=True)
                self._roster.hear(request.slot, t_s)
                turns.progress(request, tokens, t_s)
        self.progress_reports += bool(event.prefilled)
        for rid, tokens in event.prefilled:
            request = turns.of_rid(rid)
            if request is not None:
                turns.prefilling(request, tokens)

    def _on_end(self, event: ev.LlmEnd, t_s: float) -> None:
        request = self._turns.named(event.trajectory_id, event.request_id)
        if request is None:
            self.repaired["unknown_request"] += 1
        elif request.output_tokens is not None:
            self.repaired["duplicate"] += 1
        else:
            self._roster.hear(request.slot, t_s)
            self._turns.answered(request, event, t_s, self._keys)

    # --- tools, rewards, ends ---------------------------------------------------------------------------------------

    def _on_tool_start(self, event: ev.ToolStart, t_s: float) -> None:
        slot = self._slot_in(event.trajectory_id, t_s, State.DECODE, State.TOOL)
        if slot is None:
            return
        if self._roster.state(slot) == State.DECODE:
            self.repaired["answer_inferred"] += 1
            self._roster.enter(slot, State.TOOL)
            self.columns.answered_s[slot] = t_s
        action = self._keys.tool(event.tool_name, int(self.columns.workload[slot]))
        self.columns.action[slot] = action
        self._kin.effects.tell(slot, int(self.columns.turn[slot]) + 1)
        self._roster.wait(slot, int(self._keys.gap_key[action]), t_s, event.expected_s)

    def _on_tool_end(self, event: ev.ToolEnd, t_s: float) -> None:
        slot = self._slot_in(event.trajectory_id, t_s, State.TOOL)
        if slot is None:
            return
        if event.tool_name is not None:
            action = self._keys.tool(event.tool_name, int(self.columns.workload[slot]))
            self.columns.action[slot] = action
            self.columns.key[slot] = self._keys.gap_key[action]
        self._roster.close_wait(slot, t_s)
        self._roster.wait(slot, Wait.RETURN, t_s)

    def _on_reward_start(self, event: ev.RewardStart, t_s: float) -> None:
        slot = self._roster.slot(event.trajectory_id, t_s)
        if slot is not None:
            self._roster.enter(slot, State.REWARD)
            self._roster.wait(slot, self._reward_key(slot), t_s)

    def _on_reward_end(self, event: ev.RewardEnd, t_s: float) -> None:
        name = event.trajectory_id
        slot = self._roster.slot(name, t_s)
        if slot is None or name is None:
            return
        if self._roster.state(slot) == State.REWARD:
            self._roster.close_wait(slot, t_s)
        self._roster.enter(slot, State.REWARD)
        self._roster.wait(slot, Wait.RETURN, t_s)
        self._scored.append((t_s, name))

    def _end_scored(self, t_s: float) -> None:
        """End what has had its reward and was not heard of since: its end was lost."""
        while self._scored and self._scored[0][0] <= t_s - SCORED_S:
            scored_s, name = self._scored.popleft()
            slot = self._roster.find(name)
            if slot is None or self._roster.state(slot) != State.REWARD or self.columns.since_s[slot] != scored_s:
                continue
            self.repaired["end_inferred"] += 1
            if self.columns.turn[slot] >= 0:
                self._turns.turn_over(slot, ended=True)
            self._release(slot, t_s)

    def _on_trajectory_end(self, event: ev.TrajectoryEnd, t_s: float) -> None:
        name = event.trajectory_id
        if name is None:
            return
        slot = self._roster.find(name)
        if slot is None:
            self.repaired["late" if self._roster.has_ended(name) else "trajectory_inferred"] += 1
            self._roster.remember_ended(name)
            return
        if self._roster.state(slot) == State.REWARD and self.columns.key[slot] == self._reward_key(slot):
            self._roster.close_wait(slot, t_s)
        if event.status in ("completed", "truncated") and self.columns.turn[slot] >= 0:
            self._turns.turn_over(slot, ended=True, truncated=event.status == "truncated")
        self._release(slot, t_s)

    def _on_update_end(self, event: ev.WeightsUpdateEnd, _t_s: float) -> None:
        if event.cache_flushed:
            self._roster.flush()
            self._kin.stems.flush()

    def _on_worker_up(self, event: ev.WorkerUp, _t_s: float) -> None:
        self._turns.ranks.add_worker(event.worker_id, event.dp_size)

    def _on_run_end(self, _event: ev.RunEnd, t_s: float) -> None:
        for slot in self._roster.slots():
            self._release(slot, t_s)

    def _release(self, slot: int, t_s: float) -> None:
        self._turns.detach(slot, t_s)
        self._kin.ended(slot)
        self._roster.release(slot)
