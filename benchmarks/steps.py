"""Where the time of a colocated worker's steps goes, by how many of its attention ranks prefill.

    python benchmarks/steps.py [--markdown] [--json] [--plot FILE.png] [--profile NAME ...]

Two tables for each profile with data-parallel attention. The first is the profile's arithmetic: ranks that prefill one
chunk each, the others decoding as many requests of 32,768 tokens as fit a rank (32 at most). The second is the
simulator's: a colocated worker that decodes while short prompts arrive at a share of the rate at which it could prefill
if it did nothing else; with SGLang's default and with ``--prefill-decode-interval``. Nothing here is measured.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile, load_profile, profile_names
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.step import RankWork, step_parts
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import LlmFirstToken, LlmPrefillEnd, LlmPrefillStart

CHUNKS: Final = (1_024, 2_048, 4_096, 8_192)
SHARES: Final = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)
CONTEXT: Final = 32_768
MOST_DECODING: Final = 32
LOADS: Final = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
INTERVALS: Final = (0, 1, 8)
SIM_BATCH, SIM_PROMPT, SIM_OUTPUT = 12, 16_384, 8_000
WINDOW_S: Final = 40.0

INTRODUCTION: Final = """\
# What prefill does to decode on a colocated worker

Written by `python benchmarks/steps.py --plot docs/pictures/interference.png > docs/interference.md`. Nothing here is
measured: it is what the shipped profiles and the simulator say, and all profiles with data-parallel attention are
unvalidated.

With data-parallel attention, the ranks of a worker step together (how, is in [simulator.md](simulator.md)): a step
takes the attention of its slowest rank, and the experts on the tokens of all ranks. A rank that prefills does not
decode in that step; the others decode one token, however long it takes.

**First table** of each profile: the step when some ranks prefill one chunk each, without a prefix, and the others
decode; as *step (attention of the slowest rank + experts), share of the rank time that ranks wait for the slowest*.
SGLang divides `--chunked-prefill-size` by the ranks: 8,192 gives 1,024 a rank, so larger chunks need larger settings.

**Second table**: a simulated worker that decodes 12 requests of 16k tokens on each rank while prompts of 1,024 tokens
arrive, at a share (*prefill load*) of the rate at which it could prefill them if it did nothing else. *Prefill share*
is the share of rank time in which a rank prefills. *Interval* is SGLang's `--prefill-decode-interval`: so many decode
steps, at least, between two prefill steps.

Idle time under prefill first has its maximum at a middling load: some rank prefills in nearly every step, and the
others wait. At full load all ranks prefill all the time, nothing waits, and nothing is decoded. An interval trades
prefill for decode; it bounds the idle time too, since prompts gather meanwhile and more ranks prefill in the same
step.

Public measurements of the same effect, on other hardware and with other loads: DeepSeek-R1, DP8 on GB200, time
between tokens 274.9 ms at the median with prefill first and 32.1 ms with prefill kept to every second step; 272
tokens/s of decode fall to 6.6 during one prefill of 64k tokens. The paper that Prorsa follows reports 3.76 to 59.98 %
of GPU time idle under colocation.

