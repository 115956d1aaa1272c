"""Forecasts next to what can be known: the scored grid, perturbed events, and what the forecast buys.

    python -m benchmarks.forecast grid [--quick] [--seeds 0 1 2 3 4] [--results benchmarks/results/forecast.jsonl]
    python -m benchmarks.forecast whole
    python -m benchmarks.forecast sessions --traces ../shared/traces
    python -m benchmarks.forecast perturb
    python -m benchmarks.forecast buys
    python -m benchmarks.forecast tune
    python -m benchmarks.forecast markdown > docs/forecast-results.md

Each part appends its cells to the results file as they complete and leaves out those that are there: interrupt it, and
run it again. A cell is one simulated run under the frozen split of its scenario. The distribution oracle forecasts at
sampled ticks of each transient phase, 200 redrawn futures each; the gap that the forecast closes is measured at these
ticks, everything else at all of them. Parameters were chosen on seeds from 100 on; seeds 0-4 are scored.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.forecast_page import PARTS, page
from prorsa.backtest import ORACLE, Points, attach, backtest_run, events_of, oracle_points, sample_ticks
from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.events import ForecastTarget, Stamped
from prorsa.forecast.baselines import Baseline, Ewma, KalmanLocalLevel
from prorsa.forecast.frame import Frame
from prorsa.forecast.measures import Comparison, by_phase
from prorsa.forecast.phases import TRANSIENT
from prorsa.forecast.scoring import TARGETS
from prorsa.forecast.windows import Observer, Point, Window
from prorsa.run import RunPlan, make_plan, make_workload
from prorsa.simulate import simulate

RESULTS: Final = Path(__file__).parent / "results" / "forecast.jsonl"
HORIZONS_S: Final = (5.0, 15.0, 30.0)
SCENARIOS: Final = ("v32-coding-async", "v32-coding-sync", "v32-general-async", "v32-general-sync")
SIZES: Final = ((128, 2), (512, 8), (1024, 16))
"""Trajectories in flight, and workers."""
UNTIL_S: Final = 900.0
"""Simulated seconds of a run that are forecast; general runs end before. Quick mode takes less."""
TICKS_A_PHASE: Final = 4
FUTURES: Final = 200
WHOLE: Final = ("v32-general-async", 1024, 16)
WHOLE_TICKS: Final = 24
"""The cell, and the ticks spread over each of its runs, at which forecast and oracle are compared over whole runs."""
GROUP: Final = 8
BUYS: Final = ("weightsync-qwen", "drift-qwen", "v32-coding-async", "general-async", "weightsync-v32", "coding-async")
"""Scenarios on which forecasts are compared by what they buy."""
TUNED_ON: Final = (100, 101)
HALF_LIVES_S: Final = (2.5, 5.0, 10.0, 20.0, 40.0)
NOISE_RATIOS: Final = (1.0, 0.2, 0.05, 0.01, 0.002)


# --- cells ----------------------------------------------------------------------------------------------------------


class Results:
    """The results file: one JSON object a line, each under a key; the last of a key counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those keys that have no result."""
        return [key for key in keys if key not in self.rows]

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a result."""
        self.rows[key] = {"key": key, **row}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(self.rows[key]) + "\n")

    def of(self, part: str) -> list[dict[str, Any]]:
        """All results of a part."""
        return [row for key, row in self.rows.items() if key.startswith(f"{part}/")]


