"""From the engine's compact records to lifecycle events."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from numpy.typing import NDArray

from prorsa.cluster.sim import records
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.state import State
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import (
    AnyEvent,
    EndStatus,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmRetry,
    LlmSubmit,
    RewardEnd,
    RewardStart,
    RunEnd,
    SandboxReady,
    SandboxStart,
    StepBegin,
    StepEnd,
    ToolEnd,
    ToolStart,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
)

Record = tuple[float, int, int, int, int, int, int, int, int]
"""Time, kind, trajectory, and the fields a to f of `prorsa.cluster.sim.records`."""


_REASONS: Final = ("drain", "weight update", "worker down")
"""Why requests are moved, by the codes of `prorsa.cluster.sim.records`."""


def worker_id(worker: int) -> str:
    """The id of a worker by its index."""
    return f"w{worker}"


class Narrator:
    """Tells what records mean, in the words of `prorsa.events`. It has no state of its own."""

    def __init__(self, workload: Workload, state: State, config: SimConfig) -> None:
        self._workload = workload
        self._workers: list[int] = state.ranks["worker"].tolist()
        self._first_ranks: list[int] = state.workers["first_rank"].tolist()
        self._config = config
        self._trajectory_ids = [f"t{i:05d}" for i in range(workload.trajectories)]
        self._prompts = workload.prompt_tokens[workload.first_turn[:-1]].tolist()
        self._first_turns = workload.first_turn.tolist()
        self._tools: list[int] = workload.tool.tolist()
        self._new_tokens: list[int] = (workload.prompt_tokens - workload.reuse_tokens).tolist()

    def tell(self, log: NDArray[Any], state: State) -> Iterator[tuple[float, AnyEvent]]:
        """The events of records in their order; EFFECT_RESULT and WORKER_UP records are the facade's own."""
        epochs: list[int] = state.workers["epoch"].tolist()
        for record in log.tolist():
            yield record[0], _TELLERS[record[1]](self, record, epochs)

    def trajectory_id(self, i: int) -> str:
        """The id of a trajectory by its index."""
        return self._trajectory_ids[i]

    def request_id(self, i: int, turn: int) -> str:
        """The id of a request; ``turn`` counts over the whole workload."""
        return f"{self._trajectory_ids[i]}-{turn - self._first_turns[i]:04d}"

    def rid(self, i: int, turn: int, attempt: int) -> str:
        """The id of an attempt of a request."""
        return f"{self.request_id(i, turn)}.{attempt:02d}"

    def worker_of(self, rank: int) -> str:
        """The id of the worker of a rank."""
        return worker_id(self._workers[rank])

    def _worker_or_none(self, rank: int) -> str | None:
        return None if rank < 0 else self.worker_of(rank)

    def _where(self, record: Record, epochs: list[int]) -> dict[str, Any]:
        """The fields that all events of the engine plugin share."""
        i, turn, attempt, rank = record[2:6]
        worker = self._workers[rank]
        return {
            "trajectory_id": self._trajectory_ids[i],
            "rid": self.rid(i, turn, attempt),
            "worker_id": worker_id(worker),
            "dp_rank": rank - self._first_ranks[worker],
            "epoch": epochs[worker],
        }

    def dispatched(self, record: Record, _: list[int]) -> AnyEvent:
        i = record[2]
        group = int(self._workload.group[i])
        return TrajectoryDispatched(
            trajectory_id=self._trajectory_ids[i],
            group_id=f"g{group:04d}" if group >= 0 else None,
            prompt_tokens=self._prompts[i],
            workload=self._workload.class_of(i),
        )

    def sandbox_start(self, record: Record, _: list[int]) -> AnyEvent:
        return SandboxStart(trajectory_id=self._trajectory_ids[record[2]])

    def sandbox_ready(self, record: Record, _: list[int]) -> AnyEvent:
        return SandboxReady(trajectory_id=self._trajectory_ids[record[2]])

    def ready(self, record: Record, _: list[int]) -> AnyEvent:
        i, turn, prompt, new = record[2:6]
        return TrajectoryReady(
            trajectory_id=self._trajectory_ids[i],
            request_id=self.request_id(i, turn),
            prompt_tokens=prompt,
            new_tokens=new,
        )

    def submit(self, record: Record, _: list[int]) -> AnyEvent:
        i, turn, attempt, prompt, new, prefill, decode = record[2:]
        return LlmSubmit(
            trajectory_id=self._trajectory_ids[i],
            request_id=self.request_id(i, turn),
            attempt=attempt,
            turn=turn - self._first_turns[i],
            prompt_tokens=prompt,
            new_tokens=new,
            prefill_worker=self.worker_of(prefill),
            decode_worker=self.worker_of(decode),
        )

    def admitted(self, record: Record, epochs: list[int]) -> AnyEvent:
        return LlmAdmitted(**self._where(record, epochs), kv_tokens=record[6])

    def prefill_start(self, record: Record, epochs: list[int]) -> AnyEvent:
        return LlmPrefillStart(**self._where(record, epochs))

    def prefill_end(self, record: Record, epochs: list[int]) -> AnyEvent:
        return LlmPrefillEnd(**self._where(record, epochs), cached_tokens=record[6], computed_tokens=record[7])

    def first_token(self, record: Record, _: list[int]) -> AnyEvent:
        i, turn, attempt, rank = record[2:6]
        return LlmFirstToken(
            trajectory_id=self._trajectory_ids[i], rid=self.rid(i, turn, attempt), worker_id=self.worker_of(rank)
        )

    def answered(self, record: Record, _: list[int]) -> AnyEvent:
        i, turn, attempt, output, cached, aborted = record[2:8]
        return LlmEnd(
            trajectory_id=self._trajectory_ids[i],
            request_id=self.request_id(i, turn),
            attempt=attempt,
            output_tokens=output,
            finish_reason="abort" if aborted else "stop",
            cached_tokens=cached,
        )

    def retry(self, record: Record, _: list[int]) -> AnyEvent:
        i, turn, attempt, kept, prefill, decode = record[2:8]
        return LlmRetry(
            trajectory_id=self._trajectory_ids[i],
            request_id=self.request_id(i, turn),
            attempt=attempt,
            reason=_REASONS[record[8]],
            tokens_kept=kept,
            from_prefill=self._worker_or_none(prefill),
            from_decode=self._worker_or_none(decode),
        )

    def tool_start(self, record: Record, _: list[int]) -> AnyEvent:
        name = self._workload.tools[self._tools[record[3]]]
        return ToolStart(trajectory_id=self._trajectory_ids[record[2]], tool_name=name)

    def tool_end(self, record: Record, _: list[int]) -> AnyEvent:
        turn = record[3]
        return ToolEnd(
            trajectory_id=self._trajectory_ids[record[2]],
            tool_name=self._workload.tools[self._tools[turn]],
            status="ok",
            output_tokens=self._new_tokens[turn],
        )

    def reward_start(self, record: Record, _: list[int]) -> AnyEvent:
        return RewardStart(trajectory_id=self._trajectory_ids[record[2]])

    def reward_end(self, record: Record, _: list[int]) -> AnyEvent:
        return RewardEnd(trajectory_id=self._trajectory_ids[record[2]], status="ok")

    def ended(self, record: Record, _: list[int]) -> AnyEvent:
        status: EndStatus = "truncated" if self._workload.truncated[record[2]] else "completed"
        if record[3]:
            status = "aborted"
        return TrajectoryEnd(trajectory_id=self._trajectory_ids[record[2]], status=status)

    def step_begin(self, record: Record, _: list[int]) -> AnyEvent:
        groups = self._workload.group[self._workload.step == record[3]]
        target = len(set(groups[groups >= 0].tolist()))
        if self._config.oversample > 1:
            target = min(target, self._config.groups_per_step or target)
        return StepBegin(step=record[3], target_groups=target or None)

    def step_end(self, record: Record, _: list[int]) -> AnyEvent:
        return StepEnd(step=record[3])

    def update_begin(self, record: Record, _: list[int]) -> AnyEvent:
        lead_s = self._config.update_lead_s if record[4] else None
        return WeightsUpdateBegin(version=str(record[3]), cache_flushed=self._config.cache_flush, expected_in_s=lead_s)

    def update_end(self, record: Record, _: list[int]) -> AnyEvent:
        return WeightsUpdateEnd(version=str(record[3]), cache_flushed=self._config.cache_flush)

    def worker_down(self, record: Record, _: list[int]) -> AnyEvent:
        return WorkerDown(worker_id=worker_id(record[3]), reason="died")

    def run_end(self, _record: Record, _: list[int]) -> AnyEvent:
        return RunEnd(status="completed")


