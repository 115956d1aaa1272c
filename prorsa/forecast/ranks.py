"""Where requests are prefilled: the ranks of the workers, how fast they are, and how the router shares work out.

Prorsa's router sends a request to the prefill rank with the least to compute before its first token: what is
outstanding there, what waits for it, and what that rank lacks of the prompt. So a turn stays at home, where its context
is, unless the queue at home is worse than elsewhere by more than home saves; and one rank may have a long queue while
others idle. A fluid with one queue would miss that.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled
from prorsa.forecast.models import Recent
from prorsa.forecast.speed import Line, LoadedSpeed

Array = NDArray[np.float64]

_TICK_RANKS: Final = 5.0
"""What all ranks computed in a second counts as what so many did, so that it is followed within six seconds."""
_RELATIVE_SLOPE: Final = 7e-6
"""How much longer a token takes after one more token of context, over what it takes after none, before any was seen: as
with the flattest of the packaged profiles (DeepSeek-V3.2, sparse attention: 6.6e-6 to 9e-6); others have 2e-5 to
1.2e-4."""
SHARED: Final = 1.0
"""Tokens that are computed of a prompt that is cached: engines compute the last one again."""
_WAITED_S: Final = 1.0
"""A request that waited for longer went to its rank as soon as that had little enough to do."""


class Ranks:
    """The data-parallel ranks that have been heard of, and how fast one prefills while requests wait.

    Attributes:
        work: float64[ranks], tokens to compute of each rank's queue as of the last tick, what waits for it included.
        least_work: the least of those that serve.
        saturated: whether requests wait for admission. While none does, steps are not full, and how long they take
            says nothing of how much a rank could do.
        workers: int32[ranks], the number of the worker of each.
    """

    def __init__(self) -> None:
        self.worker_of: list[str] = []
        self._number: dict[str, int] = {}
        self.workers: NDArray[np.int32] = np.zeros(0, np.int32)
        self._index: dict[tuple[str, int], int] = {}
        self._idle_since_s: list[float] = []
        self.work: Array = np.zeros(0)
        self.least_work = 0.0
        self.saturated = True
        self._speed = LoadedSpeed(4000.0, memory=30.0, prior_weight=1.0, relative_slope=_RELATIVE_SLOPE)
        self._tokens_per_s: float | None = None
        self._all_busy = False
        self._ahead_s = Recent(prior=0.5, memory=64.0, prior_weight=4.0)

    def __len__(self) -> int:
        return len(self.worker_of)

    @property
    def tokens_per_s(self) -> float:
        """Uncached tokens that a rank which stays busy is expected to compute a second."""
        return max(self._speed.value if self._tokens_per_s is None else self._tokens_per_s, 1.0)

    @property
    def line(self) -> Line:
        """Seconds a token of a rank, by the longest context that a rank of its worker is at."""
        return self._speed.line

    @property
    def slack_s(self) -> float:
        """How much a rank has to do when the router sends it more: routers keep ranks supplied for some steps."""
        return self._ahead_s.value

    def add_worker(self, worker_id: str, dp_size: int | None) -> None:
        """A worker has joined, with so many ranks."""
        for rank in range(dp_size or 1):
            self.index(worker_id, rank)

    def index(self, worker_id: str, dp_rank: int | None) -> int:
        """The number of a rank."""
        key = worker_id, dp_rank or 0
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self.worker_of)
            self.worker_of.append(worker_id)
            number = self._number.setdefault(worker_id, len(self._number))
            self.workers = np.append(self.workers, np.int32(number))
            self._idle_since_s.append(0.0)
        return found

    def note_work(self, work: Array, serving: NDArray[np.bool_], tokens_per_s: float | None) -> None:
        """The queues of this tick, float64[ranks], empty where no rank is known to serve; and how fast a busy rank is
        expected to be, None where prefill has little to do.
        """
        self.work, self._tokens_per_s = work, tokens_per_s
        self.least_work = float(work[serving].min()) if len(work) else 0.0

    def crowding(self, home: int, saved_tokens: float) -> float:
        """By how much the queue of a rank is longer than the shortest, as a share of the tokens that it saves a turn.

        0 where the rank is unknown.
        """
        if not 0 <= home < len(self.work):
            return 0.0
        return max(float(self.work[home]) - self.least_work, 0.0) / max(saved_tokens, 1.0)

    def prefilled(self, rank: int, ready_s: float, admitted_s: float, t_s: float, tokens: float) -> None:
        """A rank has computed ``tokens`` of a request, ready at ``ready_s`` and sent to it at ``admitted_s``."""
        begin_s = max(admitted_s, self._idle_since_s[rank])
        if self.saturated and not self._all_busy:
            self._speed.add_unloaded(tokens, max(t_s - begin_s, 0.0))
        if admitted_s - ready_s > _WAITED_S:
            self._ahead_s.add(begin_s - admitted_s, 1.0)
        self._idle_since_s[rank] = max(t_s, self._idle_since_s[rank])

    def computed(
        self,
        tokens: float,
        sent: NDArray[np.int32],
        context: float,
        serving: NDArray[np.bool_],
        elapsed_s: float,
    ) -> None:
        """A tick: ``tokens`` have been computed since the last one, of requests whose prefill has ended or goes on.

        While every rank that serves has something to do this tells of their speed at once, long before a large prompt
        is through. Ranks of a worker go in step, as fast as the one with the longest context before its chunk: the more
        of a large prompt is done, the slower are all.

        Args:
            sent: int32[n], the ranks of the requests that have been sent and not prefilled.
            context: tokens of the longest context that a worker is at, on average.
        """
        were_busy, self._all_busy = self._all_busy, _all_busy(sent, serving)
        if were_busy and self._all_busy:
            share = _TICK_RANKS / int(np.count_nonzero(serving))
            self._speed.add(max(tokens, 0.0) * share, _TICK_RANKS * elapsed_s, context, elapsed_s)

    def idled(self) -> None:
        """A tick at which no request waited: ranks may have had nothing to do."""
        self._all_busy = False

    def serving(self, serves: Callable[[str], bool]) -> NDArray[np.bool_]:
        """bool[ranks]: those whose worker serves prefill."""
        return np.array([serves(worker_id) for worker_id in self._number], np.bool_)[self.workers]


@compiled
def _all_busy(sent: NDArray[np.int32], serving: NDArray[np.bool_]) -> bool:
    """Whether ranks serve, and requests have been sent (int32[n], -1 where that is unknown) to each of them."""
    idle = serving.copy()
    for rank in sent:
        if rank >= 0:
            idle[rank] = False
    return bool(serving.any() and not idle.any())


@compiled
def share_out(
    tokens: Array,
    prompt: Array,
    home: NDArray[np.int32],
    held_tokens: Array,
    group: NDArray[np.int32],
    admitted: NDArray[np.bool_],
    serving: NDArray[np.bool_],
) -> tuple[Array, Array, Array, NDArray[np.intp]]:
    """Requests in the order in which they came, sent to ranks as the router would.

    First requests of a group follow each other: where one has been sent the others find its prompt, but for a token.

    Args:
        tokens: float64[n], what is left to compute of each where its context is.
        prompt: float64[n], whole prompts.
        home: int32[n, homes], ranks that hold a part of its context, the last one first; -1 for none.
        held_tokens: float64[n, homes], how much of it.
        group: int32[n], numbers of the groups whose prompt is the whole of a first request's; -1 for others.
        admitted: bool[n], whether it has been sent already: then its rank is its home.
        serving: bool[ranks], at least one of which is true.

    Returns:
        float64[n], tokens that its rank computes of each; float64[n], before each; float64[ranks], all tokens of each
        rank; int[n], ranks.
    """
    work, ahead, costs = np.zeros(len(serving)), np.zeros(len(tokens)), np.zeros(len(tokens))
    sent_to = np.zeros(len(tokens), np.intp)
    led = np.full(group.max() + 1 if len(group) else 0, -1)
    for sent in (True, False):
        for i in range(len(tokens)):
            if admitted[i] != sent:
                continue
            at, cost = home[i, 0], tokens[i]
            if not sent or at < 0 or not serving[at]:
                leader = led[group[i]] if not sent and group[i] >= 0 else -1
                fresh = tokens[i] if home[i, 0] < 0 and leader < 0 else prompt[i]
                at, cost = _choose(tokens[i], prompt[i], fresh, home[i], held_tokens[i], work, serving)
                if leader >= 0 and work[leader] + SHARED < work[at] + cost:
                    at, cost = leader, SHARED
            ahead[i], costs[i], sent_to[i] = work[at], cost, at
            work[at] += cost
            if group[i] >= 0:
                led[group[i]] = at
    return costs, ahead, work, sent_to


@compiled
def _choose(
    tokens: float,
    prompt: float,
    fresh: float,
    home: NDArray[np.int32],
    held: Array,
    work: Array,
    serving: NDArray[np.bool_],
) -> tuple[int, float]:
    """The rank with the least to compute before a request's first token, and what the request adds to it.

    That is ``fresh`` where nothing of its context is.
    """
    at, best = -1, np.inf
    for rank in range(len(serving)):
        if serving[rank] and work[rank] < best:
            at, best = rank, work[rank]
    cost = fresh
    best += cost
    for h in range(len(home)):
        rank = home[h]
        if rank >= 0 and serving[rank]:
            lacks = tokens if h == 0 else max(prompt - held[h], tokens)
            if work[rank] + lacks <= best:
                at, best, cost = rank, work[rank] + lacks, lacks
    return at, cost
