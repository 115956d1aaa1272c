"""How many live trajectories the caches hold: the second lever beside the split.

Past that number every turn finds its prefix evicted and prefills its whole context again, whatever the split: each
further trajectory slows all others down. The number is the room for prefixes (KV and host tier of the workers that
prefill) by the mean context of a live trajectory over its life, which is learnt from those that have ended. With a
shared store prefixes are not lost, and there is no such number.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prorsa.cluster.registry import Worker
from prorsa.control.config import ControlConfig
from prorsa.events import (
    Admission,
    AnyEvent,
    LlmEnd,
    LlmSubmit,
    RunBegin,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
)

GROWTH: Final = 2.0
"""Mean context over a trajectory's life by its first prompt, before any has ended: 2.0 for the coding agents and 1.8
for the general agents of ``docs/workloads.md``."""
FILL: Final = 0.85
"""Share of the room that is planned with. Contexts differ and lie on ranks unevenly, and what runs takes room beside
what waits; and the price of too many is far higher than that of too few. In simulation of coding agents on plain tensor
parallelism, of the concurrencies tried the best was 0.83 of the room, and half the throughput was gone at 1.25."""
_PRIOR_TURNS: Final = 100.0
"""Turns that this is worth."""
_KEEP_TURNS: Final = 5_000.0
"""Turns after which what was seen has lost 63 % of its weight: workloads drift."""


@dataclass(slots=True)
class _Life:
    """A live trajectory: context tokens summed over its answered turns, these turns, and the prompt under way."""

    tokens: float = 0.0
    turns: int = 0
    prompt_tokens: int = 0


class Contexts:
    """Mean context of a live trajectory over its life, and how many are live; folded from events, each in O(1).

    A trajectory is live from its first request to its end: before that it holds nothing.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._first_tokens = 0.0
        self._firsts = 0
        self._tokens = 0.0
        self._turns = 0.0

    @property
    def live(self) -> int:
        """Trajectories that have sent a request and not ended."""
        return len(self._lives)

    @property
    def mean_tokens(self) -> float | None:
        """Mean tokens of a live trajectory's context, turn by turn; None before any prompt is known."""
        if not self._firsts:
            return None
        prior = GROWTH * self._first_tokens / self._firsts
        return (_PRIOR_TURNS * prior + self._tokens) / (_PRIOR_TURNS + self._turns)

    def observe(self, event: AnyEvent) -> None:
        """Take one event; those that say nothing of contexts are ignored."""
        match event:
            case TrajectoryDispatched(prompt_tokens=int(tokens)):
                self._first_tokens += tokens
                self._firsts += 1
            case TrajectoryReady() | LlmSubmit(attempt=0):
                self._arrived(event.trajectory_id, event.prompt_tokens)
            case LlmEnd():
                self._answered(event.trajectory_id, event.output_tokens)
            case TrajectoryEnd():
                self._ended(event.trajectory_id)
            case RunBegin():
                self._lives.clear()
            case _:
                pass

    def _arrived(self, trajectory_id: str | None, prompt_tokens: int) -> None:
        if trajectory_id is None:
            return
        if not self._firsts:
            # Nobody tells of dispatches: the first prompt that is seen stands in.
            self._first_tokens, self._firsts = float(prompt_tokens), 1
        self._lives.setdefault(trajectory_id, _Life()).prompt_tokens = prompt_tokens

    def _answered(self, trajectory_id: str | None, output_tokens: int) -> None:
        life = self._lives.get(trajectory_id or "")
        if life is not None:
            life.tokens += life.prompt_tokens + output_tokens
            life.turns += 1

    def _ended(self, trajectory_id: str | None) -> None:
        life = self._lives.pop(trajectory_id or "", None)
        if life is None:
            return
        keep = max(0.0, 1.0 - life.turns / _KEEP_TURNS)
        self._tokens = keep * self._tokens + life.tokens
        self._turns = keep * self._turns + life.turns


def admission(contexts: Contexts, workers: Iterable[Worker], config: ControlConfig, t_ns: int) -> Admission:
    """The number of live trajectories that the caches hold now, and why."""
    holding = [worker for worker in workers if worker.serving and worker.role != "decode"]
    room = sum((worker.kv_capacity or 0) + config.host_kv_tokens for worker in holding)
    known = all(worker.kv_capacity is not None for worker in holding)
    mean_tokens, live = contexts.mean_tokens, contexts.live
    if config.cache == "l3":
        limit, reason = None, "a shared store holds every context: no limit"
    elif mean_tokens is None or not holding or not known:
        what = "prompt" if mean_tokens is None else "prefix cache"
        limit, reason = None, f"no {what} is known yet: no limit"
    else:
        limit = max(1, int(FILL * room / mean_tokens))
        reason = (
            f"the caches of {len(holding)} worker(s) hold {room / 1e6:.2f} M tokens and a live trajectory "
            f"{mean_tokens / 1e3:.1f} k on average: {limit} at a time fill {FILL:.0%}; {live} are live"
        )
    return Admission(
        tick_ns=t_ns,
        mode=config.admission,
        limit=limit,
        live=live,
        room_tokens=room if known and holding else None,
        mean_context_tokens=None if mean_tokens is None else round(mean_tokens, 1),
        reason=reason,
    )
