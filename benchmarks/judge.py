"""Policies on held-out cells, against the best bound known: the numbers of ``docs/judging-results.md``.

    python -m benchmarks.judge [--cells …] [--policies …] [--seeds 500:503] [--rows FILE]

Runs are kept as JSON lines in ``--rows`` (by default ``build/judge.jsonl``) and not made again, so that the comparison
can be made in parts and deepened; rows of an earlier engine or policy are the reader's to delete. The controller
forecasts when it decides (5 s) and not in between. ``benchmarks.judge_page`` makes the page of all rows there are.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.judge_cells import FIRST_SEED, Cell, cells
from benchmarks.policies import Rows
from prorsa.cli.options import seeds_of
from prorsa.run import RunPlan, make_plan
from prorsa.tuning import settle

ROLLOUTS: Final = 20
POLICIES: Final = ("analytic", "lookahead", "learned", "static:best", "colocated:tuned", f"clairvoyant:{ROLLOUTS}")


def plans_of(cell: Cell, policy: str, seeds: Sequence[int]) -> list[RunPlan]:
    """The plans of a cell; ticks are at decisions alone."""
    return [_plan(cell, policy, seed) for seed in seeds]


def _plan(cell: Cell, policy: str, seed: int) -> RunPlan:
    name = f"{cell.scenario.name} {policy} {seed}"
    plan = make_plan(cell.scenario, policy=policy, run_id=name, seed=seed, scored=False, batch=True)
    control = msgspec.structs.replace(plan.control, tick_s=plan.control.decide_s)
    return msgspec.structs.replace(plan, control=control)


def measure(cell: Cell, policies: Sequence[str], seeds: Sequence[int], rows: Rows) -> None:
    """Make what is missing of a cell."""
    for policy in policies:
        plans = settle(plans_of(cell, policy, seeds), lambda tries: rows.make(tries, 1))
        rows.make(plans, 1)
        print(f"{cell.scenario.name} {policy}: done", file=sys.stderr, flush=True)


def main() -> None:
    """Make what is missing, and the page if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", nargs="+", help="names; all by default")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--seeds", default=f"{FIRST_SEED}:{FIRST_SEED + 3}")
    parser.add_argument("--rows", type=Path, default=Path("build/judge.jsonl"))
    args = parser.parse_args()
    rows, seeds = Rows(args.rows), seeds_of(None, args.seeds)
    for cell in cells():
        if args.cells is None or cell.scenario.name in args.cells:
            measure(cell, args.policies, seeds, rows)


if __name__ == "__main__":
    main()
