"""The requests of live trajectories, from ready to answered, over all their attempts."""

from collections import OrderedDict, deque
from typing import Final

import numpy as np

from prorsa import events as ev
from prorsa.forecast.columns import State
from prorsa.forecast.kin import Kin
from prorsa.forecast.ranks import Ranks
from prorsa.forecast.requests import LifecycleSink, Request, Seen
from prorsa.forecast.roster import Roster
from prorsa.forecast.waits import WaitKeys

MAX_ORPHANS: Final = 1024
GRACE_S: Final = 30.0
"""How long requests of ended trajectories, and events of requests not yet submitted, are kept for late partners."""
BEFORE_ANSWER: Final = (State.READY, State.PREFILL, State.DECODE)

PluginEvent = ev.LlmQueued | ev.LlmAdmitted | ev.LlmPrefillStart | ev.LlmPrefillEnd | ev.LlmFirstToken

_SEEN: Final[dict[type, Seen]] = {
    ev.LlmQueued: Seen.QUEUED,
    ev.LlmAdmitted: Seen.ADMITTED,
    ev.LlmPrefillStart: Seen.PREFILL_START,
    ev.LlmPrefillEnd: Seen.PREFILL_END,
    ev.LlmFirstToken: Seen.FIRST_TOKEN,
}


