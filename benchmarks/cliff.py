"""The cliff: throughput against concurrency, by what holds the contexts, for colocated and disaggregated workers.

    python benchmarks/cliff.py [--pools tp,dp] [--quick] [--out docs/pictures/cliff.png] [--json FILE]

Past the number of live trajectories whose contexts the caches hold, most of the prefill is prefill again, and every
system collapses. For each pool and concurrency: plain and tuned colocation (the better of a few intervals between
prefills), the best fixed split of a few, and `analytic`, with the host tier of the prefix cache in multiples of the
HBM pool, and `analytic` with each cache mode. Tuned and best are chosen on the seed that they are scored on, which
flatters both alike. A point is the mean rate of `WINDOW_S` simulated seconds after `WARM_UP_S`, with more trajectories
queued than end in it, as a run to the end of a system past the cliff takes days. `analytic` ticks with its decisions.
Prints a table in Markdown; draws the plot.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import CacheMode, Scenario, load_scenario
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.controller import Controller
from prorsa.control.policies import make_policy
from prorsa.driving import Driver
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import RunPlan, make_plan
from prorsa.simulate import make_simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEED: Final = 1
COLOCATED: Final = "colocated"
TUNED: Final = ("colocated", "colocated:4", "colocated:16", "colocated:64")
"""Decode steps between two prefill steps; the first is prefill first, as without tuning."""
ANALYTIC: Final = "analytic"
WARM_UP_S: Final = 8_000.0
WINDOW_S: Final = 8_000.0
QUEUED: Final = 16
"""Trajectories of the workload for each one in flight."""


class Pool(NamedTuple):
    """What the cliff is drawn for: a scenario, its fixed splits worth trying, concurrencies, and tiers."""

    scenario: str
    title: str
    splits: tuple[str, ...]
    concurrencies: tuple[int, ...]
    adaptive: tuple[int, ...]
    tiers: tuple[int, ...]


POOLS: Final = {
    "tp": Pool(
        "coding-async",
        "Qwen3-32B, 8 workers of TP2",
        ("static:1:7", "static:2:6", "static:3:5"),
        (16, 32, 64, 96, 128, 256),
        (64, 128, 32),
        (0, 1, 2, 4),
    ),
    "dp": Pool(
        "v32-coding-async",
        "DeepSeek-V3.2, 8 workers of DP8",
        ("static:3:5", "static:4:4", "static:5:3"),
        (128, 256, 512),
        (),
        (0, 1, 4),
    ),
}


class Row(msgspec.Struct, frozen=True):
    """One point: a system at a concurrency, on a cache."""

    pool: str
    system: str
    tier: int
    policy: str
    concurrency: int
    tokens_per_s: float
    again: float
    flips: int


def measure(name: str, pool: Pool, quick: bool) -> Iterator[Row]:
    """All points of a pool, in the order in which they are computed."""
    base = load_scenario(pool.scenario)
    hbm_tokens = load_profile(base.profile).kv_capacity

    def setting(concurrency: int, tier: int, cache: CacheMode = "retained") -> Scenario:
        return msgspec.structs.replace(
            base,
            concurrency=concurrency,
            trajectories=QUEUED * concurrency,
            host_kv_tokens=tier * hbm_tokens,
            cache=cache,
        )

    for concurrency in pool.concurrencies[1::3] if quick else pool.concurrencies:
        workload = setting(concurrency, 0).make_workload(SEED)
        for tier in pool.tiers:
            yield from _compare(name, pool, setting(concurrency, tier), workload, tier)
    kept: tuple[tuple[CacheMode, int], ...] = (("retained", 0), ("retained", max(pool.tiers)), ("cold", 0), ("l3", 0))
    for concurrency in pool.adaptive[:1] if quick else pool.adaptive:
        workload = setting(concurrency, 0).make_workload(SEED)
        for cache, tier in kept:
            run = _run(setting(concurrency, tier, cache), workload, ANALYTIC)
            yield _row(name, f"{ANALYTIC}, {cache}", run, tier)


def _compare(name: str, pool: Pool, scenario: Scenario, workload: Workload, tier: int) -> Iterator[Row]:
    systems: dict[str, Sequence[str]] = {
        COLOCATED: (COLOCATED,),
        "colocated, tuned": TUNED,
        "fixed split, best": pool.splits,
    }
    done = {policy: _run(scenario, workload, policy) for policy in (*TUNED, *pool.splits)}
    for system, policies in systems.items():
        yield _row(name, system, max((done[policy] for policy in policies), key=lambda run: run.tokens_per_s), tier)


class Run(NamedTuple):
    """What a policy did in the window."""

    policy: str
    concurrency: int
    tokens_per_s: float
    again: float
    flips: int


def _run(scenario: Scenario, workload: Workload, policy: str) -> Run:
    plan = make_plan(scenario, policy=policy, run_id="cliff", seed=SEED, scored=False)
    simulation = make_simulation(plan, workload, emit=policy == ANALYTIC)
    advance = _decided(plan, simulation) if policy == ANALYTIC else _alone(simulation)
    advance(WARM_UP_S)
    before = simulation.report()
    advance(WARM_UP_S + WINDOW_S)
    after = simulation.report()
    output, computed, again = (
        after[key] - before[key] for key in ("output_tokens", "computed_prefill_tokens", "prefill_again_tokens")
    )
    return Run(policy, scenario.concurrency, output / WINDOW_S, again / max(computed, 1), after["flips"])


def _alone(simulation: Simulation) -> Callable[[float], None]:
    """Advances a pool that nobody controls."""

    def advance(until_s: float) -> None:
        while simulation.now_s < until_s and not simulation.done:
            simulation.advance(until_s)

    return advance


def _decided(plan: RunPlan, simulation: Simulation) -> Callable[[float], None]:
    """Advances a pool under its controller, which forecasts and decides at each tick."""
    decide_s = plan.control.decide_s
    control = msgspec.structs.replace(plan.control, tick_s=decide_s)
    policy = make_policy(plan.control.policy, plan.scenario.workers)
    driver = Driver(simulation, Controller(control, Predictor(ForecastConfig()), policy), decide_s)

    def advance(until_s: float) -> None:
        while driver.due_s <= until_s and not simulation.done:
            driver.advance()
            driver.tick()

    return advance


def _row(pool: str, system: str, run: Run, tier: int) -> Row:
    return Row(pool=pool, system=system, tier=tier, **run._asdict())


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown: a line a system and tier, a column a concurrency; tokens/s and the share that is again."""
    lines = []
    for pool in dict.fromkeys(row.pool for row in rows):
        of_pool = [row for row in rows if row.pool == pool]
        concurrencies = sorted({row.concurrency for row in of_pool})
        lines += [f"\n**{POOLS[pool].title}**: output tokens/s (share of prefill that is prefill again)\n"]
        lines += ["| system | host tier | " + " | ".join(map(str, concurrencies)) + " |"]
        lines += ["|---|---|" + "---|" * len(concurrencies)]
        for system, tier in dict.fromkeys((row.system, row.tier) for row in of_pool):
            cells = {row.concurrency: _cell(row) for row in of_pool if (row.system, row.tier) == (system, tier)}
            held = f"{tier} x HBM" if tier else "none"
            lines += [f"| {system} | {held} | " + " | ".join(cells.get(c, "") for c in concurrencies) + " |"]
    return "\n".join(lines)


