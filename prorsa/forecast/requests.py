"""One LLM request of a trajectory, as far as events have told, and who wants to hear of it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Seen(IntEnum):
    """Events of a request, for folding repeats on (request_id, attempt, event)."""

    READY = 0
    SUBMIT = 1
    QUEUED = 2
    ADMITTED = 3
    PREFILL_START = 4
    PREFILL_END = 5
    FIRST_TOKEN = 6
    END = 7
    RETRY = 8


@dataclass(slots=True, eq=False)
class Request:
    """A turn's request over all its attempts.

    Attributes:
        request_id: None until it is known.
        slot: of its trajectory; -1 once that has ended.
        turn: index of the turn.
        prompt_tokens: whole prompt.
        previous_prompt_tokens: of the turn before; None for first turns or where unknown.
        first_tokens: of its trajectory's first turn; None where unknown.
        index_tokens: uncached tokens by the router's prefix index; None where unknown.
        ready_index_tokens: the same as it was when the request became ready.
        home: where it is prefilled: 0 for the rank that its context was on last, more for earlier ones, -1 for others;
            None before it is known.
        crowding: of its home, when it became ready; ``crowding_sent`` when it was sent to a worker. See
            :mod:`prorsa.forecast.moves`.
        workload: the class of its trajectory.
        action: what came before it: a tool, or the class's beginning; 0 where unknown.
        previous_action: what came before the answer before it; None for first turns or where unknown.
        previous_output_tokens: of the answer before it; None for first turns or where unknown.
        longer: what is expected of its answer as a multiple of the usual; see :mod:`~prorsa.forecast.effects`.
        sibling: whether it is a first request of a group that another one of has become ready before.
        placed: whether the router has sent it to a worker.
        answered_s: end of the previous answer; None for first turns or where unknown.
        flushed: whether every cache was dropped since the trajectory's last prefill.
        attempt: the attempt under way.
        ready_s: when it became ready.
        admitted_s: first admission by decode; None before.
        kv_tokens: reserved at that admission.
        prefilled_s: end of its first prefill; None before.
        uncached_tokens: what that prefill had to compute by the true ``cached_tokens``; None before or if unknown.
        output_tokens: of the whole answer; None before it has ended.
        ready_bin, admitted_bin: bins of the score keeper; -1 before.
        owes_prefill, owes_answer: whether the score keeper still waits for its uncached tokens, or its answer.
    """

    request_id: str | None
    slot: int
    turn: int
    prompt_tokens: int
    previous_prompt_tokens: int | None
    index_tokens: int | None
    answered_s: float | None
    flushed: bool
    ready_s: float
    workload: int = 0
    action: int = 0
    previous_action: int | None = None
    previous_output_tokens: int | None = None
    first_tokens: float | None = None
    longer: float = 1.0
    sibling: bool = False
    placed: bool = False
    ready_index_tokens: int | None = None
    home: int | None = None
    crowding: float = 0.0
    crowding_sent: float = 0.0
    attempt: int = 0
    admitted_s: float | None = None
    kv_tokens: int = 0
    prefilled_s: float | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None
    ready_bin: int = -1
    admitted_bin: int = -1
    owes_prefill: bool = False
    owes_answer: bool = False
    _seen: int = 0

    def is_repeat(self, attempt: int, event: Seen) -> bool:
        """Whether ``event`` of ``attempt`` has been seen before; remembers it."""
        bit = 1 << (attempt * len(Seen) + event)
        if self._seen & bit:
            return True
        self._seen |= bit
        return False

    def has_seen(self, attempt: int, event: Seen) -> bool:
        """Whether ``event`` of ``attempt`` has been seen."""
        return bool(self._seen >> (attempt * len(Seen) + event) & 1)

    @property
    def gap_s(self) -> float | None:
        """From the previous answer to this request; None where unknown."""
        return None if self.answered_s is None else max(self.ready_s - self.answered_s, 0.0)

    @property
    def grown_tokens(self) -> float | None:
        """Tokens that were appended to the context before it; None where unknown, negative if it shrank."""
        if self.previous_prompt_tokens is None or self.previous_output_tokens is None:
            return None
        return float(self.prompt_tokens - self.previous_prompt_tokens - self.previous_output_tokens)

    @property
    def settled(self) -> bool:
        """Whether everything that scores need to know about it is known."""
        return self.uncached_tokens is not None and self.output_tokens is not None


class LifecycleSink(Protocol):
    """What a :class:`~prorsa.forecast.trajectory.TrajectoryTable` tells as it learns it, each fact once."""

    def dispatched(self, workload: int, *, sibling: bool) -> None:
        """A trajectory of a workload class was dispatched; ``sibling`` if others of its group were before."""

    def waited(self, key: int, duration_s: float, expected_s: float | None, slower: float = 1.0) -> None:
        """A wait of kind ``key`` has ended after ``duration_s``; ``slower`` as the trajectory's tools were expected."""

    def turn_over(
        self, workload: int, turn: int, context_tokens: float, *, ended: bool, truncated: bool = False
    ) -> float:
        """Turn ``turn`` is over at a context of so many tokens, and with it the trajectory, or that goes on.

        ``truncated`` if a limit ended it. Returns the chance that it ended of its own, as known before.
        """

    def ready(self, t_s: float, request: Request) -> None:
        """A request waits for prefill."""

    def admitted(self, t_s: float, request: Request) -> None:
        """Decode has admitted a request for the first time."""

    def prefilled(self, t_s: float, request: Request) -> None:
        """A request's first prefill has ended and ``uncached_tokens`` is known."""

    def progressed(self, tokens: float, duration_s: float) -> None:
        """A request has put out ``tokens`` in ``duration_s``."""

    def answered(self, request: Request) -> None:
        """A request's answer is complete: ``output_tokens`` is known."""

    def lost(self, t_s: float, request: Request) -> None:
        """A request left without telling all: what is unknown of it stays unknown."""

    def ended(self) -> None:
        """A trajectory has ended."""
