"""All policies over the built-in scenarios, and the table of ``docs/results.md``.

    python -m benchmarks.policies [--scenarios …] [--policies …] [--seeds 0:3] [--jobs 1] [--rows FILE] [--write]

Runs are kept as JSON lines in ``--rows`` (by default ``build/policies.jsonl``) and not made again, so that the table
can be made in parts; rows of an earlier engine are the reader's to delete. ``--write`` puts it into the document.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prorsa.cli.batch import SimulateOptions
from prorsa.cli.options import seeds_of
from prorsa.cli.progress import batch_progress
from prorsa.figures import Comparison, Run, Standing, compare
from prorsa.run import RunPlan
from prorsa.runner import ProcessExecutor, SerialExecutor, run_cells
from prorsa.runner.simulations import simulation_cells
from prorsa.tuning import settle

POLICIES: Final = (
    "colocated", "colocated:tuned", "static:half", "static:best", "analytic", "reactive", "reactive+guards",
    "reactive:arrow", "reactive:arrow+guards", "reactive:proportional", "reactive:proportional+guards", "dynamo-like",
    "dynamo-like+guards", "clairvoyant",
)  # fmt: skip
"""What is compared; ``static:half`` is the split that a person would guess."""

SCENARIOS: Final = ("quick", "general-async", "general-sync", "coding-async", "coding-sync")
DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "results.md"
BEGIN, END = "<!-- policies: begin -->", "<!-- policies: end -->"


class Rows:
    """The runs that have been made, by scenario, policy and seed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {_key(run): run for run in map(json.loads, lines)}

    def make(self, plans: Sequence[RunPlan], jobs: int) -> list[Run]:
        """The rows of these plans; those that are missing are made and kept."""
        missing = [plan for plan in plans if _asked(plan) not in self._rows]
        # One process keeps each run as it is made; several take all that is missing, so that none of them idles.
        for batch in [[plan] for plan in missing] if jobs == 1 else [missing] if missing else []:
            cells = simulation_cells(batch, [None] * len(batch))
            with batch_progress([cell.name for cell in cells]) as watch:
                rows = run_cells(cells, SerialExecutor() if jobs == 1 else ProcessExecutor(jobs), watch)
            self._keep(rows)
        return [self._rows[_asked(plan)] for plan in plans]

    def _keep(self, rows: Sequence[Run]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            for row in rows:
                kept = {name: value for name, value in row.items() if name != "split"}
                self._rows[_key(kept)] = kept
                file.write(json.dumps(kept) + "\n")


def _key(run: Run) -> tuple[str, str, int]:
    return str(run["scenario"]), str(run["policy"]), int(str(run["seed"]))


def _asked(plan: RunPlan) -> tuple[str, str, int]:
    return plan.scenario.name, plan.asked, plan.seed


def plans_of(scenario: str, policies: Sequence[str], seeds: Sequence[int]) -> list[RunPlan]:
    """The plans of one scenario; ``static:half`` becomes half and half of its pool."""
    options = SimulateOptions(
        scenarios=(scenario,),
        policies=tuple(policies),
        seeds=tuple(seeds),
        sessions=None,
        gap_cap_s=None,
        workers=None,
        concurrency=None,
        cache=None,
        forecast="lifecycle",
        scored=False,
        record=None,
        jobs=1,
        ray=None,
        as_json=False,
    )
    return options.plans()


def half_of(scenario: str) -> str:
    """The policy that splits the scenario's pool half and half."""
    from prorsa.cluster.scenario import load_scenario

    workers = load_scenario(scenario).workers
    return f"static:{workers // 2}:{workers - workers // 2}"


def measure(scenario: str, policies: Sequence[str], seeds: Sequence[int], rows: Rows, jobs: int) -> Comparison:
    """Compare the policies on one scenario, one policy after the other, so that what is made is kept soon."""
    names = [half_of(scenario) if name == "static:half" else name for name in policies]
    runs: list[Run] = []
    for name in dict.fromkeys(names):
        plans = settle(plans_of(scenario, [name], seeds), lambda tries: rows.make(tries, jobs))
        runs += rows.make(plans, jobs)
        print(f"{scenario} {name}: done", file=sys.stderr, flush=True)
    return compare(runs)[0]


def table(comparison: Comparison) -> str:
    """A comparison as markdown. Cells that are bound by a trajectory are in italics with a mark."""
    figure = comparison.figure
    lines = [
        f"### {comparison.scenario}",
        "",
        _caption(comparison),
        "",
        f"| policy | {figure.key} | gain | 95 % | makespan s | latency p99 s | idle | flips | resumed |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(standing) for standing in comparison.standings),
        "",
        *_notes(comparison),
    ]
    return "\n".join(lines)


def _caption(comparison: Comparison) -> str:
    first, figure = comparison.standings[0], comparison.figure
    seeds = sorted({int(str(run["seed"])) for standing in comparison.standings for run in standing.runs})
    run = first.runs[0]
    better = "more" if figure.more_is_better else "less"
    validated = "" if run["profile_validated"] else ", unvalidated"
    parts = (
        f"`{figure.key}` ({better} is better), mean of seeds {', '.join(map(str, seeds))}; gain over `{first.policy}`",
        f"`{run['profile']}`{validated}; {run['workers']} workers, {run['concurrency']} trajectories in flight",
        f"physical limit of the makespan {first.limit_makespan_s:,.0f} s",
    )
    return "; ".join(parts) + "."


def _row(standing: Standing) -> str:
    mark = f" **{standing.mark}**" if standing.mark else ""
    gain = standing.gain
    interval = "" if gain is None or gain.low is None else f"{gain.low:.2f}–{gain.high:.2f}"
    makespan = f"{standing.mean_of('makespan_s'):,.0f}"
    p99 = statistics.fmean(float(run["trajectory_latency_s"]["p99"]) for run in standing.runs)  # type: ignore[index]
    cells = (
        f"`{standing.policy}`{mark}",
        f"{standing.mean:,.1f}",
        "" if gain is None else f"{gain.mean:.2f}×",
        interval,
        f"*{makespan}* †" if standing.bound else makespan,
        f"{p99:,.0f}",
        f"{standing.mean_of('gpu_idle_ratio'):.1%}",
        f"{standing.mean_of('flips'):.1f}",
        f"{standing.mean_of('requests_resumed'):.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    for standing in comparison.standings:
        tuning, search = standing.runs[0]["tuning"], [run["search"] for run in standing.runs]
        if isinstance(tuning, dict):
            seeds = ", ".join(map(str, tuning["seeds"]))
            value = tuning["tried"][tuning["chosen"]]
            notes.append(f"- `{standing.policy}` is `{tuning['chosen']}`: {value:,.1f} on seeds {seeds}.")
        found = [entry for entry in search if isinstance(entry, dict)]
        if found:
            rollouts = ", ".join(str(entry["rollouts"]) for entry in found)
            notes.append(f"- `{standing.policy}`: {rollouts} rollouts to the end of the run, by seed.")
    return [*notes, ""]


def write(text: str) -> None:
    """Put the tables between the marks of the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def main() -> None:
    """Make what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--seeds", default="0:3")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("build/policies.jsonl"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows, seeds = Rows(args.rows), seeds_of(None, args.seeds)
    comparisons = [measure(name, args.policies, seeds, rows, args.jobs) for name in args.scenarios]
    text = "\n".join(table(comparison) for comparison in comparisons)
    print(text)
    if args.write:
        write(text)


if __name__ == "__main__":
    main()
