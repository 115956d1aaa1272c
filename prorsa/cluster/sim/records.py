"""Kinds of the compact records that the engine leaves of what happens, and what their fields hold.

``trajectory`` is the trajectory's index (-1 for none); ``turn`` an index into the turn arrays; ``rank`` a rank index.

==================  =================================================
kind                a, b, c, d, e, f
==================  =================================================
DISPATCHED
SANDBOX_START
SANDBOX_READY
READY               turn, prompt tokens, uncached tokens
SUBMIT              turn, attempt, prompt tokens, uncached tokens, prefill rank, decode rank
ADMITTED            turn, attempt, rank, KV tokens
PREFILL_START       turn, attempt, rank
PREFILL_END         turn, attempt, rank, cached tokens, computed tokens
FIRST_TOKEN         turn, attempt, rank
ANSWERED            turn, attempt, output tokens, cached tokens, whether the client has aborted it
RETRY               turn, new attempt, output tokens kept, prefill rank, decode rank, why
TOOL_START          turn
TOOL_END            turn
REWARD_START
REWARD_END
ENDED               whether it was cut off
STEP_BEGIN          step
STEP_END            step
UPDATE_BEGIN        version, whether it is only announced
UPDATE_END          version
EFFECT_RESULT       worker, ok, requests resumed, KV tokens dropped
RUN_END
WORKER_DOWN         worker
WORKER_UP           worker
==================  =================================================
"""

from typing import Final

from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.state import State

DISPATCHED: Final = 0
SANDBOX_START: Final = 1
SANDBOX_READY: Final = 2
READY: Final = 3
SUBMIT: Final = 4
ADMITTED: Final = 5
PREFILL_START: Final = 6
PREFILL_END: Final = 7
FIRST_TOKEN: Final = 8
ANSWERED: Final = 9
RETRY: Final = 10
TOOL_START: Final = 11
TOOL_END: Final = 12
REWARD_START: Final = 13
REWARD_END: Final = 14
ENDED: Final = 15
STEP_BEGIN: Final = 16
STEP_END: Final = 17
UPDATE_BEGIN: Final = 18
UPDATE_END: Final = 19
EFFECT_RESULT: Final = 20
RUN_END: Final = 21
WORKER_DOWN: Final = 22
WORKER_UP: Final = 23

DRAIN: Final = 0
"""Why a request was moved: its worker is drained."""
WEIGHTS: Final = 1
"""The weights are updated, and the caches flushed."""
DOWN: Final = 2
"""A worker has died."""

_ALWAYS: Final = STEP_BEGIN
"""Kinds from here on are logged even where the run emits no lifecycle events."""


@kernel
def log(s: State, kind: int, i: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> None:
    """Leave a record of what happens now."""
    if kind < _ALWAYS and s.params[0].emit == 0:
        return
    totals = s.totals[0]
    record = s.log[totals.logged]
    totals.logged += 1
    record.time_s = totals.now_s
    record.kind = kind
    record.trajectory = i
    record.a, record.b, record.c = a, b, c
    record.d, record.e, record.f = d, e, f
