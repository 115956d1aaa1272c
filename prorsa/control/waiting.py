"""The queue before prefill as the router's events tell it: which prompts wait, and how much of each is uncached.

Engines' own counters do not see what the router holds back, and some report zero while requests wait.
"""

from dataclasses import dataclass

from prorsa.events import (
    AnyEvent,
    LlmEnd,
    LlmPrefillEnd,
    LlmRetry,
    LlmSubmit,
    RunBegin,
    TrajectoryEnd,
    TrajectoryReady,
)


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    uncached_tokens: int
    held: bool


class Waiting:
    """Requests that are ready and not prefilled; folded from events, each in O(1).

    Attributes:
        known: whether a router has said anything of a request yet; without, all figures mean nothing.
        uncached_tokens: prompt tokens to compute, by the router's prefix index where it told, else whole prompts.
        held_prompt_tokens: whole prompts of those that the router has not sent yet.
    """

    def __init__(self) -> None:
        self.known = False
        self.uncached_tokens = 0
        self.held_prompt_tokens = 0
        self._prompt_tokens = 0
        self._requests: dict[str, _Request] = {}
        self._prefilled: dict[str, int] = {}  # prompt tokens of the requests that decode
        self._last: dict[str, str] = {}  # request of each trajectory

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def mean_uncached_tokens(self) -> float | None:
        """Mean tokens to compute of those that wait; None where none does."""
        return self.uncached_tokens / len(self._requests) if self._requests else None

    @property
    def mean_prefix_tokens(self) -> float | None:
        """Mean cached tokens of those that wait; None where none does."""
        if not self._requests:
            return None
        return max(0, self._prompt_tokens - self.uncached_tokens) / len(self._requests)

    def observe(self, event: AnyEvent) -> None:
        """Take one event; those that say nothing of the queue are ignored."""
        match event:
            case TrajectoryReady():
                if event.request_id is not None:
                    self._put(event.request_id, event.trajectory_id, event.prompt_tokens, event.new_tokens, held=True)
            case LlmSubmit():
                self._put(event.request_id, event.trajectory_id, event.prompt_tokens, event.new_tokens, held=False)
            case LlmPrefillEnd():
                request_id = event.rid.rpartition(".")[0]
                request = self._remove(request_id)
                if request is not None:
                    self._prefilled[request_id] = request.prompt_tokens
            case LlmRetry():
                self._retry(event)
            case LlmEnd():
                self._forget(event.request_id)
            case TrajectoryEnd():
                self._forget(self._last.pop(event.trajectory_id or "", ""))
            case RunBegin():
                self._clear()
            case _:
                pass

    def _clear(self) -> None:
        for request_id in [*self._requests, *self._prefilled]:
            self._forget(request_id)
        self._last.clear()

    def _retry(self, event: LlmRetry) -> None:
        """The router holds it again. What was prefilled is cached somewhere, the output that it keeps never was."""
        request, kept = self._requests.get(event.request_id), event.tokens_kept or 0
        if request is not None:
            prompt, uncached = request.prompt_tokens, request.uncached_tokens
        else:
            prompt, uncached = self._prefilled.pop(event.request_id, 0) + kept, kept
        self._put(event.request_id, event.trajectory_id, prompt, uncached, held=True)

    def _put(self, request_id: str, trajectory_id: str | None, prompt: int, new: int | None, *, held: bool) -> None:
        self.known = True
        before = self._requests.get(request_id)
        self._remove(request_id)
        uncached = (before.uncached_tokens if before else prompt) if new is None else new
        request = _Request(prompt, min(uncached, prompt), held)
        self._requests[request_id] = request
        if trajectory_id is not None:
            self._last[trajectory_id] = request_id
        self._count(request, 1)

    def _remove(self, request_id: str) -> _Request | None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._count(request, -1)
        return request

    def _forget(self, request_id: str) -> None:
        self._remove(request_id)
        self._prefilled.pop(request_id, None)

    def _count(self, request: _Request, sign: int) -> None:
        self._prompt_tokens += sign * request.prompt_tokens
        self.uncached_tokens += sign * request.uncached_tokens
        self.held_prompt_tokens += sign * request.prompt_tokens * request.held
