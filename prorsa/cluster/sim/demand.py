"""What the demand of the next seconds really is: the engine run on, with nobody changing the split."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.sim import engine, records
from prorsa.cluster.sim.cache import reach
from prorsa.cluster.sim.state import (
    FETCH,
    PREFILL,
    QUEUED,
    READY,
    RETRACTED,
    ROLE_DECODE,
    ROLE_PREFILL,
    State,
)

_SETTLE_S = 30.0
"""Simulated seconds past the horizon in which requests that arrived within it may still be prefilled, so that their
uncached tokens are known for certain; those that are not count by the router's prefix index."""


def demand_ahead(state: State, horizons_s: Sequence[float], room: int) -> dict[float, dict[str, float]]:
    """Demand by horizon; see `Simulation.future_demand`. ``state`` is used up."""
    start_s = float(state.totals["now_s"][0])
    longest_s = max(horizons_s)
    backlog = _backlog(state)
    kv = [(start_s, _decode_kv(state))]
    log, later_kv = run_on(state, start_s + longest_s, room, _decode_kv)
    kv += later_kv
    settled, _ = run_on(state, start_s + longest_s + _SETTLE_S, room, _decode_kv)
    arrivals = _arrivals(log, np.concatenate([log, settled]))
    admissions = _admissions(log, state)
    return {
        horizon_s: {
            "backlog": float(backlog),
            "arrivals": _within(arrivals, start_s + horizon_s),
            "decode_admission": _within(admissions, start_s + horizon_s),
            "kv_need": max(tokens for time_s, tokens in kv if time_s <= start_s + horizon_s),
        }
        for horizon_s in horizons_s
    }


def _within(points: NDArray[np.float64], until_s: float) -> float:
    return float(points[points[:, 0] <= until_s, 1].sum())


def _backlog(state: State) -> int:
    """Uncached tokens of what waits in the router or at a prefill rank. Retries are a source of their own."""
    rows = state.trajectories
    sent = np.isin(rows["phase"], (FETCH, QUEUED, PREFILL)) & (rows["attempt"] == 0)
    waiting = np.flatnonzero((rows["phase"] == READY) & (rows["attempt"] == 0))
    serving = (state.workers["serving"] != 0) & (state.workers["role"] != ROLE_DECODE)
    ranks: list[int] = np.flatnonzero(serving[state.ranks["worker"]]).tolist()
    held = [max((reach(state, rank, i) for rank in ranks), default=0) for i in waiting.tolist()]
    best = np.array(held, dtype=np.int64)
    prompts = rows["prompt"][waiting]
    return int(rows["owed"][sent].sum() + (prompts - np.minimum(best, prompts - 1)).sum())


def run_on(
    state: State, until_s: float, room: int, kv_of: Callable[[State], float]
) -> tuple[NDArray[np.void], list[tuple[float, float]]]:
    """Run the engine on with nobody acting on the pool: its records until then, and (time, KV tokens) each second."""
    logs = []
    kv = []
    while True:
        stopped = engine.run(state, until_s, room)
        count = int(state.totals["logged"][0])
        logs.append(state.log[:count].copy())
        state.totals["logged"] = 0
        if stopped == engine.TICKED:
            kv.append((float(state.totals["now_s"][0]), float(kv_of(state))))
        elif stopped in (engine.REACHED, engine.FINISHED):
            return np.concatenate(logs), kv


def _decode_kv(state: State) -> float:
    """KV of the requests that decode holds, those in host memory too: it needs them back."""
    decoding = state.workers["role"][state.ranks["worker"]] != ROLE_PREFILL
    rows = state.trajectories[state.trajectories["phase"] == RETRACTED]
    return float(state.ranks["locked"][decoding].sum() + rows["prompt"].sum() + rows["output"].sum())


def _arrivals(log: NDArray[np.void], later: NDArray[np.void]) -> NDArray[np.float64]:
    """[time, uncached tokens] of each request that becomes ready: the true ones where its prefill has ended."""
    ready = log[log["kind"] == records.READY]
    ends = later[(later["kind"] == records.PREFILL_END) & (later["b"] == 0)]
    computed = {
        (i, turn): tokens for i, turn, tokens in zip(*(ends[f].tolist() for f in ("trajectory", "a", "e")), strict=True)
    }
    rows = zip(*(ready[f].tolist() for f in ("time_s", "trajectory", "a", "c")), strict=True)
    points = [(time_s, computed.get((i, turn), estimate)) for time_s, i, turn, estimate in rows]
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def _admissions(log: NDArray[np.void], state: State) -> NDArray[np.float64]:
    """[time, prompt + output] of each admission; an attempt's prompt holds the output of those before it."""
    admitted = log[(log["kind"] == records.ADMITTED) & (log["b"] == 0)]
    tokens = admitted["d"] + state.turns["output"][admitted["a"]]
    return np.column_stack([admitted["time_s"], tokens.astype(np.float64)])