_TELLERS: Final[dict[int, Callable[[Narrator, Record, list[int]], AnyEvent]]] = {
    records.DISPATCHED: Narrator.dispatched,
    records.SANDBOX_START: Narrator.sandbox_start,
    records.SANDBOX_READY: Narrator.sandbox_ready,
    records.READY: Narrator.ready,
    records.SUBMIT: Narrator.submit,
    records.ADMITTED: Narrator.admitted,
    records.PREFILL_START: Narrator.prefill_start,
    records.PREFILL_END: Narrator.prefill_end,
    records.FIRST_TOKEN: Narrator.first_token,
    records.ANSWERED: Narrator.answered,
    records.RETRY: Narrator.retry,
    records.TOOL_START: Narrator.tool_start,
    records.TOOL_END: Narrator.tool_end,
    records.REWARD_START: Narrator.reward_start,
    records.REWARD_END: Narrator.reward_end,
    records.ENDED: Narrator.ended,
    records.STEP_BEGIN: Narrator.step_begin,
    records.STEP_END: Narrator.step_end,
    records.UPDATE_BEGIN: Narrator.update_begin,
    records.UPDATE_END: Narrator.update_end,
    records.RUN_END: Narrator.run_end,
    records.WORKER_DOWN: Narrator.worker_down,
}
