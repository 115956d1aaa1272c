"""Physical limits of a run."""

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.workload import Workload


def alone_s(profile: Profile, workload: Workload) -> NDArray[np.float64]:
    """Seconds that each trajectory takes alone at full speed: float64[N].

    Sandbox, gaps and reward; for each turn the prefill of its new tokens with everything before them cached, and its
    output decoded at batch 1 (the first token comes out of prefill). No queues, no transfer.
    """
    prompt, output = workload.prompt_tokens.astype(np.float64), workload.output_tokens.astype(np.float64)
    new = np.maximum(workload.prompt_tokens - workload.reuse_tokens, 1).astype(np.float64)
    prefill, decode = profile.prefill, profile.decode
    chunks = np.ceil(new / profile.chunk_tokens)
    prefill_ms = prefill.a_ms * chunks + prefill.b_ms * new + prefill.c_ms * new * (new / 2 + prompt - new)
    steps = output - 1
    # Step k of the turn has a context of prompt + 1 + k tokens.
    context = steps * (prompt + 1) + steps * (steps - 1) / 2
    decode_ms = (decode.a_ms + decode.b_ms) * steps + decode.c_ms * context
    turns_s = (prefill_ms + decode_ms) / 1e3 + workload.gap_s
    per_trajectory: NDArray[np.float64] = np.add.reduceat(turns_s, workload.first_turn[:-1])
    return per_trajectory + workload.sandbox_s + workload.reward_s
