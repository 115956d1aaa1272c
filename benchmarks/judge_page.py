"""Makes ``docs/judging-results.md`` and its picture of the rows that the judge's benchmarks have kept.

    python -m benchmarks.judge_page [--rows build/judge.jsonl] [--reference FILE] [--estimates FILE] [--gate FILE]

What a file has no rows for is left out of the page.
"""

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.judge import ROLLOUTS
from benchmarks.judge_cells import FIRST_SEED, Cell, cells
from prorsa.figures import Figure, Gain, Run, main_figure, paired_gain

DOCS: Final = Path(__file__).parents[1] / "docs"
PICTURE: Final = DOCS / "pictures" / "judging.png"
REFERENCE: Final = "reference"
"""`analytic` as it stood before look-ahead and learned policies; forecast and simulator are the present ones."""
TUNED: Final = "colocated:tuned"
"""What no policy of roles can become: it has none. The best known is told with it and without it."""
SHOWN: Final = ("analytic", "lookahead", "learned", "static:best", TUNED, f"clairvoyant:{ROLLOUTS}")
JUDGED: Final = ("analytic", "lookahead", "learned")
TOLERANCE: Final = 0.02
"""A loss counts only where the whole interval lies beyond this."""


class Scored(NamedTuple):
    """A cell with its gains over the reference, by policy.

    ``best`` is the gain of the best policy of each seed, ``best_roles`` that of the best which gives workers roles.
    """

    cell: Cell
    figure: Figure
    reference: float
    gains: Mapping[str, Gain]
    best: Gain
    best_roles: Gain
    against_static: Mapping[str, Gain]
    flips: Mapping[str, float]
    trajectory_bound: bool


def score(rows: Sequence[Run]) -> list[Scored]:
    """The cells that have rows of the reference."""
    found = []
    for cell in cells():
        here = [row for row in rows if row["scenario"] == cell.scenario.name]
        if any(row["policy"] == REFERENCE for row in here):
            found.append(_score(cell, here))
    return found


def _score(cell: Cell, rows: Sequence[Run]) -> Scored:
    figure = main_figure(rows)
    by_policy = {name: [row for row in rows if row["policy"] == name] for name in (REFERENCE, *SHOWN)}
    reference, static = by_policy[REFERENCE], by_policy["static:best"]
    shown = [row for row in rows if row["policy"] in (REFERENCE, *SHOWN)]
    best = paired_gain(figure, _best(figure, shown), reference)
    with_roles = [row for row in shown if row["policy"] != TUNED]
    best_roles = paired_gain(figure, _best(figure, with_roles), reference)
    assert best is not None
    assert best_roles is not None
    return Scored(
        cell=cell,
        figure=figure,
        reference=statistics.fmean(_value(figure, row) for row in reference),
        gains=_gains(figure, by_policy, reference),
        best=best,
        best_roles=best_roles,
        against_static=_gains(figure, by_policy, static),
        flips={
            name: statistics.fmean(float(str(row["flips"])) for row in own) for name, own in by_policy.items() if own
        },
        trajectory_bound=any(bool(row["bound_by_trajectory"]) for row in rows),
    )


def _gains(figure: Figure, by_policy: Mapping[str, Sequence[Run]], over: Sequence[Run]) -> dict[str, Gain]:
    found = {name: paired_gain(figure, own, over) for name, own in by_policy.items() if name != REFERENCE}
    return {name: gain for name, gain in found.items() if gain is not None}


def _best(figure: Figure, rows: Sequence[Run]) -> list[Run]:
    """The best run of each seed, whoever's."""
    sign = 1.0 if figure.more_is_better else -1.0
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return [max((r for r in rows if r["seed"] == seed), key=lambda row: sign * _value(figure, row)) for seed in seeds]


def _value(figure: Figure, row: Run) -> float:
    value = figure.of(row)
    assert value is not None
    return value


def gap_closed(scored: Iterable[Scored], policy: str, *, roles: bool) -> tuple[float, int] | None:
    """Share of the gap between reference and best that a policy closes, summed over its cells, and how many.

    ``roles`` says whether the best is that of the policies which give workers roles, or of all.
    """
    pairs = [
        (math.log(each.gains[policy].mean), math.log((each.best_roles if roles else each.best).mean))
        for each in scored
        if policy in each.gains and not each.trajectory_bound
    ]
    gap = sum(best for _, best in pairs)
    return (sum(own for own, _ in pairs) / gap, len(pairs)) if gap > 0.0 else None


def comparison(scored: Sequence[Scored]) -> str:
    """The table of cells, and what it comes to."""
    seeds = max(each.best.seeds for each in scored)
    heads = (
        "policy",
        "gap closed to the best of roles",
        f"to the best known, `{TUNED}` among them",
        "cells",
        "worse than the reference",
        "worse than the best fixed split",
    )
    shown = [name for name in SHOWN if any(name in each.gains for each in scored)]
    lines = [
        f"Gains over the reference, geometric means of {seeds} paired seeds from {FIRST_SEED} up (95 % interval).",
        "",
        "| cell | figure, reference | " + " | ".join(f"`{name}`" for name in shown) + " | best of roles | best known |",
        "|---" * (len(shown) + 4) + "|",
        *(_line(each, shown) for each in scored),
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(_summary(scored, policy) for policy in JUDGED if any(policy in each.gains for each in scored)),
    ]
    return "\n".join(lines)


def _line(each: Scored, shown: Sequence[str]) -> str:
    mark = " †" if each.trajectory_bound else ""
    name = f"`{each.cell.scenario.name}`{mark}"
    unit = "tokens/s" if each.figure.more_is_better else f"s ({each.figure.key})"
    gains = [_cell(each.gains.get(policy), each.flips.get(policy)) for policy in shown]
    return (
        "| "
        + " | ".join(
            [name, f"{each.reference:,.0f} {unit}", *gains, f"{each.best_roles.mean:.3f}", f"{each.best.mean:.3f}"]
        )
        + " |"
    )