def sized(name: str, concurrency: int, workers: int) -> Scenario:
    """A scenario of another size: as many trajectories for each worker, and steps of as many as are in flight."""
    scenario = load_scenario(name)
    steps = {"groups_per_step": concurrency // GROUP} if scenario.mode == "sync" else {}
    return msgspec.structs.replace(scenario, workers=workers, concurrency=concurrency, **steps)


def frozen_plan(scenario: Scenario, seed: int, sessions: Path | None = None) -> RunPlan:
    """The scenario's own split, half and half, left as it is."""
    prefill = scenario.initial_prefill
    return make_plan(
        scenario,
        policy=f"static:{prefill}:{scenario.workers - prefill}",
        run_id=f"{scenario.name}-{seed}",
        seed=seed,
        sessions=sessions,
        scored=False,
    )


def sums(cells: Mapping[tuple[str, str], Comparison]) -> dict[str, Any]:
    """Sums of each forecast by target and horizon, as plain data that adds up over runs."""
    return {
        f"{target}/{horizon}": {
            name: {field: getattr(errors, field) for field in errors.__slots__}
            for name, errors in comparison.errors.items()
        }
        for (target, horizon), comparison in cells.items()
    }


def scored(windows: Sequence[Window]) -> dict[str, Any]:
    """What a cell keeps: sums by phase, over all windows and over those in which the oracle spoke."""
    asked = [window for window in windows if "oracle" in window.forecasts]
    plain = [_without_oracle(window) for window in windows]
    return {
        "phases": {name: sums(cells) for name, cells in by_phase(plain).items()},
        "sampled": {name: sums(cells) for name, cells in by_phase(asked).items()},
    }


def _without_oracle(window: Window) -> Window:
    forecasts = {name: point for name, point in window.forecasts.items() if name != ORACLE}
    return replace(window, forecasts=forecasts)


# --- the grid -------------------------------------------------------------------------------------------------------


def grid_cells(sizes: Sequence[tuple[int, int]], seeds: Sequence[int]) -> list[tuple[str, int, int, int]]:
    """Scenario, trajectories in flight, workers and seed of each cell: small ones first, so that many are done soon."""
    return [(name, *size, seed) for size in sizes for seed in seeds for name in SCENARIOS]


def run_grid(results: Results, cells: Sequence[tuple[str, int, int, int]], args: argparse.Namespace) -> None:
    """Run the cells that have no result; ``--rescore`` forecasts again and keeps what the oracle has said."""
    for name, concurrency, workers, seed in cells:
        key = f"grid/{name}/{concurrency}x{workers}/{seed}"
        if key in results.rows and not args.rescore:
            continue
        started = time.process_time()
        plan = frozen_plan(sized(name, concurrency, workers), seed)
        workload = make_workload(plan)
        run = backtest_run(plan, HORIZONS_S, workload=workload, until_s=args.until_s)
        ticks = [tick for tick in sample_ticks(run.windows, args.ticks) if tick in transient_ticks(run.windows)]
        if ticks:
            points = oracle_of(results, key.replace("grid", "oracle", 1), plan, ticks, run.windows, args.futures)
            attach(run.windows, ORACLE, points)
        results.add(
            key,
            {
                "ticks": ticks,
                "until_s": args.until_s,
                "cpu_s": time.process_time() - started,
                "changes": changes(run.windows),
                **scored(run.windows),
            },
        )
        print(f"{key}: {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)


def transient_ticks(windows: Iterable[Window]) -> set[float]:
    """When the run was in a transient phase."""
    return {window.tick_s for window in windows if window.phase in TRANSIENT}


def changes(windows: Iterable[Window]) -> int:
    """Regime changes of a run: how often a transient phase begins."""
    phases = [phase for _, phase in sorted({(window.tick_s, window.phase) for window in windows})]
    return sum(phase in TRANSIENT and phase != before for before, phase in itertools.pairwise([None, *phases]))


def run_whole(results: Results, args: argparse.Namespace) -> None:
    """Forecast and oracle over whole runs of one cell, transients and steady phases as they come."""
    name, concurrency, workers = WHOLE
    for seed in args.seeds:
        key = f"whole/{name}/{concurrency}x{workers}/{seed}"
        if key in results.rows and not args.rescore:
            continue
        plan = frozen_plan(sized(name, concurrency, workers), seed)
        run = backtest_run(plan, HORIZONS_S, until_s=args.until_s)
        ticks = [replace(window, phase="steady") for window in run.windows]
        chosen = sample_ticks(ticks, WHOLE_TICKS)
        points = oracle_of(results, f"oracle-{key}", plan, chosen, run.windows, args.futures)
        attach(run.windows, ORACLE, points)
        results.add(key, {"ticks": chosen, **scored(run.windows)})
        print(key, file=sys.stderr, flush=True)


def oracle_of(
    results: Results, key: str, plan: RunPlan, ticks: list[float], windows: Sequence[Window], futures: int
) -> Points:
    """The oracle's forecasts, from the results file where they are of the same run: what came tells."""
    actual = {_name(window): window.actual for window in windows if window.tick_s in ticks}
    known = results.rows.get(key)
    if known is None or known["ticks"] != ticks or not _same(known["actual"], actual):
        points = oracle_points(plan, ticks, HORIZONS_S, futures=futures)
        kept = {f"{target}/{h:g}/{t_ns}": astuple(point) for (target, h, t_ns), point in points.items()}
        results.add(key, {"ticks": ticks, "futures": futures, "actual": actual, "points": kept})
        return points
    points = {}
    for name, values in known["points"].items():
        target, horizon, t_ns = name.split("/")
        points[target, float(horizon), int(t_ns)] = Point(*values)
    return points


def _name(window: Window) -> str:
    return f"{window.target}/{window.horizon_s:g}/{nanoseconds(window.tick_s)}"


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[name], other[name], rel_tol=1e-3) for name in one)


