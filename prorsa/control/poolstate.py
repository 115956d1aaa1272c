"""The pool as look-ahead and admission see it: from forecast, profile and load reports to the fluid model's state."""

from typing import Final

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.step import RankWork, step_parts
from prorsa.control.fluid import Array, PoolState
from prorsa.control.policies.base import Context
from prorsa.forecast.frame import Frame

_REQUESTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
RESERVED_TOKENS: Final = 512
"""KV that decode keeps free for each request it holds (SGLang ``--num-reserved-decode-tokens``, default)."""
_FEW: Final = 16
"""Requests that a typical one counts for in the mean context of those that decode: contexts spread by about their mean,
so that of so many the mean is within a quarter."""
_FIT: Final = 0.5
"""Of a rank's KV the room of half a request stays empty on average: the next in line does not fit what is left."""


def known_state(context: Context) -> PoolState | str:
    """The pool as a fluid, or the name of what is not known yet."""
    frame, profile = context.frame, context.cost.profile
    if frame is None or not frame.arrivals_per_s:
        return "forecast"
    if context.kv_capacity is None:
        return "KV capacity"
    if profile is None:
        return "profile"
    if frame.mean_output_tokens <= 0.0 or frame.requests_per_s <= 0.0:
        return "traffic"
    new_tokens, prefix_tokens = _request_tokens(context, frame)
    context_tokens = _context_tokens(frame)
    away = max(frame.live_trajectories - frame.waiting_requests - frame.decode_batch, 0)
    return PoolState(
        away=away,
        waiting=frame.waiting_requests,
        waiting_tokens=frame.backlog_tokens + frame.retry_backlog_tokens,
        decoding=frame.decode_batch,
        new_tokens=new_tokens,
        prefix_tokens=prefix_tokens,
        output_tokens=frame.mean_output_tokens,
        places=decode_places(profile, context.kv_capacity, context_tokens),
        requests=np.array(_REQUESTS, dtype=np.float64),
        prefill_tokens_per_s=np.array([prefill_rate(profile, n, new_tokens, prefix_tokens) for n in _REQUESTS]),
        decode_step_s=np.array([decode_step_s(profile, n, context_tokens) for n in _REQUESTS]),
        cached_share=_cached_share(context, frame, context_tokens),
    )


def _request_tokens(context: Context, frame: Frame) -> tuple[float, float]:
    """Uncached and cached tokens of a typical next request: as of late, before that as forecast."""
    computed = context.homes.computed_tokens
    new_tokens = max(frame.mean_new_tokens if computed is None else computed, 1.0)
    return new_tokens, max(frame.mean_new_tokens + frame.mean_prefix_tokens - new_tokens, 0.0)


def arrival_spread(frame: Frame, weights: Array) -> Array | None:
    """Low, middle and high quantile of the arrivals of the longest horizon, by their weighted mean: ``[3]``.

    None where the forecast has no quantiles. They are corrected by what has come so far, in tokens: how many requests
    come is better taken from the frame.
    """
    total = frame.get("prefill", max(row.horizon_s for row in frame.rows))
    if total.p10 is None or total.p50 is None or total.p90 is None:
        return None
    quantiles = np.maximum(np.array([total.p10, total.p50, total.p90]) - frame.backlog_tokens, 0.0)
    mean = float(weights @ quantiles)
    return np.asarray(quantiles / mean) if mean > 0.0 else None


def _context_tokens(frame: Frame) -> float:
    """Prompt and output of a request that decodes: those that do, and typical ones where few do, which say little."""
    typical = max(frame.mean_new_tokens + frame.mean_prefix_tokens + frame.mean_output_tokens, 1.0)
    if frame.mean_context_tokens is None:
        return typical
    return (frame.decode_batch * frame.mean_context_tokens + _FEW * typical) / (frame.decode_batch + _FEW)


def decode_places(profile: Profile, kv_capacity: int, context_tokens: float) -> float:
    """Requests that one decode worker holds at a time; each rank has its own KV."""
    by_kv = kv_capacity / profile.ranks / (context_tokens + RESERVED_TOKENS) - _FIT
    return profile.ranks * min(max(by_kv, 1.0), profile.max_running)


def prefill_rate(profile: Profile, requests: int, new_tokens: float, prefix_tokens: float) -> float:
    """Tokens a second of one prefill worker with so many requests, which fall on its ranks at random.

    Ranks step together: a step in which one of eight has something to prefill takes nearly as long as a full one.
    """
    occupied = profile.ranks * (1.0 - (1.0 - 1.0 / profile.ranks) ** requests)
    pieces = requests / occupied
    chunk = min(max(round(new_tokens * pieces), 1), profile.chunk_tokens)
    share = max(round(chunk / pieces), 1)
    count = max(chunk // share, 1)
    before = prefix_tokens + max(new_tokens - share, 0.0) / 2  # a later chunk attends to those before it too
    work = RankWork(chunks=((share, round(before)),) * count)
    idle = RankWork()
    busy = max(round(occupied), 1)
    step_s = step_parts(profile, [work] * busy + [idle] * (profile.ranks - busy)).step_s
    return share * count * busy / step_s


def decode_step_s(profile: Profile, requests: int, context_tokens: float) -> float:
    """Seconds of a decode step of one worker with so many requests, spread evenly over its ranks."""
    per_rank = -(-requests // profile.ranks)
    work = RankWork(batch=per_rank, context_tokens=round(per_rank * context_tokens))
    occupied = min(requests, profile.ranks)
    idle = RankWork()
    return step_parts(profile, [work] * occupied + [idle] * (profile.ranks - occupied)).step_s


def cache_tokens(context: Context) -> float:
    """Tokens of prefixes that one worker can hold: KV and host tier."""
    return (context.kv_capacity or 0) + context.config.host_kv_tokens


def _cached_share(context: Context, frame: Frame, context_tokens: float) -> Array:
    """By prefill workers, what they can cache of all live contexts, in relation to the present number of workers."""
    count = np.arange(context.bounds.workers + 1, dtype=np.float64)
    if context.config.cache == "l3":
        return np.ones_like(count)
    room = count * cache_tokens(context) / max(frame.live_trajectories * context_tokens, 1.0)
    share = np.minimum(room, 1.0)
    return np.asarray(share / max(share[context.current.prefill], 1e-9))


def prefix_losses(context: Context) -> tuple[float, ...]:
    """Shares of the live trajectories whose prefix goes with a prefill worker, the cheapest worker first."""
    if context.config.cache == "l3" or context.frame is None:
        return ()
    live = max(context.frame.live_trajectories, 1)
    room = cache_tokens(context)
    losses = []
    for worker in context.workers:
        if worker.role != "prefill":
            continue
        tokens = context.homes.tokens(worker.worker_id)
        held = context.homes.cached_share * min(room / tokens, 1.0) if tokens else 0.0
        losses.append(context.homes.trajectories(worker.worker_id) * held / live)
    return tuple(sorted(losses))


def flush_in_s(context: Context) -> float | None:
    """Seconds until the prefix caches are dropped, where a weight update with a flush has been announced."""
    if context.flush_ns is None:
        return None
    return max((context.flush_ns - context.t_ns) / 1e9, 0.0)
