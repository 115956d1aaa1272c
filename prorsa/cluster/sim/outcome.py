"""What the demand of the next seconds comes to if this run goes on under the frozen split, as forecasts are scored.

The definitions are those of :mod:`prorsa.forecast.scoring`; a test holds the two together. ``demand.py`` gives what a
policy wants of perfect knowledge: there a backlog is what the router's index says, here what prefill will compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.sim import records
from prorsa.cluster.sim.decode_clock import output_of
from prorsa.cluster.sim.demand import run_on
from prorsa.cluster.sim.jit import entry
from prorsa.cluster.sim.state import FETCH, PREFILL, QUEUED, READY, ROLE_MIXED, State

SETTLE_S: Final = 300.0
"""Simulated seconds past the longest horizon in which requests of it may still be prefilled. Those that are not count
by the router's prefix index."""
_LOOK_S: Final = 2.0

_BEFORE_DECODE: Final = (READY, FETCH, QUEUED, PREFILL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens of one horizon.

    Attributes:
        prefill: uncached prompt tokens that prefill still has to compute of requests that are ready now or become ready
            within the horizon; ``prefill_arrivals``: of the latter alone.
        decode_admission: prompt + answer of the requests that decode admits within the horizon;
            ``admission_arrivals``: of those that are not ready now.
        kv_need: the most KV of requests that decode has admitted at any whole second within the horizon.
    """

    prefill: float
    prefill_arrivals: float
    decode_admission: float
    admission_arrivals: float
    kv_need: float


def outcome(state: State, horizons_s: Sequence[float], room: int) -> dict[float, Outcome]:
    """Outcome by horizon; ``state`` is used up, and logs must be on."""
    start_s = float(state.totals["now_s"][0])
    longest_s = max(horizons_s)
    backlog = _Backlog(state)
    log, kv = run_on(state, start_s + longest_s, room, _held_kv)
    computed = _computed(state, np.concatenate([log, _settle(state, start_s + longest_s, room)]))
    ready = log[log["kind"] == records.READY]
    arrivals = _or(computed[ready["a"]], ready["c"])
    admitted = log[(log["kind"] == records.ADMITTED) & (log["b"] == 0)]
    admissions = admitted["d"] + state.turns["output"][admitted["a"]]
    came = np.zeros(len(state.turns), np.bool_)
    came[ready["a"]] = True
    waits = backlog.tokens(computed)
    out = {}
    for horizon_s in horizons_s:
        end_s = start_s + horizon_s
        arrived = float(arrivals[ready["time_s"] <= end_s].sum())
        inside = admitted["time_s"] <= end_s
        out[horizon_s] = Outcome(
            prefill=waits + arrived,
            prefill_arrivals=arrived,
            decode_admission=float(admissions[inside].sum()),
            admission_arrivals=float(admissions[inside & came[admitted["a"]]].sum()),
            kv_need=max((tokens for time_s, tokens in kv if time_s <= end_s), default=0.0),
        )
    return out


class _Backlog:
    """First attempts that are ready and not prefilled now."""

    def __init__(self, state: State) -> None:
        rows = state.trajectories
        waiting = rows[_waiting(rows)]
        self._turns = waiting["turn"].copy()
        begun = waiting["phase"] == PREFILL
        self._done = np.where(begun, waiting["position"] - waiting["cached"], 0)
        # Before the router has sent it a request owes what its best prefix leaves; the whole prompt at most.
        self._owed = np.where(waiting["phase"] == READY, waiting["prompt"], waiting["owed"] + self._done)

    def tokens(self, computed: NDArray[np.float64]) -> float:
        """What they still have to compute, by what their prefill computes in the end."""
        left = _or(computed[self._turns], self._owed) - self._done
        return float(np.maximum(left, 0).sum())


def _waiting(rows: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isin(rows["phase"], _BEFORE_DECODE) & (rows["attempt"] == 0)


def _or(values: NDArray[np.float64], otherwise: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values), otherwise, values)


def _computed(state: State, log: NDArray[Any]) -> NDArray[np.float64]:
    """Tokens that the first prefill of each turn computed: float64[T], NaN where it has not ended."""
    ends = log[(log["kind"] == records.PREFILL_END) & (log["b"] == 0)]
    computed = np.full(len(state.turns), np.nan)
    computed[ends["a"]] = ends["e"]
    return computed


def _settle(state: State, until_s: float, room: int) -> NDArray[Any]:
    """Run on until all that was ready by ``until_s`` is prefilled, or for as long as that may take."""
    logs = [np.empty(0, state.log.dtype)]
    at_s = until_s
    while at_s < until_s + SETTLE_S:
        rows = state.trajectories
        if not (_waiting(rows) & (rows["arrival_s"] <= until_s)).any():
            break
        at_s += _LOOK_S
        logs.append(run_on(state, at_s, room, _held_kv)[0])
    return np.concatenate(logs)


@entry
def _held_kv(s: State) -> int:
    """Prompt and output so far of the requests that decode has admitted, what siblings share counted for each."""
    tokens = 0
    for i in range(len(s.trajectories)):
        trajectory = s.trajectories[i]
        if trajectory.decode < 0:
            continue
        mixed = s.workers[s.ranks[trajectory.decode].worker].role == ROLE_MIXED
        # A colocated rank admits when it starts to prefill.
        if not mixed or trajectory.phase >= PREFILL:
            tokens += trajectory.prompt + (output_of(s, i) if trajectory.slot >= 0 else trajectory.output)
    return tokens
