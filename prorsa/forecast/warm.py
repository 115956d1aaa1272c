"""Compiles what a forecast needs before a run waits for it."""

from collections.abc import Iterator

from prorsa.clock import NS_PER_S
from prorsa.events import (
    AnyEvent,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmProgress,
    LlmSubmit,
    RunBegin,
    SamplerState,
    SandboxReady,
    SandboxStart,
    Stamped,
    ToolEnd,
    ToolStart,
    TrajectoryDispatched,
    TrajectoryReady,
    WorkerUp,
)
from prorsa.forecast.predictor import ForecastConfig, Predictor

_TICKS = 8
_PROMPT_TOKENS = 100_000
"""Long enough for siblings to wait for the first of their group, and for ranks to have a queue."""


def warm_up() -> None:
    """Forecast a few seconds of a made-up rollout: a minute of compiling on a machine's first run, else a moment.

    What is compiled is kept on disk. A process that compiles in the middle of a run would miss ticks, and its lease.
    """
    predictor = Predictor(ForecastConfig())
    hub_seq = 0
    for tick in range(1, _TICKS + 1):
        for event in _rollout(tick):
            hub_seq += 1
            predictor.observe(Stamped(hub_seq, tick * NS_PER_S, "warm", hub_seq, 0, event))
        predictor.tick(tick * NS_PER_S)


def _rollout(tick: int) -> Iterator[AnyEvent]:
    """A trajectory a second, each in a state of its own at the end, and one that comes back."""
    if tick == 1:
        yield RunBegin(workers=2, concurrency=_TICKS, trajectories=2 * _TICKS)
        yield WorkerUp(worker_id="p", role="prefill", epoch=0, kv_capacity=10**6)
        yield WorkerUp(worker_id="d", role="decode", epoch=0, kv_capacity=10**6)
        yield SamplerState(mode="async", queued=_TICKS, in_flight=1, limit=_TICKS)
    name, request, rid = f"t{tick}", f"t{tick}-0000", f"t{tick}-0000.00"
    yield TrajectoryDispatched(
        trajectory_id=name, group_id=f"g{tick // 2}", prompt_tokens=_PROMPT_TOKENS, workload="coding"
    )
    yield SandboxStart(trajectory_id=name)
    steps: tuple[AnyEvent, ...] = (
        SandboxReady(trajectory_id=name),
        TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=_PROMPT_TOKENS, new_tokens=1000),
        LlmSubmit(
            trajectory_id=name,
            request_id=request,
            attempt=0,
            turn=0,
            prompt_tokens=_PROMPT_TOKENS,
            prefill_worker="p",
            decode_worker="d",
        ),
        LlmAdmitted(rid=rid, worker_id="d", kv_tokens=_PROMPT_TOKENS),
        LlmPrefillStart(rid=rid, worker_id="p"),
        LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=_PROMPT_TOKENS - 1000, computed_tokens=1000),
        LlmFirstToken(rid=rid, worker_id="d"),
        LlmEnd(trajectory_id=name, request_id=request, attempt=0, output_tokens=50, finish_reason="stop"),
        ToolStart(trajectory_id=name, tool_name="bash"),
        ToolEnd(trajectory_id=name, tool_name="bash"),
        TrajectoryReady(
            trajectory_id=name, request_id=f"t{tick}-0001", prompt_tokens=_PROMPT_TOKENS + 100, new_tokens=50
        ),
    )
    yield from steps[: len(steps) if tick == 1 else 2 * tick - 3]
    yield LlmProgress(worker_id="p", prefilled=((rid, 500),))
