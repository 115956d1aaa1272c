"""Step times of a worker by its profile: attention of a rank, experts of all; as in `prorsa.cluster.step`."""

from typing import Final

from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.state import State

PREFILL_STEP: Final = 0
DECODE_STEP: Final = 1


@kernel
def decode_attention_s(s: State, rank: int) -> float:
    """Seconds of attention in a decode step of the rank's running batch at its context now."""
    r = s.ranks[rank]
    profile = s.profiles[r.profile]
    seconds = profile.decode_a_s + profile.decode_b_s * r.running + profile.decode_c_s * r.context
    return seconds * s.workers[r.worker].slow


@kernel
def decode_slope_s(s: State, rank: int) -> float:
    """Seconds by which the attention of each next decode step is longer: every request's context grows by a token."""
    r = s.ranks[rank]
    return s.profiles[r.profile].decode_c_s * r.running * s.workers[r.worker].slow


@kernel
def chunk_attention_s(s: State, rank: int, new: int, prefix: int) -> float:
    """Seconds of attention for a chunk of ``new`` tokens after ``prefix``, without the step's constant."""
    profile = s.profiles[s.ranks[rank].profile]
    growing = min(max(profile.window_tokens - prefix, 0), new)
    windowed = growing * (prefix + 0.5 * (growing + 1)) + (new - growing) * profile.window_tokens
    pairs = new * (0.5 * new + prefix)
    return profile.prefill_b_s * new + profile.prefill_c_s * pairs + profile.prefill_d_s * windowed


@kernel
def experts_s(s: State, w: int, kind: int, tokens: int) -> float:
    """Seconds of the experts for the tokens of all ranks of the worker; ``kind`` as above."""
    return _table_s(s, w, kind, tokens) * s.workers[w].slow


@kernel
def _table_s(s: State, w: int, kind: int, tokens: int) -> float:
    profile = s.workers[w].profile
    table = s.experts[profile, kind]
    last = s.profiles[profile].points[kind] - 1
    if last < 0:
        return 0.0
    if last == 0 or tokens <= table[0].tokens:
        return table[0].seconds
    k = 1
    while k < last and tokens > table[k].tokens:
        k += 1
    low, high = table[k - 1], table[k]
    return low.seconds + (tokens - low.tokens) * (high.seconds - low.seconds) / (high.tokens - low.tokens)