def _cell(gain: Gain | None, flips: float | None) -> str:
    if gain is None:
        return ""
    interval = "" if gain.low is None or gain.high is None else f" ({gain.low:.2f}–{gain.high:.2f})"
    return f"{gain.mean:.3f}{interval}" + (f", {flips:.0f} flips" if flips else "")


def _summary(scored: Sequence[Scored], policy: str) -> str:
    closed = [gap_closed(scored, policy, roles=roles) for roles in (True, False)]
    shares = ["" if each is None else f"{each[0]:.0%}" for each in closed]
    count = max(0 if each is None else each[1] for each in closed)
    worse = _named(each.cell.scenario.name for each in scored if _worse(each.gains.get(policy)))
    under = _named(each.cell.scenario.name for each in scored if _worse(each.against_static.get(policy)))
    return f"| `{policy}` | {shares[0]} | {shares[1]} | {count} | {worse} | {under} |"


def _worse(gain: Gain | None) -> bool:
    return gain is not None and gain.high is not None and gain.high < 1.0 - TOLERANCE


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def estimates(rows: Sequence[dict[str, Any]]) -> str:
    """How often the promised interval held what one more run, and the very run that was recorded, gained."""
    held = [row for row in rows if row["low"] <= row["other"] <= row["high"]]
    very = sum(row["low"] <= row["very"] <= row["high"] for row in rows)
    width = statistics.median(math.sqrt(row["high"] / row["low"]) for row in rows)
    kinds = Counter(str(row["verdict"]).partition(" of ")[0].partition(":")[0] for row in rows)
    lines = [
        f"**{len(held)} of {len(rows)} cells** ({len(held) / len(rows):.0%}) hold one more run; {very} "
        f"({very / len(rows):.0%}) the very run that was recorded. The median interval is the gain × or ÷ {width:.2f}. "
        "Verdicts: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) + ".",
        "",
        "| pool | as it ran | seed | promised | 95 % | one more run | the very run | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        inside = "" if row in held else "**outside**"
        said = "no gain" if str(row["verdict"]).startswith("no gain") else ""
        lines.append(
            f"| {row['scenario']} | `{row['present']}` | {row['seed']} | {row['gain']:.2f}× {said} | "
            f"{row['low']:.2f}–{row['high']:.2f} | {row['other']:.2f}× | {row['very']:.2f}× | {inside} |"
        )
    return "\n".join(lines)


def gate(rows: Sequence[dict[str, Any]]) -> str:
    """The gate beside the best fixed concurrency."""
    lines = ["| pool | asked for | gate | without it | best fixed | gate / best fixed |", "|---|---|---|---|---|---|"]
    for row in rows:
        fixed = {int(concurrency): value for concurrency, value in row["fixed"].items()}
        best = max(fixed, key=lambda concurrency: fixed[concurrency])
        lines.append(
            f"| {row['name']} | {row['asked']} | {row['gate']:,.0f} | {fixed[row['asked']]:,.0f} | "
            f"{fixed[best]:,.0f} at {best} | {row['gate'] / fixed[best]:.1%} |"
        )
    return "\n".join(lines)


def draw(scored: Sequence[Scored], path: Path) -> None:
    """Gains over the reference, a row a cell."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    marks = {"analytic": ("o", "#E69F00"), "lookahead": ("D", "#0072B2"), "learned": ("s", "#009E73")}
    figure, axis = plt.subplots(figsize=(9.0, 1.4 + 0.34 * len(scored)), layout="constrained")
    for at, each in enumerate(scored):
        axis.plot([1.0, each.best_roles.mean], [at, at], color="#cccccc", lw=5, solid_capstyle="butt", zorder=1)
        for best, colour, label in (
            (each.best, "#999999", "best known, tuned colocation with it"),
            (each.best_roles, "#333333", "best known of policies with roles"),
        ):
            axis.plot(best.mean, at, "|", color=colour, ms=13, mew=2, label=label if at == 0 else None)
        for offset, (policy, (mark, colour)) in enumerate(marks.items()):
            if policy in each.gains:
                axis.plot(each.gains[policy].mean, at + 0.16 * (offset - 1), mark, color=colour, ms=6)
    for policy, (mark, colour) in marks.items():
        if any(policy in each.gains for each in scored):
            axis.plot([], [], mark, color=colour, label=policy)
    axis.axvline(1.0, color="#666666", lw=0.8)
    axis.set_yticks(range(len(scored)), [each.cell.scenario.name for each in scored])
    axis.invert_yaxis()
    axis.set_xscale("log")
    ticks = [0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0]
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("main figure over analytic as it was (right: better)")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def put(document: Path, name: str, text: str) -> None:
    """Put a part between its marks of the document."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = document.read_text().partition(begin)
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Write what there are rows for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path("build/judge.jsonl"))
    parser.add_argument("--reference", type=Path, default=Path("build/judge-reference.jsonl"))
    parser.add_argument("--estimates", type=Path, default=Path("build/estimates.jsonl"))
    parser.add_argument("--gate", type=Path, default=Path("build/gate.jsonl"))
    args = parser.parse_args()
    document = DOCS / "judging-results.md"
    reference = [{**row, "policy": REFERENCE} for row in _read(args.reference)]
    if scored := score([*reference, *_read(args.rows)]):
        put(document, "cells", comparison(scored))
        draw(scored, PICTURE)
    if rows := _read(args.estimates):
        put(document, "estimates", estimates(rows))
    if rows := _read(args.gate):
        put(document, "gate", gate(rows))


if __name__ == "__main__":
    main()
