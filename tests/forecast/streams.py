"""A small rollout that emits a legal event stream: one prefill server, decodes side by side, exponential tools."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from prorsa import events as ev
from prorsa.clock import nanoseconds


@dataclass
class Rollout:
    """Draws a rollout of ``trajectories``, at most ``limit`` at a time, and writes down what would be emitted."""

    trajectories: int = 20
    limit: int = 20
    turns: int = 4
    tool_s: float = 5.0
    first_prompt: int = 4000
    new_tokens: int = 800
    output: int = 200
    prefill_tokens_per_s: float = 20_000.0
    output_tokens_per_s: float = 50.0
    seed: int = 0
    tools: bool = True
    events: list[ev.Stamped] = field(default_factory=list)

    def run(self) -> list[ev.Stamped]:
        """The events in order of time, with consecutive numbers per source."""
        self._rng = np.random.default_rng(self.seed)
        self._raw: list[tuple[float, int, str, ev.AnyEvent]] = []
        self._free_s = 0.0
        self._queue: list[tuple[float, int, int, int]] = []
        self._decoding: dict[str, tuple[float, int]] = {}
        waiting = list(range(self.trajectories))
        for _ in range(min(self.limit, len(waiting))):
            self._dispatch(waiting.pop(0), 0.0)
        while self._queue:
            t_s, i, turn, context = heapq.heappop(self._queue)
            end_s = self._turn(t_s, i, turn, context)
            if end_s is not None and waiting:
                self._dispatch(waiting.pop(0), end_s)
        self._progress()
        self.events = list(_stamp(sorted(self._raw, key=lambda row: (row[0], row[1]))))
        return self.events

    def _emit(self, t_s: float, source: str, event: ev.AnyEvent) -> None:
        self._raw.append((t_s, len(self._raw), source, event))

    def _dispatch(self, i: int, t_s: float) -> None:
        name = f"t{i:03d}"
        self._emit(t_s, "sdk", ev.TrajectoryDispatched(trajectory_id=name, prompt_tokens=self.first_prompt))
        self._emit(t_s, "sdk", ev.SandboxStart(trajectory_id=name))
        up_s = t_s + float(self._rng.exponential(2.0))
        self._emit(up_s, "sdk", ev.SandboxReady(trajectory_id=name))
        heapq.heappush(self._queue, (up_s, i, 0, 0))

    def _turn(self, t_s: float, i: int, turn: int, context: int) -> float | None:
        name, request = f"t{i:03d}", f"t{i:03d}-{turn:04d}"
        new = self.first_prompt if turn == 0 else int(self._rng.lognormal(np.log(self.new_tokens), 1.0)) + 1
        prompt, output = context + new, int(self._rng.exponential(self.output)) + 1
        start_s = max(t_s, self._free_s)
        self._free_s = prefilled_s = start_s + new / self.prefill_tokens_per_s
        end_s = prefilled_s + output / self.output_tokens_per_s
        rid = ev.make_rid(request, 0)
        ready = ev.TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=prompt, new_tokens=new)
        self._emit(t_s, "router", ready)
        self._emit(
            start_s,
            "router",
            ev.LlmSubmit(
                trajectory_id=name, request_id=request, attempt=0, turn=turn, prompt_tokens=prompt, new_tokens=new
            ),
        )
        self._emit(start_s, "plugin", ev.LlmAdmitted(rid=rid, worker_id="d0", kv_tokens=prompt))
        self._emit(start_s, "plugin", ev.LlmPrefillStart(rid=rid, worker_id="p0"))
        self._emit(
            prefilled_s,
            "plugin",
            ev.LlmPrefillEnd(rid=rid, worker_id="p0", cached_tokens=context, computed_tokens=new),
        )
        self._emit(prefilled_s, "plugin", ev.LlmFirstToken(rid=rid, worker_id="d0"))
        self._emit(
            end_s,
            "router",
            ev.LlmEnd(trajectory_id=name, request_id=request, attempt=0, output_tokens=output, finish_reason="stop"),
        )
        self._decoding[rid] = (prefilled_s, output)
        if turn + 1 == self.turns:
            self._emit(end_s, "sdk", ev.RewardStart(trajectory_id=name))
            self._emit(end_s + 0.5, "sdk", ev.RewardEnd(trajectory_id=name))
            self._emit(end_s + 0.5, "sdk", ev.TrajectoryEnd(trajectory_id=name, status="completed"))
            return end_s + 0.5
        back_s = end_s + float(self._rng.exponential(self.tool_s)) + 1e-3
        if self.tools:
            self._emit(end_s, "sdk", ev.ToolStart(trajectory_id=name, tool_name="bash"))
            self._emit(back_s, "sdk", ev.ToolEnd(trajectory_id=name, tool_name="bash"))
        heapq.heappush(self._queue, (back_s, i, turn + 1, prompt))
        return None

    def _progress(self) -> None:
        last = max(row[0] for row in self._raw)
        for second in range(1, int(last) + 1):
            output = tuple(
                (rid, int((second - begin) * self.output_tokens_per_s))
                for rid, (begin, tokens) in self._decoding.items()
                if begin < second < begin + tokens / self.output_tokens_per_s
            )
            if output:
                self._emit(float(second), "plugin", ev.LlmProgress(worker_id="d0", output=output))


def _stamp(rows: list[tuple[float, int, str, ev.AnyEvent]]) -> Iterator[ev.Stamped]:
    seqs: dict[str, int] = {}
    for hub_seq, (t_s, _, source, event) in enumerate(rows, start=1):
        seq = seqs[source] = seqs.get(source, -1) + 1
        yield ev.Stamped(hub_seq, nanoseconds(t_s), source, seq, 0, event)


def stamp(events: list[tuple[float, ev.AnyEvent]], source: str = "test") -> list[ev.Stamped]:
    """Hand-written events of one source."""
    return list(_stamp([(t_s, i, source, event) for i, (t_s, event) in enumerate(events)]))