# --- real sessions --------------------------------------------------------------------------------------------------


def run_sessions(results: Results, traces: Path, args: argparse.Namespace) -> None:
    """Recorded coding sessions: 128 in flight on 2 workers, each seed in another order."""
    file = traces / "coding-sessions.csv.gz"
    if not file.exists():
        print(f"no recorded sessions: {file} is absent", file=sys.stderr)
        return
    for seed in args.seeds:
        key = f"sessions/coding/{seed}"
        if key in results.rows and not args.rescore:
            continue
        plan = frozen_plan(sized("v32-coding-async", 128, 2), seed, file)
        run = backtest_run(plan, HORIZONS_S, until_s=args.until_s)
        results.add(key, scored(run.windows))
        print(key, file=sys.stderr, flush=True)


# --- perturbed events -----------------------------------------------------------------------------------------------


def perturbed(events: Sequence[Stamped], rng: np.random.Generator) -> list[Stamped]:
    """1 % of the events lost, 1 % twice, 1 % late by up to 2 s: as a hub would then stamp them."""
    kind = rng.random(len(events))
    late_ns = (rng.random(len(events)) * 2.0 * NS_PER_S).astype(np.int64)
    out = []
    for stamped, u, delay_ns in zip(events, kind.tolist(), late_ns.tolist(), strict=True):
        if u < 0.01:
            continue
        out.append(msgspec.structs.replace(stamped, t_ns=stamped.t_ns + delay_ns) if u > 0.99 else stamped)
        if 0.01 <= u < 0.02:
            out.append(stamped)
    out.sort(key=lambda stamped: stamped.t_ns)
    return [msgspec.structs.replace(stamped, hub_seq=number) for number, stamped in enumerate(out, 1)]


def run_perturbed(results: Results, args: argparse.Namespace) -> None:
    """How much the errors grow, against what really came, and how well live trajectories are counted."""
    for name, seed in itertools.product(("v32-general-async", "v32-general-sync"), args.seeds):
        key = f"perturb/{name}/{seed}"
        if key in results.rows and not args.rescore:
            continue
        plan = frozen_plan(sized(name, 128, 2), seed)
        events = [stamped for second in events_of(plan, until_s=args.until_s) for stamped in second]
        clean, windows = _frames(events)
        dirty, _ = _frames(perturbed(events, np.random.default_rng(seed)))
        results.add(key, {"wape": _wapes(windows, clean, dirty), "live_off": _live_off(clean, dirty)})
        print(key, results.rows[key], file=sys.stderr, flush=True)


def _frames(events: Iterable[Stamped]) -> tuple[dict[int, Frame], list[Window]]:
    frames: dict[int, Frame] = {}
    observer = Observer(HORIZONS_S, on_frame=lambda frame: frames.update({frame.t_ns: frame}))
    observer.feed(events)
    return frames, observer.finish()


def _wapes(windows: Sequence[Window], clean: dict[int, Frame], dirty: dict[int, Frame]) -> dict[str, list[float]]:
    """By target and horizon: missed with clean events, missed with perturbed ones, and what came."""
    out: dict[str, list[float]] = {}
    for window in windows:
        t_ns = nanoseconds(window.tick_s)
        if window.actual <= 0 or t_ns not in dirty:
            continue
        row = out.setdefault(f"{window.target}/{window.horizon_s:g}", [0.0, 0.0, 0.0])
        for place, frames in enumerate((clean, dirty)):
            said = frames[t_ns].get(window.target, window.horizon_s).p50
            row[place] += abs((said or 0.0) - window.actual)
        row[2] += window.actual
    return out


def _live_off(clean: dict[int, Frame], dirty: dict[int, Frame]) -> float:
    """Mean of |live - true live| over the mean of the true ones."""
    pairs = [(clean[t].live_trajectories, dirty[t].live_trajectories) for t in clean.keys() & dirty.keys()]
    return sum(abs(a - b) for a, b in pairs) / max(sum(a for a, _ in pairs), 1)