class Turns:
    """Each live trajectory's current request, and the one before it until it can no longer be heard of.

    Attributes:
        known: requests by id: at most two a live trajectory, and those of trajectories that ended within ``GRACE_S``.
        ranks: the ranks that prefill.
        orphans: events of workers on requests that no router has named, by request id, at most ``MAX_ORPHANS``.
    """

    def __init__(self, roster: Roster, sink: LifecycleSink, kin: Kin) -> None:
        self.known: dict[str, Request] = {}
        self.orphans: OrderedDict[str, list[tuple[float, PluginEvent]]] = OrderedDict()
        self._roster = roster
        self._columns = roster.columns
        self._repaired = roster.repaired
        self._sink = sink
        self._kin = kin
        self._current: dict[int, Request] = {}
        self._previous: dict[int, Request] = {}
        self._detached: deque[tuple[float, Request]] = deque()
        self.ranks = Ranks()

    # --- finding ----------------------------------------------------------------------------------------------------

    def is_current(self, request: Request) -> bool:
        """Whether ``request`` is what its trajectory is at."""
        return request.slot >= 0 and self._current.get(request.slot) is request

    def state(self, request: Request) -> State | None:
        """The state of the trajectory if ``request`` is what it is at, else None."""
        return self._roster.state(request.slot) if self.is_current(request) else None

    def of_rid(self, rid: str) -> Request | None:
        """The request of a rid if the rid is of its present attempt."""
        request_id, attempt = ev.split_rid(rid)
        request = self.known.get(request_id)
        return request if request is not None and request.attempt == attempt else None

    def unnamed(self, trajectory_id: str | None) -> Request | None:
        """The open request of a trajectory that a ready event without a request id may tell of again."""
        slot = self._roster.find(trajectory_id)
        request = None if slot is None else self._current.get(slot)
        return request if request is not None and self.state(request) in (State.READY, State.PREFILL) else None

    def named(self, trajectory_id: str | None, request_id: str) -> Request | None:
        """The request of an id; one that became ready without an id gets that of its submit or answer."""
        request = self.known.get(request_id)
        if request is not None:
            return request
        slot = self._roster.find(trajectory_id)
        request = None if slot is None else self._current.get(slot)
        if request is None or request.request_id is not None:
            return None
        request.request_id = request_id
        self.known[request_id] = request
        return request

    # --- opening and closing ----------------------------------------------------------------------------------------

    def open(self, slot: int, t_s: float, request_id: str | None, prompt: int, index_tokens: int | None) -> Request:
        """A new request of a trajectory has arrived: the wait before it, and the turn before it, are over."""
        columns, state = self._columns, self._roster.state(slot)
        before = self._current.get(slot)
        answered_s, first_tokens = float(columns.answered_s[slot]), float(columns.first_tokens[slot])
        if state in (State.DISPATCHED, State.SANDBOX, State.TOOL):
            self._roster.close_wait(slot, t_s)
        if state in BEFORE_ANSWER:
            self._repaired["answer_inferred"] += 1
            answered_s = np.nan
        if columns.turn[slot] >= 0:
            self.turn_over(slot, ended=False)
        else:
            self._kin.groups.ready(slot)
        request = Request(
            request_id=request_id,
            slot=slot,
            turn=int(columns.turn[slot]) + 1,
            prompt_tokens=prompt,
            previous_prompt_tokens=before.prompt_tokens if before is not None else None,
            index_tokens=index_tokens,
            ready_index_tokens=index_tokens,
            workload=int(columns.workload[slot]),
            action=int(columns.action[slot]) if before is None or state == State.TOOL else 0,
            previous_action=before.action if before is not None else None,
            previous_output_tokens=before.output_tokens if before is not None else None,
            first_tokens=None if np.isnan(first_tokens) else first_tokens,
            sibling=bool(columns.sibling[slot]),
            answered_s=None if np.isnan(answered_s) else answered_s,
            flushed=bool(columns.flushed[slot]),
            ready_s=t_s,
        )
        request.crowding = request.crowding_sent = self._crowding(request)
        self._make_current(request, before)
        if request.turn > 0:
            self._kin.effects.returned(slot, request.action, request.turn, request.gap_s, request.grown_tokens)
        self._kin.effects.tell(slot, request.turn)
        request.longer = float(columns.longer[slot])
        self._sink.ready(t_s, request)
        return request

    def _crowding(self, request: Request) -> float:
        held = request.prompt_tokens - (request.ready_index_tokens or 0)
        return self.ranks.crowding(int(self._columns.home[request.slot, 0]), held)

    def turn_over(self, slot: int, *, ended: bool, truncated: bool = False) -> None:
        """The current turn of a trajectory is over; see :meth:`~prorsa.forecast.requests.LifecycleSink.turn_over`."""
        columns = self._columns
        context = float(columns.prompt_tokens[slot] + columns.output_tokens[slot])
        workload, turn = int(columns.workload[slot]), int(columns.turn[slot])
        chance = self._sink.turn_over(workload, turn, context, ended=ended, truncated=truncated)
        self._kin.fates.turn_over(slot, chance, ended=ended and not truncated)

    def _make_current(self, request: Request, before: Request | None) -> None:
        slot, columns = request.slot, self._columns
        old = self._previous.pop(slot, None)
        if old is not None:
            self._forget(old, request.ready_s)
        if before is not None:
            self._previous[slot] = before
        self._current[slot] = request
        if request.request_id is not None:
            self.known[request.request_id] = request
        columns.turn[slot] = request.turn
        columns.prompt_tokens[slot] = request.prompt_tokens
        columns.uncached_tokens[slot] = np.nan if request.index_tokens is None else request.index_tokens
        if request.turn == 0:
            columns.first_tokens[slot] = request.prompt_tokens
        columns.computed_tokens[slot] = columns.output_tokens[slot] = 0.0
        columns.ready_s[slot] = request.ready_s
        columns.admitted[slot] = columns.retried[slot] = False
        columns.action[slot] = request.action
        self._roster.enter(slot, State.READY)

    def infer(self, event: ev.LlmSubmit, t_s: float) -> Request | None:
        """The request of a submit that was never ready; None if its turn is over or its trajectory unknown."""
        slot = self._roster.slot(event.trajectory_id, t_s)
        if slot is None:
            return None
        if event.turn < self._columns.turn[slot]:
            self._repaired["late"] += 1
            return None
        self._repaired["request_inferred"] += 1
        return self.open(slot, t_s, event.request_id, event.prompt_tokens, event.new_tokens)

    def detach(self, slot: int, t_s: float) -> None:
        """The trajectory of a slot ends: what is not settled of its requests may still come."""
        for held in (self._previous.pop(slot, None), self._current.pop(slot, None)):
            if held is not None:
                held.slot = -1
                self._detached.append((t_s + GRACE_S, held))

    def purge(self, t_s: float) -> None:
        """Give up requests of ended trajectories, and orphans, whose time is over."""
        while self._detached and self._detached[0][0] <= t_s:
            self._forget(self._detached.popleft()[1], t_s)
        while self.orphans and next(iter(self.orphans.values()))[0][0] <= t_s - GRACE_S:
            self.orphans.popitem(last=False)

    def _forget(self, request: Request, t_s: float) -> None:
        if request.request_id is not None:
            self.known.pop(request.request_id, None)
        if not request.settled:
            self._sink.lost(t_s, request)

    # --- what happens to one ----------------------------------------------------------------------------------------

    def index(self, request: Request, new_tokens: int | None) -> None:
        """The router's prefix index says how much of a prompt is uncached."""
        if new_tokens is None:
            return
        request.index_tokens = new_tokens
        if self.is_current(request):
            self._columns.uncached_tokens[request.slot] = new_tokens

    def placed(self, request: Request) -> None:
        """A request goes to a worker: the index now counts what its siblings have there."""
        request.placed = True
        if self.is_current(request):
            request.crowding_sent = max(request.crowding_sent, self._crowding(request))
            self._columns.sibling[request.slot] = False

    def restart(self, request: Request, attempt: int) -> None:
        """A new attempt begins; what was prefilled must be prefilled again."""
        request.attempt = attempt
        if self.state(request) in BEFORE_ANSWER:
            slot = request.slot
            self._columns.computed_tokens[slot] = 0.0
            self._columns.admitted[slot] = False
            self._columns.retried[slot] = request.prefilled_s is not None
            self._roster.enter(slot, State.READY)

    def take(self, request: Request, attempt: int, event: PluginEvent, t_s: float) -> None:
        """A worker's event on an attempt."""
        if request.is_repeat(attempt, _SEEN[type(event)]):
            self._repaired["duplicate"] += 1
            return
        if isinstance(event, ev.LlmPrefillStart) and self.is_current(request):
            rank = self.ranks.index(event.worker_id, event.dp_rank)
            request.crowding_sent = max(request.crowding_sent, self._crowding(request))
            request.home = self._columns.prefilled_at(request.slot, rank)
            self._kin.stems.prefilled(request.slot, rank)
        if isinstance(event, ev.LlmPrefillEnd):
            self._prefill_end(request, attempt, event, t_s)
        elif attempt < request.attempt:
            self._repaired["late"] += 1
        elif isinstance(event, ev.LlmAdmitted):
            self.admit(request, t_s, event.kv_tokens)
        elif isinstance(event, ev.LlmFirstToken):
            self.decoding(request, t_s, inferred=False)
        elif isinstance(event, ev.LlmPrefillStart) and self.state(request) == State.READY:
            self._roster.enter(request.slot, State.PREFILL)

    def _prefill_end(self, request: Request, attempt: int, event: ev.LlmPrefillEnd, t_s: float) -> None:
        if request.uncached_tokens is None:
            uncached = self.settle_prefill(request, event.cached_tokens, t_s)
            if request.admitted_s is not None:
                rank = self.ranks.index(event.worker_id, event.dp_rank)
                self.ranks.prefilled(rank, request.ready_s, request.admitted_s, t_s, uncached)
        if attempt == request.attempt:
            self.decoding(request, t_s, inferred=False)
            return
        self._repaired["late"] += 1
        if self.is_current(request):
            self._columns.retried[request.slot] = True

    def settle_prefill(self, request: Request, cached_tokens: int, t_s: float) -> int:
        """It is known what a request's first prefill had to compute: returns that."""
        uncached = request.uncached_tokens = max(request.prompt_tokens - cached_tokens, 0)
        if request.prefilled_s is None:
            request.prefilled_s = t_s
        self._sink.prefilled(request.prefilled_s, request)
        return uncached

    def admit(self, request: Request, t_s: float, kv_tokens: int) -> None:
        """Decode holds KV for a request."""
        if request.admitted_s is None:
            request.admitted_s = t_s
            request.kv_tokens = kv_tokens
            self._sink.admitted(t_s, request)
        if self.is_current(request):
            self._columns.admitted[request.slot] = True

    def decoding(self, request: Request, t_s: float, *, inferred: bool) -> None:
        """The request decodes: its prefill has ended and decode has admitted it, whether or not that was heard."""
        if request.prefilled_s is None:
            request.prefilled_s = t_s
        if inferred and request.uncached_tokens is None:
            self._repaired["prefill_inferred"] += 1
        if request.admitted_s is None:
            self._repaired["admission_inferred"] += 1
            self.admit(request, t_s, request.prompt_tokens)
        if self.state(request) in (State.READY, State.PREFILL):
            columns, slot = self._columns, request.slot
            columns.flushed[slot] = False
            columns.admitted[slot] = True
            columns.output_at_s[slot] = t_s
            self._roster.enter(slot, State.DECODE)

    def progress(self, request: Request, output_tokens: int, t_s: float) -> None:
        """So much of the answer is there."""
        if not self.is_current(request):
            return
        columns, slot = self._columns, request.slot
        gained, elapsed_s = output_tokens - columns.output_tokens[slot], t_s - columns.output_at_s[slot]
        if gained < 0 or not elapsed_s >= 0:  # an old report; or it is not known since when it decodes
            return
        columns.output_tokens[slot] = output_tokens
        columns.output_at_s[slot] = t_s
        self._sink.progressed(float(gained), float(elapsed_s))

    def prefilling(self, request: Request, computed_tokens: int) -> None:
        """So much of the prompt is computed."""
        if self.state(request) in (State.READY, State.PREFILL):
            # Never more than there is to compute: some engines count the cached prefix in.
            most = self._columns.uncached_tokens[request.slot]
            self._columns.computed_tokens[request.slot] = np.fmin(computed_tokens, most)

    def answered(self, request: Request, event: ev.LlmEnd, t_s: float, keys: WaitKeys) -> None:
        """The answer is complete; until more is heard, a tool runs: the first that it calls."""
        self.decoding(request, t_s, inferred=not request.has_seen(event.attempt, Seen.FIRST_TOKEN))
        request.output_tokens = event.output_tokens
        if request.uncached_tokens is None and event.cached_tokens is not None and request.attempt == 0:
            self.settle_prefill(request, event.cached_tokens, request.prefilled_s or t_s)
        self.progress(request, event.output_tokens, t_s)
        if self.state(request) in BEFORE_ANSWER:
            slot = request.slot
            action = keys.tool(event.tool_calls[0], request.workload) if event.tool_calls else 0
            self._roster.enter(slot, State.TOOL)
            self._roster.wait(slot, int(keys.gap_key[action]), t_s)
            self._columns.action[slot] = action
            self._columns.answered_s[slot] = t_s
            self._kin.effects.answered(slot, request.action, request.turn, event.output_tokens)
            self._kin.effects.tell(slot, request.turn + 1)
        self._sink.answered(request)

    # --- plugin events before their submit --------------------------------------------------------------------------

    def keep_orphan(self, request_id: str, event: PluginEvent, t_s: float) -> None:
        """A worker tells of a request that no router has named yet."""
        self._repaired["unknown_request"] += 1
        self.orphans.setdefault(request_id, []).append((t_s, event))
        if len(self.orphans) > MAX_ORPHANS:
            self.orphans.popitem(last=False)

    def adopt_orphans(self, request: Request) -> None:
        """The router has named a request: what workers told of it before is taken now."""
        if request.request_id is None or request.request_id not in self.orphans:
            return
        for t_s, event in self.orphans.pop(request.request_id):
            self.take(request, ev.split_rid(event.rid)[1], event, t_s)
