"""Whether what ``prorsa estimate`` promises of a recorded run is what a run then gains.

    python -m benchmarks.judge_estimates [--seeds 402:405] [--rows FILE]

A small pool is recorded as it runs. From the recording comes the estimate, with its 95 % interval, of the gain of
`lookahead` over each of four ways to run the pool. From the workload itself, which an operator does not have, comes the
gain on that very workload, and on another of the same kind: one more run, which is what the interval is for. A cell
holds if the gain of the other run lies within the interval. Rows are kept as JSON lines, by default in
``build/estimates.jsonl``, and not made again; ``benchmarks.judge_page`` makes the table of them.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from prorsa.cli.options import seeds_of
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.estimate import DRAWS, Side, drawn, estimated, run_side
from prorsa.events import Stamped
from prorsa.figures import Run, main_figure
from prorsa.recordings import read_recording
from prorsa.run import RunPlan, make_plan
from prorsa.simulate import simulate

POLICY: Final = "lookahead"
PRESENT: Final = ("static:1:3", "static:2:2", "static:3:1", "colocated")
RECORDED: Final = "static:2:2"
"""How the pool ran that was recorded. What its trajectories did is the same whatever the roles (tested)."""
OTHER: Final = 500
"""Added to a seed for another workload of the same kind."""
WORKERS: Final = 4


def scenarios() -> list[Scenario]:
    """Small pools: two of data-parallel ranks, one of data-parallel attention, one of plain tensor parallelism."""
    return [
        _small("v32-coding", "v32-coding-async", concurrency=128, trajectories=384, max_turns=8),
        _small("v32-general", "v32-general-async", concurrency=192, trajectories=768),
        _small("235b-coding", "coding-async", concurrency=96, trajectories=288, profile="qwen3-235b-h200-dp4"),
        _small("qwen-coding", "coding-async", concurrency=32, trajectories=128),
    ]


def _small(name: str, base: str, **changes: Any) -> Scenario:  # noqa: ANN401 - fields of a scenario
    changes = {"max_turns": 8, "workers": WORKERS, "group_size": None, **changes}
    return msgspec.structs.replace(load_scenario(base), name=name, description="", **changes)


def rows_of(scenario: Scenario, seed: int) -> list[dict[str, Any]]:
    """Record, estimate against each way to run the pool, and see what comes."""
    recording = read_recording(record(scenario, seed), f"{scenario.name} {seed}")
    workloads, pool = drawn(recording.workload, DRAWS, seed), _as_recorded(scenario)
    prorsa = [run_side(Side(pool, POLICY), workload, seed) for workload in workloads]
    after = [simulate(_plan(scenario, POLICY, of)) for of in (seed, seed + OTHER)]
    found = []
    for present in PRESENT:
        now = [run_side(Side(pool, present), workload, seed) for workload in workloads]
        promised = estimated(list(zip(now, prorsa, strict=True)))
        before = [simulate(_plan(scenario, present, of)) for of in (seed, seed + OTHER)]
        very, other = (_gain(*pair) for pair in zip(before, after, strict=True))
        found.append(
            {
                "scenario": scenario.name,
                "present": present,
                "seed": seed,
                "gain": promised.gain,
                "low": promised.low,
                "high": promised.high,
                "verdict": promised.verdict,
                "very": very,
                "other": other,
            }
        )
    return found


def record(scenario: Scenario, seed: int) -> list[Stamped]:
    """The journal of the pool as it runs."""
    kept: list[Stamped] = []
    simulate(_plan(scenario, RECORDED, seed), recorder=kept.extend)
    return kept


def _gain(before: Run, after: Run) -> float:
    figure = main_figure([before, after])
    old, new = figure.of(before), figure.of(after)
    assert old is not None
    assert new is not None
    return figure.gain(new, old)


def _as_recorded(scenario: Scenario) -> Scenario:
    """What a recording tells of a scenario: its pool and its trajectories in flight."""
    return Scenario(
        name=scenario.name, profile=scenario.profile, workers=scenario.workers, concurrency=scenario.concurrency,
        mode="async", workload="coding", host_kv_tokens=scenario.host_kv_tokens,
    )  # fmt: skip


def _plan(scenario: Scenario, policy: str, seed: int) -> RunPlan:
    return make_plan(scenario, policy=policy, run_id="estimate", seed=seed, scored=False)


def main() -> None:
    """Make the cells that are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="402:405")
    parser.add_argument("--rows", type=Path, default=Path("build/estimates.jsonl"))
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {(row["scenario"], row["seed"]) for row in map(json.loads, lines)}
    for seed, scenario in itertools.product(seeds_of(None, args.seeds), scenarios()):
        if (scenario.name, seed) in done:
            continue
        for row in rows_of(scenario, seed):
            with args.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