# --- what the forecast buys -----------------------------------------------------------------------------------------


def run_buys(results: Results, args: argparse.Namespace) -> None:
    """The same solver with the lifecycle forecast, with an EWMA, and with perfect knowledge of the next 15 s."""
    for name, seed, seen in itertools.product(BUYS, args.seeds, ("lifecycle", "ewma", "perfect")):
        key = f"buys/{name}/{seen}/{seed}"
        if key in results.rows and not args.rescore:
            continue
        plan = make_plan(
            load_scenario(name), policy="analytic", run_id=key, seed=seed, forecast=seen, scored=False, batch=True
        )
        row = simulate(plan)
        kept = {field: row[field] for field in ("makespan_s", "trajectory_latency_s", "flips")}
        results.add(key, kept)
        print(key, kept["makespan_s"], file=sys.stderr, flush=True)


# --- parameters of the baselines ------------------------------------------------------------------------------------


def run_tune(results: Results, args: argparse.Namespace) -> None:
    """Errors of EWMA and Kalman by their parameter over runs on other seeds than those that are scored."""
    for name, seed in itertools.product(SCENARIOS, TUNED_ON):
        key = f"tune/{name}/{seed}"
        if key in results.rows and not args.rescore:
            continue
        run = backtest_run(frozen_plan(sized(name, 128, 2), seed), HORIZONS_S, until_s=args.until_s)
        results.add(key, {"wape": {target: _by_parameter(run.observer, run.windows, target) for target in TARGETS}})
    for target in TARGETS:
        rows = [row["wape"][target] for row in results.of("tune")]
        for label in rows[0]:
            # Of each run the error over its least one; runs are alike, however hard they are.
            ratios = [row[label] / min(row.values()) for row in rows if min(row.values()) > 0]
            print(f"{target:17} {label:14} {statistics.geometric_mean(ratios):.3f}")


def _by_parameter(observer: Observer, windows: Sequence[Window], target: ForecastTarget) -> dict[str, float]:
    makers = {f"ewma {h:g} s": partial(Ewma, h) for h in HALF_LIVES_S}
    makers |= {f"kalman {r:g}": partial(KalmanLocalLevel, r) for r in NOISE_RATIOS}
    return {label: _wape_of(make(), observer, windows, target) for label, make in makers.items()}


def _wape_of(baseline: Baseline, observer: Observer, windows: Sequence[Window], target: ForecastTarget) -> float:
    said = {}
    for tick_s, value in zip(observer.ticks_s, observer.series[target], strict=True):
        baseline.update(value, 1.0)
        for horizon_s in HORIZONS_S:
            known = observer.known.get((target, horizon_s, nanoseconds(tick_s)), 0.0) if target == "prefill" else 0.0
            said[horizon_s, tick_s] = known + (baseline.over(horizon_s) if target != "kv_need" else baseline.over(1.0))
    rows = [window for window in windows if window.target == target and window.actual > 0]
    missed = sum(abs(said[window.horizon_s, window.tick_s] - window.actual) for window in rows)
    return missed / max(sum(window.actual for window in rows), 1.0)


# --- command line ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Run a part, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("grid", "whole", "sessions", "perturb", "buys", "tune", "markdown"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=[concurrency for concurrency, _ in SIZES])
    parser.add_argument("--until-s", type=float, default=UNTIL_S)
    parser.add_argument(
        "--ticks", type=int, default=TICKS_A_PHASE, help="sampled ticks of each transient phase; 0 for no oracle"
    )
    parser.add_argument("--futures", type=int, default=FUTURES)
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--rescore", action="store_true", help="forecast again; the oracle's forecasts are kept")
    parser.add_argument("--quick", action="store_true", help="one seed of the smallest size, 20 futures, 300 s")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.sizes, args.ticks, args.futures, args.until_s = [0], [128], 1, 20, 300.0
    results = Results(args.results)
    if args.part == "grid":
        sizes = [size for size in SIZES if size[0] in args.sizes]
        run_grid(results, grid_cells(sizes, args.seeds), args)
    elif args.part == "whole":
        run_whole(results, args)
    elif args.part == "sessions":
        run_sessions(results, args.traces, args)
    elif args.part == "perturb":
        run_perturbed(results, args)
    elif args.part == "buys":
        run_buys(results, args)
    elif args.part == "tune":
        run_tune(results, args)
    else:
        print(page({part: results.of(part) for part in PARTS}))


if __name__ == "__main__":
    main()