![Idle ratio and time per token by prefill load](pictures/interference.png)
"""


def decoding_batch(profile: Profile) -> int:
    """Requests of 32,768 tokens that a rank decodes: 32, or what its KV holds."""
    return min(MOST_DECODING, profile.kv_tokens // CONTEXT)


def breakdown(profile: Profile) -> dict[str, Any]:
    """The parts of a step by chunk and by ranks that prefill; nobody prefills in the row ``decode``."""
    batch = decoding_batch(profile)
    decode = RankWork(batch=batch, context_tokens=batch * CONTEXT)
    rows = []
    for chunk in CHUNKS:
        for share in SHARES:
            count = round(share * profile.ranks)
            if count and count == share * profile.ranks:
                work = [RankWork(chunks=((chunk, 0),))] * count + [decode] * (profile.ranks - count)
                rows.append({"chunk_tokens": chunk, "ranks_prefilling": count, **_parts(profile, work)})
    return {"batch": batch, "decode": _parts(profile, [decode] * profile.ranks), "prefill": rows}


def _parts(profile: Profile, work: list[RankWork]) -> dict[str, float]:
    parts = step_parts(profile, work)
    return {
        "step_ms": parts.step_s * 1e3,
        "attention_ms": max(parts.attention_s) * 1e3,
        "experts_ms": parts.experts_s * 1e3,
        "waiting_ratio": parts.waiting_ratio,
    }


def simulate(profile: Profile, load: float, interval: int) -> dict[str, Any]:
    """A colocated worker in steady decode, for a window in which prompts of one chunk arrive evenly.

    Args:
        load: arrivals, as a share of the rate at which all ranks would prefill them and nothing else.
        interval: decode steps between two prefill steps.
    """
    chunk, ranks = profile.chunk_tokens, profile.ranks
    full = step_parts(profile, [RankWork(chunks=((chunk, 0),))] * ranks)
    rate = load * ranks / full.step_s
    config = SimConfig(concurrency=100_000, prefill_interval=interval)
    quiet = Simulation(config, profile, _workload(profile, np.zeros(0), chunk), ["mixed"])
    start_s = _all_decoding_s(quiet, SIM_BATCH * ranks)
    arrivals = start_s + np.arange(int(rate * WINDOW_S)) / rate if rate > 0 else np.zeros(0)
    sim = Simulation(config, profile, _workload(profile, arrivals, chunk), ["mixed"])
    sim.advance(start_s)
    before, events = _gpu_seconds(sim), sim.advance(start_s + WINDOW_S)
    busy = (_gpu_seconds(sim) - before) / (WINDOW_S * profile.gpus)
    prefilling_s = sum(t for t, event in events if isinstance(event, LlmPrefillEnd)) - sum(
        t for t, event in events if isinstance(event, LlmPrefillStart)
    )
    open_prompts = sum(isinstance(e, LlmPrefillStart) - isinstance(e, LlmPrefillEnd) for _, e in events)
    prefilling_s += open_prompts * (start_s + WINDOW_S)
    decoded = busy[3] * profile.gpus
    return {
        "load": load,
        "interval": interval,
        "prefill_share": prefilling_s / (WINDOW_S * ranks),
        "gpu_idle_ratio": max(0.0, float(1 - busy[0] - busy[1])),
        "waiting_ratio": float(busy[2]),
        "time_per_output_token_ms": SIM_BATCH * ranks / decoded * 1e3 if decoded > 0 else None,
        "prefilled_ratio": sum(isinstance(e, LlmPrefillEnd) for _, e in events) / len(arrivals) if rate else None,
    }


def _all_decoding_s(sim: Simulation, requests: int) -> float:
    seen = 0
    while seen < requests:
        seen += sum(isinstance(event, LlmFirstToken) for _, event in sim.advance(sim.now_s + 1.0))
    return sim.now_s


def _gpu_seconds(sim: Simulation) -> NDArray[np.float64]:
    """GPU-seconds of attention, experts and waiting so far, and output tokens of the long requests."""
    report = sim.report()
    total = sim.now_s * report["gpus"]
    # The short prompts' one output token each comes out of their prefill.
    decoded = report["output_tokens"] - report["turns"]
    return np.array([*(share * total for share in report["gpu_time"].values()), decoded])


def _workload(profile: Profile, arrivals_s: NDArray[np.float64], chunk: int) -> Workload:
    """Requests that decode for the whole run, then prompts of one chunk that are answered by one token."""
    long, short = SIM_BATCH * profile.ranks, len(arrivals_s)
    count = long + short
    zeros = np.zeros(count, np.int64)
    return Workload(
        first_turn=np.arange(count + 1),
        group=zeros - 1,
        step=zeros,
        sandbox_s=np.concatenate([np.zeros(long), arrivals_s]),
        reward_s=np.zeros(count),
        truncated=zeros.astype(np.bool_),
        prompt_tokens=np.repeat([SIM_PROMPT, chunk], [long, short]),
        reuse_tokens=zeros,
        output_tokens=np.repeat([SIM_OUTPUT, 1], [long, short]),
        gap_s=np.zeros(count),
        tool=zeros - 1,
        tools=(),
        workload="steady decode and short prompts",
    )


def measure(names: list[str]) -> list[dict[str, Any]]:
    """Both tables of each profile."""
    figures = []
    for name in names:
        profile = load_profile(name)
        runs = [simulate(profile, load, interval) for interval in INTERVALS for load in LOADS]
        figures.append(
            {"profile": name, "validated": profile.validated, "steps": breakdown(profile), "simulated": runs}
        )
    return figures


def markdown(figures: list[dict[str, Any]]) -> str:
    """All of ``docs/interference.md``."""
    return "\n".join([INTRODUCTION, *(line for row in figures for line in _section(row))]).rstrip()


def _section(row: dict[str, Any]) -> list[str]:
    profile, steps = load_profile(row["profile"]), row["steps"]
    counts = sorted({step["ranks_prefilling"] for step in steps["prefill"]})
    label = "" if row["validated"] else ", unvalidated"
    decode = steps["decode"]
    title = f"**{row['profile']}**{label}: {steps['batch']} requests of 32k tokens decode on each other rank."
    lines = [
        f"{title} A step in which all decode takes {_cell(decode)}.",
        "",
        f"| chunk | {' | '.join(f'{count} of {profile.ranks} ranks prefill' for count in counts)} |",
        f"|---|{'---|' * len(counts)}",
    ]
    for chunk in CHUNKS:
        cells = [_cell(step) for step in steps["prefill"] if step["chunk_tokens"] == chunk]
        lines.append(f"| {chunk:,} | {' | '.join(cells)} |")
    return [*lines, "", *_simulated(row["simulated"]), ""]


def _cell(step: dict[str, float]) -> str:
    parts = f"{step['attention_ms']:.0f} + {step['experts_ms']:.0f}"
    return f"{step['step_ms']:.0f} ms ({parts}), {step['waiting_ratio']:.0%} waiting"


def _simulated(runs: list[dict[str, Any]]) -> list[str]:
    heads = [f"interval {interval}: prefill share, GPU idle, time per token" for interval in INTERVALS]
    lines = [f"| prefill load | {' | '.join(heads)} |", f"|---|{'---|' * len(INTERVALS)}"]
    for load in LOADS:
        of_load = {run["interval"]: run for run in runs if run["load"] == load}
        lines.append(f"| {load:.0%} | {' | '.join(_run_cell(of_load[interval]) for interval in INTERVALS)} |")
    return lines


def _run_cell(run: dict[str, Any]) -> str:
    tpot = run["time_per_output_token_ms"]
    token = "none decoded" if tpot is None else f"{tpot:,.0f} ms"
    behind = run["prefilled_ratio"] is not None and run["prefilled_ratio"] < 0.95
    kept = f", {run['prefilled_ratio']:.0%} of the prompts kept up with" if behind else ""
    return f"{run['prefill_share']:.0%}, {run['gpu_idle_ratio']:.0%}, {token}{kept}"


def plot(figures: list[dict[str, Any]], path: Path) -> None:
    """Idle ratio and time per output token against prefill load, a line for each interval."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(figures), figsize=(3.1 * len(figures), 5.6), sharex=True, squeeze=False)
    for column, row in enumerate(figures):
        for interval, style in zip(INTERVALS, ("o-", "s--", "^:"), strict=True):
            runs = [run for run in row["simulated"] if run["interval"] == interval]
            loads = [run["load"] for run in runs]
            axes[0][column].plot(loads, [run["gpu_idle_ratio"] for run in runs], style, label=f"interval {interval}")
            tokens = [run["time_per_output_token_ms"] or np.nan for run in runs]
            axes[1][column].plot(loads, tokens, style)
        axes[0][column].set_title(row["profile"], fontsize=9)
        axes[0][column].set_ylim(0, 1)
        axes[1][column].set_yscale("log")
        axes[1][column].set_xlabel("prefill load")
    axes[0][0].set_ylabel("GPU idle ratio")
    axes[1][0].set_ylabel("time per output token, ms")
    axes[0][0].legend(fontsize=8)
    figure.suptitle("A colocated worker with data-parallel attention: what prefill does to decode (simulated)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="append", help="default: all with data-parallel attention")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--markdown", action="store_true", help="this is the default, too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = args.profile or [name for name in profile_names() if load_profile(name).ranks > 1]
    figures = measure(names)
    if args.plot:
        plot(figures, args.plot)
    if args.json:
        json.dump(figures, sys.stdout)
        print()
        return
    print(markdown(figures))


if __name__ == "__main__":
    main()
