"""The queue before prefill: what waits, and when it will be admitted."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import Columns
from prorsa.forecast.habits import IDLE_GRID
from prorsa.forecast.jit import compiled
from prorsa.forecast.lineup import Lineup, in_order, line_up, sum_up
from prorsa.forecast.models import Ratio
from prorsa.forecast.pace import paced
from prorsa.forecast.ranks import SHARED, share_out
from prorsa.forecast.siblings import FirstShare
from prorsa.forecast.speed import Line
from prorsa.forecast.tables import wait_losses

Array = NDArray[np.float64]

_QUEUED_S: Final = 1.0
"""A request that waits for longer is in a queue."""
WAITS: Final = 8
"""Ranks, by how long their queues are, that stand for all of them."""
BRIEF_S: Final = 4.0
"""Siblings follow the first of their group to its rank if their prompt takes longer: a rank that has less to do in that
moment computes a brief one again sooner than its turn comes there."""
_AGAIN: Final = 0.015
"""Of a prompt that a sibling is expected to find, such a share is computed on average: now and then another rank is
free sooner. On seeds 101 and 102 of coding (128 to 1,024 trajectories) it was 1 to 2.4 % in the first half minute."""
_LOSING: Final = 0.02
"""Where homes lose such a share of what they hold while turns wait, and more, turns leave them for that. Generated
coding trajectories lose nothing at home with caches in host memory, and 5 to 30 % on tensor-parallel pools without
(seed 101)."""
_STARVED_S: Final = 0.1
"""Prefill that has less than this to do while requests wait is not what they wait for."""


class WaitLoss:
    """How much of what the router's index counts as cached at home is gone when a turn's time has come, by the wait.

    It is learnt by the wait alone, whatever the context lay idle before: idle contexts are mostly lost to pressure that
    was, and where a tier holds them a wait loses nothing. Waits of which few were seen lean on all.

    A turn whose context home has lost goes wherever there is least to do, and those that go home are the ones that
    lost little. So turns that waited and went elsewhere count too, as far as homes are seen to lose anything.
    """

    _KEEP: Final = 2.0 ** (-1.0 / 50.0)
    """A request of its octave of waits, or of all; pressure on the caches moves."""
    _STRENGTH: Final = 3.0

    def __init__(self) -> None:
        edges = IDLE_GRID.edges
        self._centres = (edges[:-1] + edges[1:]) / 2
        self._held, self._gone = np.zeros(IDLE_GRID.bins), np.zeros(IDLE_GRID.bins)
        self._seen = np.zeros(IDLE_GRID.bins)
        self._pooled = [0.0, 0.0]
        self._at_home = [0.0, 0.0]
        self._share = np.zeros(IDLE_GRID.bins)

    def add(self, wait_s: float, held_tokens: float, gone_tokens: float, *, at_home: bool) -> None:
        """Of ``held_tokens`` that the index counted as cached, ``gone_tokens`` were computed after the wait.

        ``at_home``: there, or where else the turn went.
        """
        weight = 1.0
        if at_home:
            self._at_home = _faded(self._at_home, self._KEEP, held_tokens, gone_tokens)
        else:
            held, gone = self._at_home
            weight = min(gone / (_LOSING * held), 1.0) if held > 0.0 else 0.0
        at, held_tokens, gone_tokens = IDLE_GRID.index(wait_s), weight * held_tokens, weight * gone_tokens
        for sums, value in ((self._held, held_tokens), (self._gone, gone_tokens), (self._seen, weight)):
            sums[at] = sums[at] * self._KEEP**weight + value
        self._pooled = _faded(self._pooled, self._KEEP**weight, held_tokens, gone_tokens)

    def refresh(self) -> None:
        """Take in what was added; nothing is known to be lost before anything was."""
        held, gone = self._pooled
        pooled = gone / held if held > 0.0 else 0.0
        self._share = wait_losses(self._seen, self._held, self._gone, pooled, self._STRENGTH)

    def after(self, wait_s: Array) -> Array:
        """Share of what the index counts as cached that is computed after waits of such lengths."""
        share: Array = np.interp(wait_s, self._centres, self._share)
        return share


def _faded(sums: list[float], keep: float, *values: float) -> list[float]:
    return [of * keep + value for of, value in zip(sums, values, strict=True)]


class ServiceRate:
    """Uncached tokens a second that admission lets through while requests wait, learnt per prefill worker.

    It measures whatever limits admission: prefill's speed, or decode's KV when that is what requests wait for. While
    nothing waits the rate is only known to be at least what came, so that only larger values count.
    """

    def __init__(self, prior_tokens_per_s: float = 8000.0, time_constant_s: float = 30.0) -> None:
        self._per_worker = Ratio(prior_tokens_per_s, time_constant_s, prior_weight=5.0)
        self._waited = False
        self._workers = 1

    def close_tick(self, admitted_tokens: float, waiting: int, workers: int | None, elapsed_s: float) -> None:
        """``admitted_tokens`` (uncached) were admitted since the last tick; ``waiting`` requests still wait."""
        self._workers = max(workers or 1, 1)
        weight = self._workers * elapsed_s
        saturated = self._waited and waiting > 0
        if weight > 0 and (saturated or admitted_tokens / weight > self._per_worker.value):
            self._per_worker.add(admitted_tokens, weight, elapsed_s)
        self._waited = waiting > 0

    @property
    def tokens_per_s(self) -> float:
        """Of all prefill workers together; at least one token, so that it can divide."""
        return max(self._per_worker.value * self._workers, 1.0)


@dataclass(frozen=True)
class Queue:
    """Requests that are ready and not prefilled, in the order in which they became ready.

    Attributes:
        slot: int[n].
        tokens: uncached tokens still to compute, where each is expected to be sent.
        computed: tokens already computed of each.
        prompt_tokens: whole prompts.
        admitted: whether decode holds KV for each already.
        retried: whether each has been prefilled before.
        due_s: when each is admitted; 0 for those that are.
        prefilled_s: when the prefill of each ends.
        tokens_per_s: at which all that arrives later is admitted while requests wait.
        waits_s: float64[WAITS], how long a request that arrives now waits, at equally likely ranks, ascending.
        rank_work: float64[ranks], tokens to compute of each rank's queue; empty where no rank is known to serve.
        rank_tokens_per_s: that a rank which stays busy is expected to compute; ``context``: tokens of the longest
            context that a worker is at, on average. None and 0 where prefill has little to do.
        saturated: whether the first of those not yet admitted has waited for longer than a moment.
        waiting: requests not yet admitted.
        new_wait_s: how long a request that arrives now waits for admission, on average.
        backlog_tokens: uncached tokens of first prefills, less chunks computed; ``computed_tokens``: these chunks.
        retry_tokens: tokens that must be prefilled again.
    """

    slot: NDArray[np.intp]
    tokens: Array
    computed: Array
    prompt_tokens: Array
    admitted: NDArray[np.bool_]
    retried: NDArray[np.bool_]
    due_s: Array
    prefilled_s: Array
    tokens_per_s: float
    waits_s: Array
    rank_work: Array
    rank_tokens_per_s: float | None
    context: float
    saturated: bool
    waiting: int
    new_wait_s: float
    backlog_tokens: float
    computed_tokens: float
    retry_tokens: float

    def admitted_bins(self, pause_s: float, bins: int) -> NDArray[np.intp]:
        """The second in which each is admitted if not before ``pause_s``; 0 for those that are, ``bins`` for later."""
        return np.minimum(self.due_s + pause_s, bins).astype(np.intp)

    def prefilled_bins(self, pause_s: float, bins: int) -> NDArray[np.intp]:
        """The second in which the prefill of each ends, likewise."""
        return np.minimum(self.prefilled_s + pause_s, bins).astype(np.intp)


@dataclass(frozen=True, slots=True)
class Service:
    """Who serves the queue.

    Attributes:
        serving: bool[ranks], ranks that prefill; empty where none is known.
        workers: int32[ranks], the number of the worker of each.
        rank_tokens_per_s: of one of them, as of the last tick; ``line``: by the longest context; ``slack_s``: how much
            one has to do when it is sent more.
        admitted_tokens_per_s: of all admission together, as measured while requests waited.
        latency_s: from admission to the end of prefill where that has little to do.
    """

    serving: NDArray[np.bool_]
    workers: NDArray[np.int32]
    rank_tokens_per_s: float
    line: Line
    slack_s: float
    admitted_tokens_per_s: float
    latency_s: float


def make_queue(
    columns: Columns,
    t_s: float,
    typical_tokens: float,
    service: Service,
    losses: WaitLoss,
    first_share: FirstShare,
    starts: float,
) -> Queue:
    """The queue as it stands.

    The router's index tells what was cached at home when a request became ready; what waits long may find less there,
    and what is sent elsewhere finds what it or its siblings left there. A request without an index estimate counts
    ``typical_tokens``, at most its prompt; one that waits behind a sibling with the same first prompt at most what it
    lacks of it where that was computed, or what siblings compute again where none has been yet.
    """
    of = line_up(
        columns.state,
        columns.ready_s,
        columns.prompt_tokens,
        columns.uncached_tokens,
        columns.computed_tokens,
        columns.answered_s,
        (columns.admitted, columns.sibling, columns.flushed, columns.retried),
        columns.home,
        columns.held_tokens,
        columns.turn,
        columns.group,
        t_s,
        typical_tokens,
        first_share.scale(starts),
        BRIEF_S * service.rank_tokens_per_s,
    )
    turns = _due(of.tokens, of, service)
    tokens, waits_s, new_wait_s = turns.costs, np.zeros(WAITS), 0.0
    if of.waiting > 0:
        # What is evicted makes the queue longer, and a longer one evicts more; twice is enough for both to settle.
        gone = 1.0 - of.kept * (1.0 - losses.after(of.waited_s + turns.due_s))
        turns = _due(np.maximum(of.uncached + gone * of.losable - of.computed, 0.0), of, service)
        found = ~of.admitted & (of.group >= 0) & (turns.costs <= SHARED)
        tokens, waits_s = turns.costs + _AGAIN * of.prompt_tokens * found, turns.waits_s
        new_wait_s = float(waits_s.mean())
    backlog_tokens, computed_tokens, retry_tokens = sum_up(tokens, of.computed, of.retried)
    return Queue(
        slot=of.slot,
        tokens=tokens,
        computed=of.computed,
        prompt_tokens=of.prompt_tokens,
        admitted=of.admitted,
        retried=of.retried,
        due_s=turns.due_s,
        prefilled_s=turns.prefilled_s,
        tokens_per_s=turns.tokens_per_s,
        waits_s=waits_s,
        rank_work=turns.rank_work,
        rank_tokens_per_s=turns.rank_tokens_per_s,
        context=turns.context,
        saturated=of.longest_s > _QUEUED_S,
        waiting=of.waiting,
        new_wait_s=new_wait_s,
        backlog_tokens=backlog_tokens,
        computed_tokens=computed_tokens,
        retry_tokens=retry_tokens,
    )


class _Turns(NamedTuple):
    """What each request costs; else as in :class:`Queue`."""

    costs: Array
    due_s: Array
    prefilled_s: Array
    tokens_per_s: float
    waits_s: Array
    rank_work: Array
    rank_tokens_per_s: float | None = None
    context: float = 0.0


def _due(tokens: Array, of: Lineup, service: Service) -> _Turns:
    """What each costs, when it is admitted, the rate at which later ones are, and how long they wait."""
    ranks, rate = np.count_nonzero(service.serving), service.admitted_tokens_per_s
    outstanding, unadmitted, due_s, prefilled_s = in_order(tokens, of.admitted, rate, service.latency_s)
    if ranks == 0 or outstanding < _STARVED_S * ranks * service.rank_tokens_per_s:
        return _Turns(tokens, due_s, prefilled_s, rate, np.full(WAITS, unadmitted / rate), np.zeros(0))
    costs, ahead, work, sent_to = share_out(
        tokens, of.prompt_tokens, of.home, of.held_tokens, of.group, of.admitted, service.serving
    )
    pace = paced(of.prompt_tokens, costs, ahead, sent_to, work, service.workers, service.serving, service.line)
    due_s = np.where(of.admitted, 0.0, np.maximum(pace.begins_s - service.slack_s, 0.0))
    waits_s, rate = _middle_waits(pace.idle_s, service.serving, service.slack_s), pace.tokens_per_s
    return _Turns(costs, due_s, pace.ends_s, rate * ranks, waits_s, work, rate, pace.context)


@compiled
def _middle_waits(idle_s: Array, serving: NDArray[np.bool_], slack_s: float) -> Array:
    """float64[WAITS], the quantiles that stand for all waits: for ranks to have no more than ``slack_s`` left to do."""
    waits_s, middles = np.sort(np.maximum(idle_s[serving] - slack_s, 0.0)), np.empty(WAITS)
    for wait in range(WAITS):
        position = (wait + 0.5) / WAITS * (len(waits_s) - 1)
        at = min(int(position), max(len(waits_s) - 2, 0))
        later = min(at + 1, len(waits_s) - 1)
        middles[wait] = waits_s[at] + (position - at) * (waits_s[later] - waits_s[at])
    return middles
