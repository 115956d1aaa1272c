"""Speed of the simulator: times real time on one core, and what a copy of its state costs.

    python benchmarks/sim.py [--scenario v32-coding-async] [--seed 0] [--json] [--scale [--plot FILE.png]]

``--scale`` runs pools of 8 to 64 workers with 512 to 8,192 trajectories in flight instead. The first run after a change
of the engine compiles it (about 40 s of CPU), which is reported apart and not counted.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.forecast.warm import warm_up
from prorsa.run import make_plan
from prorsa.simulate import make_simulation, simulate

DECIDE_S = 5.0
"""The simulation is advanced from decision to decision, as the batch runner does without a forecast."""
COPIED_TRAJECTORIES = 512
LARGE_WORKERS, LARGE_TRAJECTORIES = 64, 8_192
SCALE_WORKERS = (8, 16, 32, 64)
SCALE_TRAJECTORIES = (512, 1_024, 2_048, 4_096, 8_192)
WARM_S, SCALE_S = 60.0, 120.0


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


def decided(scenario: Scenario, workload: Workload, seed: int) -> dict[str, float]:
    """A whole run that ``analytic`` decides, forecasting each second and scoring every forecast; in CPU time."""
    warm_up()
    plan = make_plan(scenario, policy="analytic", run_id="benchmark", seed=seed)
    wall, cpu = time.perf_counter(), time.process_time()
    makespan_s = float(str(simulate(plan, workload=workload)["makespan_s"]))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"simulated_s": makespan_s, "wall_s": wall, "cpu_s": cpu, "real_time_factor": makespan_s / cpu}


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
        "analytic": decided(scenario, workload, seed),
        "copy_512_in_flight": copy_ms(copied),
        "large": {
            "workers": LARGE_WORKERS,
            "trajectories": LARGE_TRAJECTORIES,
            **speed(large, large.make_workload(seed), emit=False, until_s=300.0),
        },
    }


def scale(name: str, seed: int) -> list[dict[str, float]]:
    """Cost of a simulated second under static half and half, once the start is over, for each size of pool."""
    scenario = load_scenario(name)
    rows = []
    for trajectories in SCALE_TRAJECTORIES:
        workload = scenario.with_overrides(concurrency=trajectories).make_workload(seed)
        for workers in SCALE_WORKERS:
            sized = scenario.with_overrides(workers=workers, concurrency=trajectories)
            sim = make(sized, workload, emit=False)
            sim.advance(WARM_S)
            turns, cpu = sim.report()["turns"], time.process_time()
            while not sim.done and sim.now_s < WARM_S + SCALE_S:
                sim.advance(sim.now_s + DECIDE_S)
            cpu, simulated_s = time.process_time() - cpu, sim.now_s - WARM_S
            turns = sim.report()["turns"] - turns
            rows.append(
                {
                    "workers": workers,
                    "trajectories": trajectories,
                    "real_time_factor": simulated_s / cpu,
                    "cpu_us_per_turn": cpu / max(turns, 1) * 1e6,
                    "turns_per_simulated_s": turns / simulated_s,
                }
            )
    return rows


def print_scale(rows: list[dict[str, float]]) -> None:
    """Two tables by workers and trajectories: times real time, and microseconds of CPU a turn."""
    for key, title in (("real_time_factor", "times real time"), ("cpu_us_per_turn", "microseconds of CPU a turn")):
        print(f"| {title}: in flight | {' | '.join(f'{workers} workers' for workers in SCALE_WORKERS)} |")
        print(f"|---|{'---|' * len(SCALE_WORKERS)}")
        for trajectories in SCALE_TRAJECTORIES:
            cells = [f"{row[key]:,.0f}" for row in rows if row["trajectories"] == trajectories]
            print(f"| {trajectories:,} | {' | '.join(cells)} |")
        print()


def plot_scale(rows: list[dict[str, float]], path: Path) -> None:
    """CPU seconds of a simulated second against trajectories, a line for each number of workers."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.4))
    for workers, style in zip(SCALE_WORKERS, ("o-", "s-", "^-", "D-"), strict=True):
        line = [row for row in rows if row["workers"] == workers]
        costs = [1 / row["real_time_factor"] for row in line]
        axes.plot([row["trajectories"] for row in line], costs, style, label=f"{workers} workers")
    first = min(1 / row["real_time_factor"] for row in rows)
    axes.plot(SCALE_TRAJECTORIES, [first * n / SCALE_TRAJECTORIES[0] for n in SCALE_TRAJECTORIES], "k:", label="linear")
    axes.axhline(1 / 500, color="grey", linewidth=0.8)
    axes.text(SCALE_TRAJECTORIES[0], 1 / 480, "500 times real time", fontsize=8, color="grey")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SCALE_TRAJECTORIES, [f"{n:,}" for n in SCALE_TRAJECTORIES])
    axes.set_xlabel("trajectories in flight")
    axes.set_ylabel("CPU seconds of a simulated second")
    axes.set_title("Cost of the simulator, one core; 8 attention ranks a worker", fontsize=10)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="v32-coding-async")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--plot", type=Path, help="with --scale: a picture of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.scale:
        rows = scale(args.scenario, args.seed)
        if args.plot:
            plot_scale(rows, args.plot)
        print(json.dumps(rows)) if args.json else print_scale(rows)
        return
    figures = measure(args.scenario, args.seed)
    if args.json:
        json.dump(figures, sys.stdout)
        print()
        return
    print(f"engine ready after         {figures['code_ready_cpu_s']:8.2f} s of CPU")
    shown = {
        "without events": "without_events",
        "with events": "with_events",
        "analytic, scored": "analytic",
        "64 workers": "large",
    }
    for label, key in shown.items():
        row = figures[key]
        print(
            f"{label:<26} {row['real_time_factor']:8,.0f} x real time"
            f"  ({row['simulated_s']:,.0f} s in {row['cpu_s']:.2f} s of CPU, {row['wall_s']:.2f} s of wall)"
        )
    copied = figures["copy_512_in_flight"]
    print(f"copy, 512 in flight        {copied['median_ms']:8.3f} ms  (worst {copied['worst_ms']:.3f} ms)")


if __name__ == "__main__":
    main()
