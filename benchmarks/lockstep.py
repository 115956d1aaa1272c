"""What can be checked of profiles with data-parallel attention, of which hardly any row was measured.

Their terms against those of the tensor-parallel form of the same model, which has rows; what their steps cost by how
many ranks prefill; and what one long prefill does to everybody's decode, beside public measurements of it.
"""

from typing import Any, Final

import numpy as np

from prorsa.cluster.profile import Profile, load_profile, table_ms
from prorsa.cluster.profiling.bench import Deployment, Load, simulate_load, single_turns
from prorsa.cluster.profiling.catalogue import CARRIED
from prorsa.cluster.profiling.making import make_profile
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.step import RankWork, step_parts
from prorsa.events import LlmPrefillEnd, LlmPrefillStart

PAIRS: Final = (("dsv3-h200-tp8", "dsv3-h200-dp8"), ("qwen3-235b-h200-tp4", "qwen3-235b-h200-dp4"))
"""Tensor-parallel and data-parallel form of one model on as many GPUs, with tensor-parallel experts in both."""

DP_PROFILES: Final = (
    "dsv3-h200-dp8",
    "dsv3-h200-dp8ep8",
    "dsv32-h200-dp8",
    "dsv32-h200-dp8ep8",
    "qwen3-235b-h200-dp4",
    "qwen3-235b-h200-dp8ep8",
)
DECODING: Final = RankWork(batch=8, context_tokens=8 * 8192)
"""What a rank does that does not prefill: 8 requests at 8,192 tokens."""
LONG_PROMPT: Final = 65_536
ARRIVAL_S: Final = 60.0


def shared_terms() -> list[dict[str, Any]]:
    """Terms of each pair: experts by tokens, attention of a rank, and the ratio that the hardware leads one to expect.

    The experts are the same GPUs with the same weights in both forms. In prefill a data-parallel rank has all heads,
    a tensor-parallel GPU its share. In decode it is the same for grouped-query attention (a GPU reads the KV of its
    heads), but with MLA every GPU reads the whole latent KV in either form.
    """
    rows = []
    for tp_name, dp_name in PAIRS:
        tp, dp = _as_made(tp_name), _as_made(dp_name)
        terms = [(f"experts, prefill of {n:,} tokens", *_tables(tp, dp, "prefill", n), 1) for n in (1024, 4096, 8192)]
        terms += [(f"experts, decode of {n} tokens", *_tables(tp, dp, "decode", n), 1) for n in (16, 64, 256)]
        terms.append(("prefill attention, a million pairs", tp.prefill.c_ms * 1e6, dp.prefill.c_ms * 1e6, dp.ranks))
        decode_ratio = 1 if "DeepSeek" in tp.model else dp.ranks
        terms.append(
            ("decode attention, 100,000 tokens of KV", tp.decode.c_ms * 1e5, dp.decode.c_ms * 1e5, decode_ratio)
        )
        rows += [
            {"tp": tp_name, "dp": dp_name, "term": term, "tp_ms": a, "dp_ms": b, "ratio": b / a, "expected": expected}
            for term, a, b, expected in terms
        ]
    return rows


def _as_made(name: str) -> Profile:
    """The profile as AIConfigurator has it, before corrections."""
    return make_profile(next(request for request in CARRIED if request.name == name))


def _tables(tp: Profile, dp: Profile, stage: str, tokens: int) -> tuple[float, float]:
    return table_ms(getattr(tp.experts, stage), tokens), table_ms(getattr(dp.experts, stage), tokens)


def step_table() -> list[dict[str, Any]]:
    """Steps of each DP profile by how many ranks prefill a chunk: their parts, and what of them is waiting."""
    rows = []
    for name in DP_PROFILES:
        profile = load_profile(name)
        chunk = RankWork(chunks=((profile.chunk_tokens, 8192),))
        alone_s = step_parts(profile, [DECODING] * profile.ranks).step_s
        for count in sorted({0, 1, profile.ranks // 2, profile.ranks}):
            parts = step_parts(profile, [chunk] * count + [DECODING] * (profile.ranks - count))
            rows.append(
                {
                    "profile": name,
                    "prefill_share": count / profile.ranks,
                    "attention_ms": max(parts.attention_s) * 1e3,
                    "experts_ms": parts.experts_s * 1e3,
                    "step_ms": parts.step_s * 1e3,
                    "waiting_ratio": parts.waiting_ratio,
                    "times_decode": parts.step_s / alone_s,
                }
            )
    return rows


def interference() -> dict[str, Any]:
    """One 64k prompt among 8 decoding requests, and a steady mix, on DeepSeek-V3 DP8, with and without an interval.

    ``before`` and ``during`` are output tokens a second of the 8 requests; ``tpot_ms`` the mean time per output token
    of 128 requests in flight of 8,192 in and 1,024 out.
    """
    profile = load_profile("dsv3-h200-dp8")
    return {f"interval {interval}": _interference(profile, interval) for interval in (0, 1)}


def _interference(profile: Profile, interval: int) -> dict[str, float]:
    before, during = _long_prefill(profile, interval)
    steady = simulate_load(Deployment(profile), Load(8192, 1024, 128, 0.8), rounds=4, prefill_interval=interval)
    return {"before": before, "during": during, "ttft_ms": steady.ttft_ms, "tpot_ms": steady.tpot_ms}


def _long_prefill(profile: Profile, interval: int) -> tuple[float, float]:
    """Output tokens a second in the 30 s before the prompt comes, and while it is prefilled."""
    sim, marks = _with_long_prompt(profile, interval), {}
    while len(marks) < 2:
        for t_s, event in sim.advance(sim.now_s + 1.0):
            if isinstance(event, LlmPrefillStart | LlmPrefillEnd) and t_s >= ARRIVAL_S:
                marks[type(event)] = t_s
    return (
        _output_rate(profile, interval, ARRIVAL_S - 30, ARRIVAL_S),
        _output_rate(profile, interval, marks[LlmPrefillStart], marks[LlmPrefillEnd]),
    )


def _output_rate(profile: Profile, interval: int, from_s: float, to_s: float) -> float:
    sim = _with_long_prompt(profile, interval)
    sim.advance(from_s)
    before = sim.report()["output_tokens"]
    sim.advance(to_s)
    return float(sim.report()["output_tokens"] - before) / (to_s - from_s)


def _with_long_prompt(profile: Profile, interval: int) -> Simulation:
    """A colocated worker with 8 requests that go on decoding, and a long prompt that arrives at ``ARRIVAL_S``."""
    prompts, outputs, delays_s = np.full(9, 1024), np.full(9, 60_000), np.zeros(9)
    prompts[8], outputs[8], delays_s[8] = LONG_PROMPT, 1, ARRIVAL_S
    config = SimConfig(concurrency=9, prefill_interval=interval)
    return Simulation(config, profile, single_turns(prompts, outputs, delays_s), ["mixed"])
