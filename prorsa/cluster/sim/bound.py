"""A makespan that no policy can go below."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Point, Profile, table_ms
from prorsa.cluster.sim.limits import alone_s
from prorsa.cluster.workloads.workload import Workload

Array = NDArray[np.float64]


def limit_makespan_s(
    profile: Profile,
    workload: Workload,
    workers: int,
    *,
    concurrency: int,
    weight_update_s: float = 0.0,
    decode_profile: Profile | None = None,
) -> float:
    """The physical limit of a run, in seconds.

    A step takes at least as long as its longest trajectory alone, as its work on all workers, and as its trajectories
    alone, so many at a time as may be in flight. Steps follow one another with a weight update between; an asynchronous
    run is one step.
    """
    least = _least(workload)
    decode = decode_profile or profile
    alone, work = alone_s(profile, least, decode), work_s(profile, least, decode)
    steps = np.unique(workload.step)
    total_s = weight_update_s * (len(steps) - 1)
    for step in steps:
        members = workload.step == step
        bounds = (alone[members].max(), work[members].sum() / workers, alone[members].sum() / concurrency)
        total_s += float(max(bounds))
    return total_s


def work_s(profile: Profile, workload: Workload, decode_profile: Profile) -> Array:
    """Worker-seconds that each trajectory takes at the least: float64[N].

    Each token once, with everything before it cached, in steps as full as they can be: full chunks on all ranks, the
    largest batch that requests or KV allow, experts at their cheapest number of tokens.
    """
    turns_ms = _prefill_ms(profile, workload) + _decode_ms(decode_profile, workload)
    per_trajectory: Array = np.add.reduceat(turns_ms, workload.first_turn[:-1])
    return per_trajectory / 1e3


def _least(workload: Workload) -> Workload:
    """The workload with each group's common stem as if somebody else had computed it."""
    reuse = workload.reuse_tokens.copy()
    reuse[workload.first_turn[:-1]] = workload.shared_tokens
    return replace(workload, reuse_tokens=reuse)


def _prefill_ms(profile: Profile, workload: Workload) -> Array:
    """Worker-milliseconds of each turn: float64[T]."""
    fit = profile.prefill
    new = np.maximum(workload.prompt_tokens - workload.reuse_tokens, 1).astype(np.float64)
    prefix = workload.prompt_tokens - new
    growing = np.clip(fit.window_tokens - prefix, 0.0, new)
    windowed = growing * (prefix + (growing + 1) / 2) + (new - growing) * fit.window_tokens
    rank_ms = (fit.a_ms / profile.chunk_tokens + fit.b_ms) * new + fit.c_ms * new * (new / 2 + prefix)
    rank_ms += fit.d_ms * windowed
    experts_ms = _cheapest_ms(profile.experts.prefill, profile.ranks * profile.chunk_tokens) * new
    ms: Array = rank_ms / profile.ranks + experts_ms
    return ms


def _decode_ms(profile: Profile, workload: Workload) -> Array:
    """Worker-milliseconds of each turn: float64[T]; the first token comes out of prefill."""
    fit, tokens = profile.decode, workload.output_tokens.astype(np.float64) - 1
    context = tokens * (workload.prompt_tokens + 1) + tokens * (tokens - 1) / 2
    # A rank's step has at most `max_running` requests, and at most its KV of context: either bound shares out `a`.
    shares = (fit.a_ms / profile.max_running * tokens, fit.a_ms / profile.kv_tokens * context)
    rank_ms = max(shares, key=lambda share: float(share.sum())) + fit.b_ms * tokens + fit.c_ms * context
    experts_ms = _cheapest_ms(profile.experts.decode, profile.ranks * profile.max_running) * tokens
    ms: Array = rank_ms / profile.ranks + experts_ms
    return ms


def _cheapest_ms(points: tuple[Point, ...], most: float) -> float:
    """The least milliseconds a token of a step of up to ``most`` tokens; a piecewise linear table has it at an end."""
    sizes = [tokens for tokens, _ in points if 0 < tokens < most] + [most]
    return min(table_ms(points, tokens) / tokens for tokens in sizes)
