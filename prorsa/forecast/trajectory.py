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
stale                 a trajectory was silent for ``stale_s`` and is given up
====================  =================================================================================================
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from prorsa import events as ev
from prorsa.clock import NS_PER_S
from prorsa.forecast.columns import FREE, Columns, State
from prorsa.forecast.folding import RecentIds, SeqFolder
from prorsa.forecast.requests import LifecycleSink, Request, Seen
from prorsa.forecast.waits import Wait, WaitKeys

MAX_ENDED_IDS: Final = 4096
MAX_ORPHANS: Final = 1024
GRACE_S: Final = 30.0
"""How long requests of ended trajectories, and events of requests not yet submitted, are kept for late partners."""

PluginEvent = ev.LlmQueued | ev.LlmAdmitted | ev.LlmPrefillStart | ev.LlmPrefillEnd | ev.LlmFirstToken

_REPAIRS: Final = (
    "duplicate",
    "late",
    "trajectory_inferred",
    "request_inferred",
    "prefill_inferred",
    "admission_inferred",
    "answer_inferred",
    "unknown_request",
    "stale",
)
_BEFORE_ANSWER: Final = (State.READY, State.PREFILL, State.DECODE)


class TrajectoryTable:
    """The state machine of all live trajectories; O(1) an event, memory bounded by what is live.

    Args:
        sink: hears each fact once.
        keys: numbers of tools; shared with the models that learn from the sink.
        stale_s: silence after which a trajectory is given up (its end was lost).
    """

    def __init__(self, sink: LifecycleSink, keys: WaitKeys, *, stale_s: float = 3600.0) -> None:
        self.columns = Columns()
        self.repaired = dict.fromkeys(_REPAIRS, 0)
        self.requests: dict[str, Request] = {}
        self._sink = sink
        self._keys = keys
        self._stale_s = stale_s
        self._folder = SeqFolder()
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._current: dict[int, Request] = {}
        self._previous: dict[int, Request] = {}
        self._heard_s: dict[int, float] = {}
        self._counts = [0] * len(State)
        self._done = 0
        self._ended_ids = RecentIds(MAX_ENDED_IDS)
        self._detached: deque[tuple[float, Request]] = deque()
        self._orphans: OrderedDict[str, list[tuple[float, PluginEvent]]] = OrderedDict()
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
            ev.RunEnd: self._on_run_end,
        }

    # --- what it knows ----------------------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Trajectories that have begun and not ended."""
        return len(self._slots)

    @property
    def unknown_requests(self) -> int:
        """Request ids of which plugins have told lately and that no submit has named."""
        return len(self._orphans)

    @property
    def sequence_gaps(self) -> int:
        """Sequence numbers that are missing below the highest of their source."""
        return self._folder.lost

    def counts(self) -> dict[str, int]:
        """Live trajectories by state (its name in lower case), and ``done``: those that have ended."""
        return {**{state.name.lower(): self._counts[state] for state in State}, "done": self._done}

    @property
    def repaired_total(self) -> int:
        """Events that did not fit, of all kinds."""
        return sum(self.repaired.values())

    def state_of(self, trajectory_id: str) -> State | None:
        """The state of a live trajectory; None if it is not live."""
        slot = self._slots.get(trajectory_id)
        return None if slot is None else State(int(self.columns.state[slot]))

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
        while self._detached and self._detached[0][0] <= t_s:
            self._forget(self._detached.popleft()[1], t_s)
        while self._orphans and next(iter(self._orphans.values()))[0][0] <= t_s - GRACE_S:
            self._orphans.popitem(last=False)
        # Insertion order of this dict is the order of last hearing: the silent ones are in front.
        while self._heard_s:
            slot, heard_s = next(iter(self._heard_s.items()))
            if heard_s > t_s - self._stale_s:
                break
            self.repaired["stale"] += 1
            self._release(slot, t_s)

    def _on_dispatched(self, event: ev.TrajectoryDispatched, t_s: float) -> None:
        known = event.trajectory_id in self._slots
        slot = self._slot(event.trajectory_id, t_s, inferred=False)
        if slot is None:
            return
        if known:
            self.repaired["late"] += 1
        self._sink.dispatched()
        columns = self.columns
        if event.prompt_tokens is not None and columns.turn[slot] < 0:
            columns.prompt_tokens[slot] = event.prompt_tokens
        if columns.state[slot] == State.DISPATCHED:
            self._wait(slot, Wait.START, t_s, None)

    def _on_sandbox_start(self, event: ev.SandboxStart, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        if self.columns.state[slot] == State.DISPATCHED:
            self._enter(slot, State.SANDBOX)
            self._wait(slot, Wait.START, t_s, event.expected_s)
        else:
            self.repaired["late"] += 1

    def _on_sandbox_ready(self, event: ev.SandboxReady, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        if self.columns.state[slot] in (State.DISPATCHED, State.SANDBOX):
            self._close_wait(slot, t_s)
            self._enter(slot, State.SANDBOX)
            self._wait(slot, Wait.RETURN, t_s, None)
        else:
            self.repaired["late"] += 1

    def _on_ready(self, event: ev.TrajectoryReady, t_s: float) -> None:
        request = self.requests.get(event.request_id) if event.request_id is not None else None
        if request is None and event.request_id is None:
            request = self._unnamed(event.trajectory_id)
        if request is not None:
            if request.is_repeat(0, Seen.READY):
                self.repaired["duplicate"] += 1
            else:
                self.repaired["late"] += 1
                self._learn_index(request, event.new_tokens)
            return
        slot = self._slot(event.trajectory_id, t_s)
        if slot is not None:
            request = self._open(slot, t_s, event.request_id, event.prompt_tokens, event.new_tokens)
            request.is_repeat(0, Seen.READY)
            self._adopt_orphans(request)

    def _on_submit(self, event: ev.LlmSubmit, t_s: float) -> None:
        request = self.requests.get(event.request_id) or self._bind(event.trajectory_id, event.request_id)
        if request is None:
            request = self._infer_request(event, t_s)
            if request is None:
                return
        if request.is_repeat(event.attempt, Seen.SUBMIT):
            self.repaired["duplicate"] += 1
            return
        self._hear(request.slot, t_s)
        if event.attempt > request.attempt:
            self._restart(request, event.attempt)
        if event.attempt == request.attempt:
            self._learn_index(request, event.new_tokens)
        if self._is_current(request):
            request.turn = event.turn
            self.columns.turn[request.slot] = event.turn
        self._adopt_orphans(request)

    def _on_retry(self, event: ev.LlmRetry, t_s: float) -> None:
        request = self.requests.get(event.request_id)
        if request is None:
            self.repaired["unknown_request"] += 1
        elif request.is_repeat(event.attempt, Seen.RETRY):
            self.repaired["duplicate"] += 1
        elif event.attempt > request.attempt:
            self._hear(request.slot, t_s)
            self._restart(request, event.attempt)

    def _on_plugin(self, event: PluginEvent, t_s: float) -> None:
        """Events that carry a rid; one whose request is not known yet waits for its submit."""
        request_id, attempt = ev.split_rid(event.rid)
        request = self.requests.get(request_id)
        if request is None:
            self._keep_orphan(request_id, event, t_s)
            return
        self._hear(request.slot, t_s)
        self._take_plugin(request, attempt, event, t_s)

    def _take_plugin(self, request: Request, attempt: int, event: PluginEvent, t_s: float) -> None:
        if request.is_repeat(attempt, _PLUGIN_SEEN[type(event)]):
            self.repaired["duplicate"] += 1
        elif isinstance(event, ev.LlmPrefillEnd):
            self._prefill_end(request, attempt, event, t_s)
        elif attempt < request.attempt:
            self.repaired["late"] += 1
        elif isinstance(event, ev.LlmAdmitted):
            self._admit(request, t_s, event.kv_tokens)
        elif isinstance(event, ev.LlmFirstToken):
            self._decoding(request, t_s, inferred=False)
        elif isinstance(event, ev.LlmPrefillStart) and self._state(request) == State.READY:
            self._enter(request.slot, State.PREFILL)

    def _on_progress(self, event: ev.LlmProgress, t_s: float) -> None:
        columns = self.columns
        for rid, tokens in event.output:
            request = self._of_rid(rid)
            if request is None or request.output_tokens is not None:
                continue
            if self._state(request) != State.DECODE:
                self._decoding(request, t_s, inferred=True)
            if self._is_current(request):
                self._progress(request.slot, tokens, t_s)
        for rid, tokens in event.prefilled:
            request = self._of_rid(rid)
            if request is not None and self._state(request) in (State.READY, State.PREFILL):
                # Never more than there is to compute: some engines count the cached prefix in.
                columns.computed_tokens[request.slot] = np.fmin(tokens, columns.uncached_tokens[request.slot])

    def _progress(self, slot: int, output_tokens: int, t_s: float) -> None:
        columns = self.columns
        gained, elapsed_s = output_tokens - columns.output_tokens[slot], t_s - columns.output_at_s[slot]
        if gained < 0 or not elapsed_s >= 0:  # an old report; or it is not known since when it decodes
            return
        columns.output_tokens[slot] = output_tokens
        columns.output_at_s[slot] = t_s
        self._sink.progressed(float(gained), float(elapsed_s))

    def _on_end(self, event: ev.LlmEnd, t_s: float) -> None:
        request = self.requests.get(event.request_id) or self._bind(event.trajectory_id, event.request_id)
        if request is None:
            self.repaired["unknown_request"] += 1
            return
        if request.output_tokens is not None:
            self.repaired["duplicate"] += 1
            return
        self._decoding(request, t_s, inferred=not request.has_seen(event.attempt, Seen.FIRST_TOKEN))
        request.output_tokens = event.output_tokens
        if request.uncached_tokens is None and event.cached_tokens is not None and request.attempt == 0:
            self._settle_prefill(request, event.cached_tokens, request.prefilled_s or t_s)
        if self._is_current(request):
            slot = request.slot
            self._hear(slot, t_s)
            self._progress(slot, event.output_tokens, t_s)
            if self.columns.state[slot] in _BEFORE_ANSWER:
                self._enter(slot, State.TOOL)
                self.columns.answered_s[slot] = t_s
                tool = self._keys.tool(event.tool_calls[0]) if event.tool_calls else Wait.UNKNOWN_TOOL
                self._wait(slot, tool, t_s, None)
        self._sink.answered(request)

    def _on_tool_start(self, event: ev.ToolStart, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        state = self.columns.state[slot]
        if state == State.DECODE:
            self.repaired["answer_inferred"] += 1
            self._enter(slot, State.TOOL)
        elif state != State.TOOL:
            self.repaired["late"] += 1
            return
        self._wait(slot, self._keys.tool(event.tool_name), t_s, event.expected_s)

    def _on_tool_end(self, event: ev.ToolEnd, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        if self.columns.state[slot] != State.TOOL:
            self.repaired["late"] += 1
            return
        if event.tool_name is not None:
            self.columns.key[slot] = self._keys.tool(event.tool_name)
        self._close_wait(slot, t_s)
        self._wait(slot, Wait.RETURN, t_s, None)

    def _on_reward_start(self, event: ev.RewardStart, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        self._finish_turns(slot)
        self._enter(slot, State.REWARD)
        self._wait(slot, Wait.REWARD, t_s, None)

    def _on_reward_end(self, event: ev.RewardEnd, t_s: float) -> None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return
        if self.columns.state[slot] == State.REWARD:
            self._close_wait(slot, t_s)
        self._finish_turns(slot)
        self._enter(slot, State.REWARD)
        self._wait(slot, Wait.RETURN, t_s, None)

    def _on_trajectory_end(self, event: ev.TrajectoryEnd, t_s: float) -> None:
        name = event.trajectory_id
        if name is None:
            return
        slot = self._slots.get(name)
        if slot is None:
            self.repaired["late" if name in self._ended_ids else "trajectory_inferred"] += 1
            self._ended_ids.add(name)
            return
        if self.columns.state[slot] == State.REWARD and self.columns.key[slot] == Wait.REWARD:
            self._close_wait(slot, t_s)
        if event.status in ("completed", "truncated"):
            self._finish_turns(slot)
        self._release(slot, t_s)

    def _on_update_end(self, event: ev.WeightsUpdateEnd, t_s: float) -> None:  # noqa: ARG002 - a handler
        if event.cache_flushed:
            self.columns.flushed[:] = self.columns.state != FREE

    def _on_run_end(self, event: ev.RunEnd, t_s: float) -> None:  # noqa: ARG002 - a handler
        for slot in list(self._names):
            self._release(slot, t_s)

    # --- trajectories -----------------------------------------------------------------------------------------------

    def _slot(self, trajectory_id: str | None, t_s: float, *, inferred: bool = True) -> int | None:
        """The slot of a trajectory, taken if it is new; None if it is unknown which, or it has ended."""
        if trajectory_id is None:
            return None
        slot = self._slots.get(trajectory_id)
        if slot is None:
            if trajectory_id in self._ended_ids:
                self.repaired["late"] += 1
                return None
            slot = self.columns.take()
            self._slots[trajectory_id] = slot
            self._names[slot] = trajectory_id
            self._counts[State.DISPATCHED] += 1
            self.columns.key[slot] = Wait.START
            if inferred:
                self.repaired["trajectory_inferred"] += 1
        self._hear(slot, t_s)
        return slot

    def _hear(self, slot: int, t_s: float) -> None:
        if slot >= 0:
            self._heard_s.pop(slot, None)
            self._heard_s[slot] = t_s

    def _enter(self, slot: int, state: State) -> None:
        states = self.columns.state
        self._counts[states[slot]] -= 1
        self._counts[state] += 1
        states[slot] = state

    def _wait(self, slot: int, key: int, t_s: float, expected_s: float | None) -> None:
        columns = self.columns
        columns.key[slot] = key
        columns.since_s[slot] = t_s
        columns.expected_s[slot] = expected_s or np.nan

    def _close_wait(self, slot: int, t_s: float) -> None:
        columns = self.columns
        since_s, expected_s = float(columns.since_s[slot]), float(columns.expected_s[slot])
        if since_s == since_s:  # not NaN
            hint = expected_s if expected_s == expected_s else None
            self._sink.waited(int(columns.key[slot]), max(t_s - since_s, 0.0), hint)

    def _finish_turns(self, slot: int) -> None:
        if self.columns.state[slot] != State.REWARD and self.columns.turn[slot] >= 0:
            self._sink.turn_over(int(self.columns.turn[slot]), ended=True)

    def _release(self, slot: int, t_s: float) -> None:
        name = self._names.pop(slot)
        del self._slots[name]
        self._heard_s.pop(slot, None)
        self._ended_ids.add(name)
        self._counts[self.columns.state[slot]] -= 1
        for held in (self._previous.pop(slot, None), self._current.pop(slot, None)):
            if held is not None:
                held.slot = -1
                self._detached.append((t_s + GRACE_S, held))
        self.columns.release(slot)
        self._done += 1
        self._sink.ended()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _open(self, slot: int, t_s: float, request_id: str | None, prompt: int, index_tokens: int | None) -> Request:
        """A new request of a trajectory has arrived: the wait before it, and the turn before it, are over."""
        columns = self.columns
        state = State(int(columns.state[slot]))
        before = self._current.get(slot)
        key, answered_s = int(columns.key[slot]), float(columns.answered_s[slot])
        waited = state in (State.DISPATCHED, State.SANDBOX, State.TOOL)
        if waited:
            self._close_wait(slot, t_s)
        if state in _BEFORE_ANSWER:
            self.repaired["answer_inferred"] += 1
            answered_s = np.nan
        if columns.turn[slot] >= 0:
            self._sink.turn_over(int(columns.turn[slot]), ended=False)
        request = Request(
            request_id=request_id,
            slot=slot,
            turn=int(columns.turn[slot]) + 1,
            prompt_tokens=prompt,
            previous_prompt_tokens=before.prompt_tokens if before is not None else None,
            index_tokens=index_tokens,
            wait_key=key if state == State.TOOL else -1,
            answered_s=answered_s if answered_s == answered_s else None,
            flushed=bool(columns.flushed[slot]),
            ready_s=t_s,
        )
        self._make_current(request, before)
        self._sink.ready(t_s, request)
        return request

    def _make_current(self, request: Request, before: Request | None) -> None:
        slot, columns = request.slot, self.columns
        old = self._previous.pop(slot, None)
        if old is not None:
            self._forget(old, request.ready_s)
        if before is not None:
            self._previous[slot] = before
        self._current[slot] = request
        if request.request_id is not None:
            self.requests[request.request_id] = request
        columns.turn[slot] = request.turn
        columns.prompt_tokens[slot] = request.prompt_tokens
        columns.uncached_tokens[slot] = np.nan if request.index_tokens is None else request.index_tokens
        columns.computed_tokens[slot] = columns.output_tokens[slot] = 0.0
        columns.ready_s[slot] = request.ready_s
        columns.admitted[slot] = columns.retried[slot] = False
        self._enter(slot, State.READY)

    def _forget(self, request: Request, t_s: float) -> None:
        if request.request_id is not None:
            self.requests.pop(request.request_id, None)
        if not request.settled:
            self._sink.lost(t_s, request)

    def _unnamed(self, trajectory_id: str | None) -> Request | None:
        """The open request of a trajectory that a ready event without a request id may tell of again."""
        slot = self._slots.get(trajectory_id) if trajectory_id is not None else None
        request = None if slot is None else self._current.get(slot)
        return request if request is not None and self._state(request) in (State.READY, State.PREFILL) else None

    def _bind(self, trajectory_id: str | None, request_id: str) -> Request | None:
        """The request that became ready without an id is the one that is now submitted or answered."""
        slot = self._slots.get(trajectory_id) if trajectory_id is not None else None
        request = None if slot is None else self._current.get(slot)
        if request is None or request.request_id is not None:
            return None
        request.request_id = request_id
        self.requests[request_id] = request
        return request

    def _infer_request(self, event: ev.LlmSubmit, t_s: float) -> Request | None:
        slot = self._slot(event.trajectory_id, t_s)
        if slot is None:
            return None
        if event.turn < self.columns.turn[slot]:
            self.repaired["late"] += 1
            return None
        self.repaired["request_inferred"] += 1
        return self._open(slot, t_s, event.request_id, event.prompt_tokens, event.new_tokens)

    def _learn_index(self, request: Request, new_tokens: int | None) -> None:
        if new_tokens is None:
            return
        request.index_tokens = new_tokens
        if self._is_current(request):
            self.columns.uncached_tokens[request.slot] = new_tokens

    def _restart(self, request: Request, attempt: int) -> None:
        request.attempt = attempt
        if not self._is_current(request) or self.columns.state[request.slot] not in _BEFORE_ANSWER:
            return
        slot = request.slot
        self.columns.computed_tokens[slot] = 0.0
        self.columns.retried[slot] = request.prefilled_s is not None
        self._enter(slot, State.READY)

    def _prefill_end(self, request: Request, attempt: int, event: ev.LlmPrefillEnd, t_s: float) -> None:
        if request.uncached_tokens is None:
            self._settle_prefill(request, event.cached_tokens, t_s)
        if attempt < request.attempt:
            self.repaired["late"] += 1
            self.columns.retried[request.slot] |= self._is_current(request)
            return
        self._decoding(request, t_s, inferred=False)

    def _settle_prefill(self, request: Request, cached_tokens: int, t_s: float) -> None:
        request.uncached_tokens = max(request.prompt_tokens - cached_tokens, 0)
        if request.prefilled_s is None:
            request.prefilled_s = t_s
        self._sink.prefilled(request.prefilled_s, request)

    def _decoding(self, request: Request, t_s: float, *, inferred: bool) -> None:
        """The request decodes: its prefill has ended and decode has admitted it, whether or not that was heard."""
        if request.prefilled_s is None:
            request.prefilled_s = t_s
        if inferred and request.uncached_tokens is None:
            self.repaired["prefill_inferred"] += 1
        if request.admitted_s is None:
            self.repaired["admission_inferred"] += 1
            self._admit(request, t_s, request.prompt_tokens)
        if self._state(request) in (State.READY, State.PREFILL):
            columns, slot = self.columns, request.slot
            columns.flushed[slot] = False
            columns.admitted[slot] = True
            columns.output_at_s[slot] = t_s
            self._enter(slot, State.DECODE)

    def _admit(self, request: Request, t_s: float, kv_tokens: int) -> None:
        if request.admitted_s is None:
            request.admitted_s = t_s
            request.kv_tokens = kv_tokens
            self._sink.admitted(t_s, request)
        if self._is_current(request):
            self.columns.admitted[request.slot] = True

    def _is_current(self, request: Request) -> bool:
        return request.slot >= 0 and self._current.get(request.slot) is request

    def _state(self, request: Request) -> int | None:
        """The state of the trajectory if ``request`` is what it is at, else None."""
        return int(self.columns.state[request.slot]) if self._is_current(request) else None

    def _of_rid(self, rid: str) -> Request | None:
        """The request of a rid if the rid is of its present attempt."""
        request_id, attempt = ev.split_rid(rid)
        request = self.requests.get(request_id)
        return request if request is not None and request.attempt == attempt else None

    # --- plugin events before their submit --------------------------------------------------------------------------

    def _keep_orphan(self, request_id: str, event: PluginEvent, t_s: float) -> None:
        self.repaired["unknown_request"] += 1
        self._orphans.setdefault(request_id, []).append((t_s, event))
        if len(self._orphans) > MAX_ORPHANS:
            self._orphans.popitem(last=False)

    def _adopt_orphans(self, request: Request) -> None:
        if request.request_id is None or request.request_id not in self._orphans:
            return
        for t_s, event in self._orphans.pop(request.request_id):
            self._take_plugin(request, ev.split_rid(event.rid)[1], event, t_s)


_PLUGIN_SEEN: Final[dict[type, Seen]] = {
    ev.LlmQueued: Seen.QUEUED,
    ev.LlmAdmitted: Seen.ADMITTED,
    ev.LlmPrefillStart: Seen.PREFILL_START,
    ev.LlmPrefillEnd: Seen.PREFILL_END,
    ev.LlmFirstToken: Seen.FIRST_TOKEN,
}
