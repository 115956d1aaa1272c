"""Speed of the training environment, in decisions a second of CPU on one core, and what its slower ticks cost.

    python -m benchmarks.env [--seed 0] [--decisions 200] [--json] [--cadence]

A decision is the simulation of 5 s, all events of it through predictor and controller, a forecast, the mask, the
observation and the flips that follow. Actions are drawn at random from the allowed ones, in the midst of a run. The
best of three counts. Compiling comes first and is not counted.

``--cadence`` compares the forecasts of a predictor that is asked at decisions alone, every 5 s, as in training, with
one that is ticked each second, as live, on the same run: mean absolute difference by the mean of the latter.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from prorsa.clock import nanoseconds
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.control.learn import Episode
from prorsa.control.learn.env import RoleAllocation
from prorsa.events import ForecastTarget, Stamped
from prorsa.forecast.frame import Frame
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import make_plan
from prorsa.simulate import make_simulation

POOLS: Final = (("coding-async", 64, 300.0), ("v32-coding-async", 512, 60.0))
"""Scenario, trajectories in flight, and the decisions a second that are wanted: 8 plain-TP workers, 8 of DP8."""
WARM: Final = 40
"""Decisions before the clock starts: the start of a run is not the midst of it."""
TARGETS: Final[tuple[ForecastTarget, ...]] = ("prefill", "decode_admission", "kv_need")
HORIZONS_S: Final = (5.0, 15.0, 30.0, 60.0)


def sized(name: str, live: int) -> Scenario:
    """A scenario of the package with so many trajectories in flight, long enough for all decisions."""
    return msgspec.structs.replace(load_scenario(name), concurrency=live, trajectories=live * 8)


def decisions_per_s(scenario: Scenario, seed: int, decisions: int) -> float:
    """Decisions a second of CPU time."""
    env, rng = RoleAllocation(decisions=WARM + decisions), np.random.default_rng(seed)
    env.reset(seed=seed, options={"episode": Episode(scenario, seed, "lifecycle")})
    begun, over = 0.0, False
    for taken in range(WARM + decisions):
        if taken == WARM:
            begun = time.process_time()
        assert not over, "the run is too short for so many decisions"
        _, _, over, _, _ = env.step(rng.choice(np.flatnonzero(env.action_masks())))
    return decisions / (time.process_time() - begun)


def frames(scenario: Scenario, seed: int, tick_s: int, report_s: int = 1, until_s: int = 900) -> list[Frame]:
    """Forecasts at the decisions of a run under half and half, of a predictor that is ticked every ``tick_s`` and hears
    reports of the workers every ``report_s``.
    """
    half = scenario.workers // 2
    plan = make_plan(scenario, policy=f"static:{half}:{scenario.workers - half}", run_id="benchmark", seed=seed)
    simulation, predictor = make_simulation(plan, report_s=report_s), Predictor(ForecastConfig())
    made: list[Frame] = []
    seq = 0
    for due_s in range(tick_s, until_s + 1, tick_s):
        while simulation.now_s < due_s and not simulation.done:
            for t_s, event in simulation.advance(float(due_s)):
                seq += 1
                predictor.observe(Stamped(seq, nanoseconds(t_s), "cluster", seq, 0, event))
        if simulation.done:
            break
        frame = predictor.tick(nanoseconds(float(due_s)))
        if due_s % 5 == 0:
            made.append(frame)
    return made


def differences(ticked: list[Frame], asked: list[Frame]) -> dict[str, float]:
    """Relative difference of forecasts at the same times, by target, statistic and horizon."""
    found = {}
    for target in TARGETS:
        for statistic in ("mean", "p50", "p90"):
            for horizon_s in HORIZONS_S:
                true, other = (
                    np.array([getattr(frame.get(target, horizon_s), statistic) or 0.0 for frame in made])
                    for made in (ticked, asked)
                )
                found[f"{target} {statistic} {horizon_s:g}s"] = float(np.abs(true - other).sum() / true.sum())
    return found


def machine() -> dict[str, Any]:
    """The processor, as far as it says, and the load at the time."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"processor": model, "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def measure(seed: int, decisions: int) -> list[dict[str, Any]]:
    """The speed on each pool."""
    rows = []
    for name, live, target in POOLS:
        scenario = sized(name, live)
        decisions_per_s(scenario, seed, 1)  # compiles
        best = max(decisions_per_s(scenario, seed, decisions) for _ in range(3))
        rows.append({"scenario": name, "workers": scenario.workers, "live": live, "per_s": best, "target": target})
    return rows


def print_differences(found: dict[str, dict[str, float]]) -> None:
    """A table, a line for each target and statistic."""
    for name, rows in found.items():
        print(f"\n| {name} | {' | '.join(f'{horizon_s:g} s' for horizon_s in HORIZONS_S)} |")
        print(f"|---|{'---|' * len(HORIZONS_S)}")
        for key in dict.fromkeys(key.rsplit(" ", 1)[0] for key in rows):
            cells = [f"{rows[f'{key} {horizon_s:g}s']:.1%}" for horizon_s in HORIZONS_S]
            print(f"| {key} | {' | '.join(cells)} |")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decisions", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cadence", action="store_true")
    args = parser.parse_args()
    if args.cadence:
        runs = {name: sized(name, live) for name, live, _ in POOLS}
        found = {}
        for name, scenario in runs.items():
            ticked = frames(scenario, args.seed, 1)
            for report_s, told in ((1, "reports each second"), (5, "reports at decisions")):
                asked = frames(scenario, args.seed, 5, report_s)
                found[f"{name}, {told}"] = differences(ticked, asked)
        print(json.dumps(found)) if args.json else print_differences(found)
        return
    figures = {"machine": machine(), "pools": measure(args.seed, args.decisions)}
    if args.json:
        print(json.dumps(figures))
        return
    print(figures["machine"])
    for row in figures["pools"]:
        share = row["per_s"] / row["target"]
        print(f"{row['scenario']:18} {row['live']:4} in flight {row['per_s']:6.0f} a second, {share:.2f} of the target")


if __name__ == "__main__":
    main()
