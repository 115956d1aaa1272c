"""What a run has come to; the definitions are those of ``docs/metrics.md``."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.bound import limit_makespan_s
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.decode_clock import attention_s, experts_so_far_s, output_so_far, stepping_s
from prorsa.cluster.sim.limits import alone_s
from prorsa.cluster.sim.state import ROLES, State
from prorsa.cluster.workloads.workload import Workload

SplitRow = tuple[float, int, int, int, int]
"""Time in seconds; workers serving as prefill, decode, mixed; workers in any other state."""

BOUND_SHARE: Final = 0.9
"""A run whose longest trajectory alone takes more than this share of its makespan is bound by it."""


def split_row(state: State) -> SplitRow:
    """The split now; the dead are in no column."""
    serving, dead = state.workers["serving"] != 0, state.workers["down"] > 0
    counts = [int((serving & (state.workers["role"] == role)).sum()) for role in range(len(ROLES))]
    return (float(state.totals["now_s"][0]), counts[0], counts[1], counts[2], int((~serving & ~dead).sum()))


def measure(
    state: State, config: SimConfig, profiles: tuple[Profile, ...], workload: Workload, split: list[SplitRow]
) -> dict[str, Any]:
    """The report of a run; figures that need an end are None until every trajectory has ended."""
    totals = state.totals[0]
    done = int(totals["ended"]) == workload.trajectories
    ends = state.trajectories["end_s"]
    ended = ~np.isnan(ends)
    whole = ended & (state.trajectories["aborted"] == 0)
    elapsed_s = float(totals["last_end_s"]) if done else float(totals["now_s"])
    output = output_so_far(state)
    longest_s = alone_s(profiles[0], workload, profiles[-1])[whole].max(initial=0.0)
    return {
        "makespan_s": elapsed_s if done else None,
        "t95_s": _t95_s(ends[ended]) if done else None,
        "steady_output_tokens_per_s": _steady_rate(totals) if config.mode == "async" else None,
        "step_s": float(totals["step_sum_s"]) / int(totals["steps_done"]) if totals["steps_done"] else None,
        "bound_by_trajectory": bool(longest_s > BOUND_SHARE * elapsed_s) if done else None,
        "limit_makespan_s": _limit_s(state, config, profiles, workload),
        "sessions_skipped": workload.sessions_skipped,
        "trajectories_completed": int((whole & ~workload.truncated).sum()),
        "trajectories_truncated": int((whole & workload.truncated).sum()),
        "trajectories_aborted": int((ended & ~whole).sum()),
        "trajectories_failed": 0,
        "turns": int(totals["turns"]),
        "prompt_tokens": int(totals["prompt"]),
        "computed_prefill_tokens": int(state.ranks["computed"].sum()),
        "output_tokens": output,
        "output_tokens_per_s": output / elapsed_s if elapsed_s > 0 else None,
        "trajectory_latency_s": _latency_s((ends - state.trajectories["dispatch_s"])[whole]),
        "gpus": sum(profiles[kind].gpus for kind in state.workers["profile"].tolist()),
        **_gpu_time(state, profiles, elapsed_s),
        "flip_idle_ratio": _flip_idle_ratio(split, elapsed_s, len(state.workers)),
        "flips": int(state.workers["flips"].sum()),
        "flip_overhead_s": float(state.workers["out_s"].sum()),
        "requests_resumed": int(totals["resumed"]),
        "requests_interrupted": int(totals["interrupted"]),
        "weight_updates": int(totals["version"]),
        "recomputed_tokens": int(totals["recomputed"]),
        "prefill_again_tokens": int(totals["again"]),
        "retractions": int(totals["retractions"]),
        "extrapolated_tokens": int(totals["extrapolated"]),
        "split": [list(row) for row in split],
    }


def _limit_s(state: State, config: SimConfig, profiles: tuple[Profile, ...], workload: Workload) -> float | None:
    """The physical limit of the whole workload; None where over-sampling leaves a part of it undone."""
    if config.oversample > 1:
        return None
    return limit_makespan_s(
        profiles[0],
        workload,
        len(state.workers),
        concurrency=config.concurrency,
        weight_update_s=config.weight_update_s,
        decode_profile=profiles[-1],
    )


def _t95_s(ends: NDArray[np.float64]) -> float:
    """When 95 % of the trajectories had ended."""
    return float(np.sort(ends)[int(np.ceil(0.95 * len(ends))) - 1])


def _steady_rate(totals: np.void) -> float | None:
    """Output tokens a second from the moment the limit was first reached to the last dispatch."""
    seconds = float(totals["last_dispatch_s"] - totals["limit_reached_s"])
    if not seconds > 0:
        return None
    return float(totals["output_at_last_dispatch"] - totals["output_at_limit"]) / seconds


def _latency_s(latencies: NDArray[np.float64]) -> dict[str, float | None]:
    if not len(latencies):
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    p50, p90, p99 = np.percentile(latencies, (50, 90, 99)).tolist()
    return {"mean": float(latencies.mean()), "p50": p50, "p90": p90, "p99": p99}


def _gpu_time(state: State, profiles: tuple[Profile, ...], elapsed_s: float) -> dict[str, Any]:
    """Where the GPU time went, as shares of all of it: attention, experts, waiting for another rank; idle is the rest.

    Idle counts the waiting too. The GPUs of every rank compute the experts, whoever's tokens they are.
    """
    if elapsed_s <= 0:
        return {"gpu_idle_ratio": None, "gpu_time": None}
    gpu_s = np.zeros(4)
    for w, worker in enumerate(state.workers):
        profile = profiles[worker["profile"]]
        ranks = range(worker["first_rank"], worker["end_rank"])
        attention = sum(attention_s(state, rank) for rank in ranks)
        experts = experts_so_far_s(state, w) * len(ranks)
        waiting = stepping_s(state, w) * len(ranks) - attention - experts
        gpu_s += np.array([attention, experts, waiting, elapsed_s * len(ranks)]) * (profile.gpus / len(ranks))
    attention, experts, waiting = (gpu_s[:3] / gpu_s[3]).tolist()
    return {
        "gpu_idle_ratio": 1.0 - attention - experts,
        "gpu_time": {"attention": attention, "experts": experts, "waiting": max(waiting, 0.0)},
    }


def _flip_idle_ratio(split: list[SplitRow], elapsed_s: float, workers: int) -> float | None:
    """Share of worker time that was spent out of the pool."""
    if elapsed_s <= 0:
        return None
    ends = [row[0] for row in split[1:]] + [elapsed_s]
    switching_s = sum(row[4] * max(min(end_s, elapsed_s) - row[0], 0.0) for row, end_s in zip(split, ends, strict=True))
    return switching_s / (elapsed_s * workers)