def _cell(row: Row) -> str:
    return f"{row.tokens_per_s:,.0f} ({row.again:.0%})"


def draw(rows: Sequence[Row], path: Path) -> None:
    """One row of panels a pool: throughput with each tier, and the share of prefill that is prefill again."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    pools = list(dict.fromkeys(row.pool for row in rows))
    columns = 3
    figure, axes = plt.subplots(len(pools), columns, figsize=(15, 4.6 * len(pools)), squeeze=False)
    for line, pool in zip(axes, pools, strict=True):
        of_pool = [row for row in rows if row.pool == pool]
        most = max(POOLS[pool].tiers)
        _panel(line[0], [row for row in of_pool if row.tier == 0], "tokens_per_s", "no host tier")
        _panel(line[1], [row for row in of_pool if row.tier == most], "tokens_per_s", f"host tier of {most} x HBM")
        _panel(line[2], [row for row in of_pool if row.tier == 0], "again", "no host tier")
        top = max(row.tokens_per_s for row in of_pool) * 1.05
        for axis in line[:2]:
            axis.set_ylim(0, top)
            axis.set_ylabel("output tokens/s, steady")
        line[2].set_ylim(0, 1)
        line[2].set_ylabel("share of prefill that is prefill again")
        line[0].set_title(f"{POOLS[pool].title}\nno host tier", fontsize=10)
        line[0].legend(frameon=False, fontsize=8)
    figure.suptitle("The cliff: coding agents, long contexts")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


_LOOK: Final = {
    "colocated": ("#999999", "o", "-"),
    "colocated, tuned": ("#000000", "s", "-"),
    "fixed split, best": ("#56B4E9", "^", "-"),
    "analytic, retained": ("#E69F00", "D", "-"),
    "analytic, cold": ("#E69F00", "v", ":"),
    "analytic, l3": ("#009E73", "x", "--"),
}


def _panel(axis: "Axes", rows: Sequence[Row], field: str, title: str) -> None:
    for system in dict.fromkeys(row.system for row in rows):
        points = sorted((row.concurrency, getattr(row, field)) for row in rows if row.system == system)
        colour, marker, style = _LOOK[system]
        axis.plot(*zip(*points, strict=True), color=colour, marker=marker, ls=style, ms=4, lw=1.4, label=system)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("trajectories in flight")
    axis.grid(alpha=0.25)


def main() -> None:
    """Measure, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pools", default="tp,dp")
    parser.add_argument("--quick", action="store_true", help="a third of the concurrencies")
    parser.add_argument("--out", type=Path, default=None, help="the picture; none is drawn without")
    parser.add_argument("--json", type=Path, default=None, help="write the points there; read them, if they exist")
    args = parser.parse_args()
    rows = list(_read(args.json))
    if not rows:
        for name in args.pools.split(","):
            for row in measure(name, POOLS[name], args.quick):
                print(f"{row.pool} {row.concurrency:4} {row.system:20} x{row.tier} {_cell(row)}", file=sys.stderr)
                rows.append(row)
                if args.json:
                    args.json.write_bytes(msgspec.json.encode(rows))
    print(table(rows))
    if args.out:
        draw(rows, args.out)


def _read(path: Path | None) -> list[Row]:
    return [] if path is None or not path.exists() else msgspec.convert(json.loads(path.read_text()), list[Row])


if __name__ == "__main__":
    main()
