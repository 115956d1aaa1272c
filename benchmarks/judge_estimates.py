"""Whether what ``prorsa estimate`` promises of a recorded run is what the run then gains.

    python -m benchmarks.judge_estimates [--seeds 400:402] [--rows FILE]

A small pool is recorded in mode observe, in the roles that it has. From the recording comes the estimate, with its
95 % interval; from the workload itself, which an operator does not have, the gain that `lookahead` then makes over the
roles as recorded. A cell holds if that gain lies within the interval. Rows are kept as JSON lines, by default in
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
from prorsa.estimate import Side, estimate
from prorsa.events import Stamped
from prorsa.figures import main_figure
from prorsa.recordings import read_recording
from prorsa.run import RunPlan, make_plan
from prorsa.simulate import simulate

POLICY: Final = "lookahead"
PRESENT: Final = ("static:1:3", "static:2:2", "static:3:1", "colocated")
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


def cell(scenario: Scenario, present: str, seed: int) -> dict[str, Any]:
    """Record, estimate, and see what comes."""
    recorded = record(scenario, present, seed)
    recording = read_recording(recorded, f"{scenario.name} {present} {seed}")
    found = estimate(
        recording.workload, Side(_as_recorded(scenario), present), Side(_as_recorded(scenario), POLICY), seed=seed
    )
    runs = [simulate(_plan(scenario, policy, seed)) for policy in (present, POLICY)]
    figure = main_figure(runs)
    before, after = (figure.of(run) for run in runs)
    assert before is not None
    assert after is not None
    return {
        "scenario": scenario.name,
        "present": present,
        "seed": seed,
        "gain": found.gain,
        "low": found.low,
        "high": found.high,
        "verdict": found.verdict,
        "actual": figure.gain(after, before),
        "figure": figure.key,
    }


def record(scenario: Scenario, present: str, seed: int) -> list[Stamped]:
    """The journal of the pool as it runs, under a controller that decides and does not act."""
    policy = present if present == "colocated" else POLICY
    prefill = None if present == "colocated" else int(present.split(":")[1])
    plan = make_plan(
        msgspec.structs.replace(scenario, prefill_workers=prefill),
        policy=policy, run_id="record", seed=seed, scored=False, mode="observe",
    )  # fmt: skip
    kept: list[Stamped] = []
    simulate(plan, recorder=kept.extend)
    return kept


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
    parser.add_argument("--seeds", default="400:402")
    parser.add_argument("--rows", type=Path, default=Path("build/estimates.jsonl"))
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {(row["scenario"], row["present"], row["seed"]) for row in map(json.loads, lines)}
    for seed, scenario, present in itertools.product(seeds_of(None, args.seeds), scenarios(), PRESENT):
        if (scenario.name, present, seed) in done:
            continue
        row = cell(scenario, present, seed)
        with args.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
