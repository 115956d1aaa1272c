"""A worker's load in numbers, gathered by compiled code because it is asked for each simulated second."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.sim.decode_clock import stepping_s, steps_done
from prorsa.cluster.sim.jit import entry
from prorsa.cluster.sim.queues import join_queue, prefill_queue, retracted_queue
from prorsa.cluster.sim.state import State

GAUGES: Final = (
    "role",
    "epoch",
    "queued",
    "queued_tokens",
    "running",
    "kv_used",
    "kv_cached",
    "prefill_tokens_total",
    "output_tokens_total",
    "busy_us_total",
)
"""Columns of `read_gauges`."""


def read_gauges(state: State) -> NDArray[np.int64]:
    """The load of each worker now: int64[W, len(GAUGES)]; it is busy while it is in a step, whatever its ranks wait."""
    table = np.zeros((len(state.workers), len(GAUGES)), np.int64)
    _fill(state, table)
    return table


@entry
def _fill(s: State, table: NDArray[np.int64]) -> None:
    for w in range(len(s.workers)):
        row = table[w]
        row[0], row[1] = s.workers[w].role, s.workers[w].epoch
        done = steps_done(s, w)
        for rank in range(s.workers[w].first_rank, s.workers[w].end_rank):
            r = s.ranks[rank]
            for queue in (prefill_queue(rank), join_queue(rank), retracted_queue(rank)):
                row[2] += s.queues[queue].size
            row[3] += r.outstanding
            row[4] += r.running
            row[5] += r.locked
            row[6] += r.cached
            row[7] += r.computed
            row[8] += r.output + r.running * done
        row[9] = int(stepping_s(s, w) * 1e6)
