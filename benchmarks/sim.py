"""Speed of the simulator: times real time on one core, and what a copy of its state costs.

    python benchmarks/sim.py [--scenario coding-async] [--seed 0] [--json]

The first run after a change of the engine compiles it (about 20 s of CPU), which is reported apart and not counted.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.run import make_plan
from prorsa.simulate import make_simulation

DECIDE_S = 5.0
"""The simulation is advanced from decision to decision, as the batch runner does without a forecast."""
COPIED_TRAJECTORIES = 512
LARGE_WORKERS, LARGE_TRAJECTORIES = 64, 8_192


def make(scenario: Scenario, workload: Workload, *, emit: bool) -> Simulation:
    """The scenario's pool under static half and half."""
    half = scenario.workers // 2
    plan = make_plan(scenario, policy=f"static:{half}:{scenario.workers - half}", run_id="benchmark", scored=emit)
    return make_simulation(plan, workload, emit=emit)


def speed(scenario: Scenario, workload: Workload, *, emit: bool, until_s: float = float("inf")) -> dict[str, float]:
    """Run to the end, or for ``until_s`` simulated seconds; wall and CPU time and their ratios to simulated time."""
    sim = make(scenario, workload, emit=emit)
    events = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while not sim.done and sim.now_s < until_s:
        events += len(sim.advance(sim.now_s + DECIDE_S))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "simulated_s": sim.now_s,
        "wall_s": wall,
        "cpu_s": cpu,
        "real_time_factor": sim.now_s / cpu,
        "events": events,
    }


def copy_ms(sim: Simulation, repeats: int = 200) -> dict[str, float]:
    """Milliseconds of a copy: median and worst of ten means."""
    rounds = []
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(repeats // 10):
            sim.copy()
        rounds.append((time.perf_counter() - started) / (repeats // 10) * 1e3)
    return {"median_ms": statistics.median(rounds), "worst_ms": max(rounds)}


def compile_s(scenario: Scenario, workload: Workload) -> float:
    """CPU seconds until the engine's code is there: compiled, or taken from the cache."""
    started = time.process_time()
    make(scenario, workload, emit=False).advance(0.0)
    return time.process_time() - started


def measure(name: str, seed: int) -> dict[str, Any]:
    """All figures of the benchmark."""
    scenario = load_scenario(name)
    workload = scenario.make_workload(seed)
    ready_s = compile_s(scenario, workload)
    wide = scenario.with_overrides(concurrency=COPIED_TRAJECTORIES)
    copied = make(wide, wide.make_workload(seed), emit=False)
    copied.advance(60.0)
    large = scenario.with_overrides(workers=LARGE_WORKERS, concurrency=LARGE_TRAJECTORIES // 2)
    return {
        "scenario": name,
        "policy": "static:4:4",
        "seed": seed,
        "code_ready_cpu_s": ready_s,
        "without_events": speed(scenario, workload, emit=False),
        "with_events": speed(scenario, workload, emit=True),
        "copy_512_in_flight": copy_ms(copied),
        "large": {
            "workers": LARGE_WORKERS,
            "trajectories": LARGE_TRAJECTORIES,
            **speed(large, large.make_workload(seed), emit=False, until_s=300.0),
        },
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="coding-async")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.scenario, args.seed)
    if args.json:
        json.dump(figures, sys.stdout)
        print()
        return
    print(f"engine ready after         {figures['code_ready_cpu_s']:8.2f} s of CPU")
    for label, key in (("without events", "without_events"), ("with events", "with_events"), ("64 workers", "large")):
        row = figures[key]
        print(
            f"{label:<26} {row['real_time_factor']:8,.0f} x real time"
            f"  ({row['simulated_s']:,.0f} s in {row['cpu_s']:.2f} s of CPU, {row['wall_s']:.2f} s of wall)"
        )
    copied = figures["copy_512_in_flight"]
    print(f"copy, 512 in flight        {copied['median_ms']:8.3f} ms  (worst {copied['worst_ms']:.3f} ms)")


if __name__ == "__main__":
    main()
