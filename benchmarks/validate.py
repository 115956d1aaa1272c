"""Simulated latency against measured rows of SGLang: writes docs/validation.md and its plot.

    python -m benchmarks.validate [--table CSV] [--json] [--write]

Every row of a form that has a profile is run through the simulator itself: cold prompts in a closed loop at the row's
concurrency, colocated or on prefill and decode workers as the row was. The table ships with `aiconfigurator-core` (the
``profile`` extra). Rows are held back from fits by benchmarks/latency-split.csv, which was fixed before any fit.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import lockstep, validation_page
from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.profiling.aiconfigurator import measured_table
from prorsa.cluster.profiling.bench import Deployment, Latency, simulate_load
from prorsa.cluster.profiling.catalogue import B200_CHECKS, CARRIED, colocated_rows, disaggregated_rows
from prorsa.cluster.profiling.corrections import load_of
from prorsa.cluster.profiling.making import Request, make_profile
from prorsa.cluster.profiling.measured import Pool, Row, Side, read_rows, read_split

ROOT: Final = Path(__file__).parent.parent
SPLIT: Final = Path(__file__).parent / "latency-split.csv"
TARGETS: Final = {"tpot": 0.15, "ttft": 0.25}
"""Median absolute error of held-back rows that is aimed at, for profiles with 10 rows or more."""

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Point:
    """A measured row and what the simulator makes of it."""

    profile: str
    side: Side
    row: Row
    simulated: Latency

    @property
    def ttft_error(self) -> float:
        """(simulated − measured) / measured."""
        return self.simulated.ttft_ms / self.row.ttft_ms - 1

    @property
    def tpot_error(self) -> float:
        """(simulated − measured) / measured."""
        return self.simulated.tpot_ms / self.row.tpot_ms - 1


def colocated_points(rows: Sequence[Row], split: dict[Key, Side]) -> list[Point]:
    """Every row of one colocated worker whose form has a profile."""
    points = []
    for request in CARRIED:
        profile = load_profile(request.name)
        points += [
            Point(request.name, split[row.key], row, simulate_load(Deployment(profile), load_of(row)))
            for row in colocated_rows(request, rows)
        ]
    return points


def disaggregated_points(rows: Sequence[Row], split: dict[Key, Side]) -> list[Point]:
    """Every row of prefill and decode workers in known numbers whose forms have profiles, or are of B200."""
    points = []
    for row, prefill, decode in disaggregated_rows(rows, CARRIED + B200_CHECKS):
        deployment = Deployment(
            _profile(prefill),
            _workers(row.prefill),
            _profile(decode) if decode != prefill else None,
            _workers(row.decode),
        )
        name = f"{prefill.name} → {decode.name}"
        points.append(Point(name, split[row.key], row, simulate_load(deployment, load_of(row))))
    return points


@cache
def _profile(request: Request) -> Profile:
    """The carried profile, or one that is made now and corrected by nothing."""
    return load_profile(request.name) if request in CARRIED else make_profile(request)


def _workers(pool: Pool | None) -> int:
    assert pool is not None
    assert pool.workers is not None
    return pool.workers


def summary(points: Iterable[Point]) -> dict[str, Any]:
    """Error distributions by profile and side: rows, median and 90th percentile of the absolute error, median error."""
    found: dict[str, Any] = {}
    grouped: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        grouped.setdefault((point.profile, point.side), []).append(point)
    for (profile, side), members in grouped.items():
        found.setdefault(profile, {})[side] = {"rows": len(members)} | {
            metric: _distribution([getattr(point, f"{metric}_error") for point in members]) for metric in TARGETS
        }
    return found


def _distribution(errors: Sequence[float]) -> dict[str, float]:
    values = np.array(errors)
    return {
        "median_abs": float(np.median(np.abs(values))),
        "p90_abs": float(np.quantile(np.abs(values), 0.9)),
        "bias": float(np.median(values)),
    }


def unmatched(rows: Sequence[Row], points: Sequence[Point]) -> dict[str, int]:
    """Rows that no point stands for, by why."""
    used = {id(point.row) for point in points}
    counts: dict[str, int] = {}
    for row in rows:
        if id(row) not in used:
            counts[_why_unmatched(row)] = counts.get(_why_unmatched(row), 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _why_unmatched(row: Row) -> str:
    shapes = {"deepseek-v3", "qwen3-32b", "qwen3-235b-fp8"}
    if row.shape not in shapes:
        return f"no profile of {row.shape.split('/')[-1]}"
    if row.system not in {"h100_sxm", "h200_sxm"} and row.mode == "agg":
        return f"no profile on {row.system.removesuffix('_sxm').upper()}"
    if row.mode == "disagg" and not (row.prefill and row.prefill.workers and row.decode and row.decode.workers):
        return "the table does not say how many prefill and decode workers there were"
    return "no profile of the form"


def main() -> None:
    """Run all rows; print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--table", type=Path, help="CSV table of measured points; that of aiconfigurator-core if left out"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the page")
    parser.add_argument(
        "--write", action="store_true", help="write docs/validation.md and docs/pictures/validation.png"
    )
    arguments = parser.parse_args()
    rows, split = read_rows(arguments.table or measured_table()), read_split(SPLIT)
    rows = [row for row in rows if row.key in split]
    colocated, disaggregated = colocated_points(rows, split), disaggregated_points(rows, split)
    points = colocated + disaggregated
    result = {
        "summary": summary(colocated),
        "unmatched": unmatched(rows, points),
        "terms": lockstep.shared_terms(),
        "steps": lockstep.step_table(),
        "interference": lockstep.interference(),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    page = validation_page.render(result, colocated, disaggregated, TARGETS)
    print(page)
    if arguments.write:
        (ROOT / "docs" / "validation.md").write_text(page)
        validation_page.draw(points, ROOT / "docs" / "pictures" / "validation.png")


if __name__ == "__main__":
    main()
