"""Physical limits of a run."""

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Point, Profile
from prorsa.cluster.workloads.workload import Workload

Seconds = NDArray[np.float64]


def alone_s(profile: Profile, workload: Workload, decode_profile: Profile | None = None) -> Seconds:
    """Seconds that each trajectory takes alone at full speed: float64[N].

    Sandbox, gaps and reward; for each turn the time outside the engine, the prefill of its new tokens with everything
    before them cached, and its output decoded at batch 1 (the first token comes out of prefill). No queues and no
    transfer.

    Args:
        decode_profile: of the decode workers, where it is not ``profile``.
    """
    turns_s = _prefill_s(profile, workload) + _decode_s(decode_profile or profile, workload)
    turns_s += workload.gap_s + profile.request_ms / 1e3
    per_trajectory: Seconds = np.add.reduceat(turns_s, workload.first_turn[:-1])
    return per_trajectory + workload.sandbox_s + workload.reward_s


def _prefill_s(profile: Profile, workload: Workload) -> Seconds:
    """Of each turn: float64[T]."""
    fit, chunk = profile.prefill, profile.chunk_tokens
    new = np.maximum(workload.prompt_tokens - workload.reuse_tokens, 1).astype(np.float64)
    prefix = workload.prompt_tokens - new
    whole, rest = np.divmod(new, chunk)
    experts_ms = whole * _table_ms(profile.experts.prefill, np.array([float(chunk)]))
    experts_ms += np.where(rest > 0, _table_ms(profile.experts.prefill, rest), 0.0)
    growing = np.clip(fit.window_tokens - prefix, 0, new)
    windowed = growing * (prefix + (growing + 1) / 2) + (new - growing) * fit.window_tokens
    ms = fit.a_ms * np.ceil(new / chunk) + fit.b_ms * new + fit.c_ms * new * (new / 2 + prefix) + fit.d_ms * windowed
    return (ms + experts_ms) / 1e3


def _decode_s(profile: Profile, workload: Workload) -> Seconds:
    """Of each turn: float64[T]. Step k has a context of prompt + 1 + k tokens."""
    fit, steps = profile.decode, workload.output_tokens.astype(np.float64) - 1
    context = steps * (workload.prompt_tokens + 1) + steps * (steps - 1) / 2
    step_ms = fit.a_ms + fit.b_ms + _table_ms(profile.experts.decode, np.ones(1))
    return (step_ms * steps + fit.c_ms * context) / 1e3


def _table_ms(points: tuple[Point, ...], tokens: Seconds) -> Seconds:
    """`prorsa.cluster.profile.table_ms` for many at once."""
    if not points:
        return np.zeros(len(tokens))
    at, ms = np.array(points, np.float64).T
    inside: Seconds = np.interp(tokens, at, ms)
    if len(points) == 1:
        return inside
    slope = (ms[-1] - ms[-2]) / (at[-1] - at[-2])
    return inside + slope * np.maximum(tokens - at[-1], 0.0)
