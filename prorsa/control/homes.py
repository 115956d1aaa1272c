"""Whose prefix each worker holds: what a flip would lose, folded from the events of the router.

A trajectory is at home on the worker that prefilled its last turn; its context is cached there until the trajectory
ends, the weights change with a flush, or the worker dies. What the worker had to evict meanwhile is not told by any
event: callers limit what they read here by the room that the worker has.
"""

from collections.abc import Collection
from typing import Final

from prorsa.events import (
    AnyEvent,
    LlmEnd,
    LlmPrefillEnd,
    LlmSubmit,
    RunBegin,
    TrajectoryEnd,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerRole,
)

_FEW: Final = 16
"""Requests that must have been prefilled before their mean says something."""
_LEAST_REMEMBERED, _MOST_REMEMBERED = 64, 512
"""Requests over which that mean forgets: about one turn of each live trajectory, since the caches thrash from one turn
to the next, within these bounds: two in a hundred bring half of all tokens, fewer would tell little."""


class Homes:
    """Live trajectories by the worker that holds their prefix; each event is O(1) but for flushes and deaths."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[str, int]] = {}
        self._trajectories: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._prefilled = 0
        self._computed_tokens = 0.0
        self._cached_tokens = 0.0

    def __len__(self) -> int:
        return len(self._at)

    def trajectories(self, worker_id: str) -> int:
        """Live trajectories whose prefix this worker holds."""
        return self._trajectories.get(worker_id, 0)

    def tokens(self, worker_id: str) -> int:
        """Tokens of their contexts, by their last turns."""
        return self._tokens.get(worker_id, 0)

    @property
    def total_tokens(self) -> int:
        """Tokens of the contexts of all of them."""
        return sum(self._tokens.values())

    @property
    def mean_tokens(self) -> float:
        """Of a trajectory's context; 0 while there is none."""
        return self.total_tokens / len(self._at) if self._at else 0.0

    @property
    def computed_tokens(self) -> float | None:
        """Mean prompt tokens that prefill computed of a request, over the last hundreds; None before some have been."""
        return self._computed_tokens if self._prefilled >= _FEW else None

    @property
    def cached_share(self) -> float:
        """Share of the prompts' tokens that prefill found cached as of late; 1 before some have been.

        Where the caches thrash it is small, and a flip loses little that would have been found.
        """
        tokens = self._cached_tokens + self._computed_tokens
        return self._cached_tokens / tokens if self._prefilled >= _FEW and tokens > 0.0 else 1.0

    def observe(self, event: AnyEvent, *, flip_loses: bool) -> None:
        """Take one event; ``flip_loses`` says whether a worker that changes its role forgets its prefixes."""
        match event:
            case LlmSubmit():
                if event.trajectory_id is not None and event.prefill_worker is not None:
                    self._put(event.trajectory_id, event.prefill_worker, event.prompt_tokens)
            case LlmEnd():
                self._grow(event.trajectory_id, event.output_tokens)
            case LlmPrefillEnd(cached_tokens=cached, computed_tokens=int(computed)):
                self._note_prefilled(cached, computed)
            case TrajectoryEnd():
                self._forget(event.trajectory_id)
            case WeightsUpdateEnd(cache_flushed=True) | RunBegin():
                self._at.clear()
                self._trajectories.clear()
                self._tokens.clear()
            case WorkerDown():
                self._leave({event.worker_id})
            case WorkerRole():
                # A worker that decodes serves no prefix to prefill, whether or not it keeps it.
                if flip_loses or event.role == "decode":
                    self._leave({event.worker_id})
            case _:
                pass

    def _put(self, trajectory_id: str, worker_id: str, tokens: int) -> None:
        self._forget(trajectory_id)
        self._at[trajectory_id] = worker_id, tokens
        self._trajectories[worker_id] = self.trajectories(worker_id) + 1
        self._tokens[worker_id] = self.tokens(worker_id) + tokens

    def _note_prefilled(self, cached_tokens: int, computed_tokens: int) -> None:
        self._prefilled += 1
        remembered = min(max(len(self), _LEAST_REMEMBERED), _MOST_REMEMBERED)
        weight = 1.0 / min(self._prefilled, remembered)
        self._cached_tokens += (cached_tokens - self._cached_tokens) * weight
        self._computed_tokens += (computed_tokens - self._computed_tokens) * weight

    def _grow(self, trajectory_id: str | None, tokens: int) -> None:
        at = self._at.get(trajectory_id or "")
        if at is not None and trajectory_id is not None:
            self._put(trajectory_id, at[0], at[1] + tokens)

    def _forget(self, trajectory_id: str | None) -> None:
        at = self._at.pop(trajectory_id or "", None)
        if at is not None:
            worker_id, tokens = at
            self._trajectories[worker_id] -= 1
            self._tokens[worker_id] -= tokens

    def _leave(self, workers: Collection[str]) -> None:
        for trajectory_id in [trajectory for trajectory, (worker, _) in self._at.items() if worker in workers]:
            self._forget(trajectory_id)
