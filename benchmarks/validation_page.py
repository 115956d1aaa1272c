"""The page and the plot of benchmarks/validate.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prorsa.cluster.profile import load_profile
from prorsa.cluster.profiling.measured import Pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.validate import Point

LEAST_ROWS: Final = 10
WORST: Final = 3
"""Rows shown of each profile."""

HEAD: Final = """# Validation of the simulator's step times

Written by `python -m benchmarks.validate --write`. How profiles are made and corrected: [profiles.md](profiles.md).

Every measured row of SGLang whose form has a profile is run through the simulator itself: cold prompts in a closed loop
at the row's concurrency, with the row's lengths. The table is the one that ships with `aiconfigurator-core` 0.12.0. Of
each model's (input, output) pairs, a third is held back by a hash (`benchmarks/latency-split.csv`, fixed before any
fit); the corrections of a profile have seen the others only. TTFT is the time to the first token, TPOT the time per
output token after it. Errors are (simulated − measured) / measured; "bias" is the median error.
"""

DISAGGREGATED: Final = """
No fit has seen them. Those of B200 are on profiles that are made on the spot from AIConfigurator and corrected by
nothing; 4 more rows with DP8 decode are of FP4 weights, for which AIConfigurator has no attention data. What they show
is the decode step of 8 ranks in lock-step. Their TTFT is queueing before prefill that is nearly saturated: on B200,
where nothing corrects it, the source's prefill is several times too fast for these deployments. The table has the H200
measurements a second time, under DeepSeek-R1 as tensor-parallel decode without a number of workers; their times grow
too little with the batch for that.
"""

TERMS: Final = """The tensor-parallel form has rows; the data-parallel one takes over some of its corrections. Here
both are as AIConfigurator has them, each fitted to answers of its own; where the terms relate as the hardware says,
what was checked of one holds for the other.
"""

STEPS: Final = """Prefilling ranks do one chunk after 8,192 tokens, the others decode 8 requests at 8,192 tokens.
"Waiting" is the share of rank-seconds in which a rank waits for the slowest one: the idle time that lock-step causes.
"""

INTERFERENCE: Final = """DeepSeek-V3 DP8 on H200: 8 requests decode while one prompt of 65,536 tokens is prefilled on
one rank; and a steady mix of 128 requests in flight, 8,192 in and 1,024 out. An interval of 1 keeps prefill to every
second step.
"""

ELSEWHERE: Final = """
Public measurements of the same effect, on other set-ups: decode 272 → 6.6 tokens/s during a 64k prefill (41 ×);
inter-token median 274.9 → 32.1 ms when prefill was kept to every second step (DeepSeek-R1, DP8 on GB200; 8.6 ×).
"""


def render(
    result: Mapping[str, Any],
    colocated: Sequence["Point"],
    disaggregated: Sequence["Point"],
    targets: Mapping[str, float],
) -> str:
    """The whole page, as Markdown."""
    parts = [
        HEAD,
        "## Errors by profile\n",
        _summary(result["summary"], targets),
        _verdict(result["summary"], targets),
        "![simulated against measured](pictures/validation.png)\n",
        "## Worst rows\n",
        _worst(colocated),
        "## Rows with data-parallel decode\n",
        _disaggregated(disaggregated),
        "## Terms of data-parallel forms\n",
        _terms(result["terms"]),
        "## Steps by how many ranks prefill\n",
        _steps(result["steps"]),
        "## Interference\n",
        _interference(result["interference"], result["steps"]),
        "## Rows without a profile\n",
        _table(("rows", "why"), [(str(count), why) for why, count in result["unmatched"].items()]),
    ]
    return "\n".join(parts)


def _summary(summary: Mapping[str, Any], targets: Mapping[str, float]) -> str:
    columns = ["profile", "side", "rows", *(f"{m.upper()} {c}" for m in targets for c in ("median", "p90", "bias"))]
    rows = []
    for profile, sides in summary.items():
        for side in ("fit", "held-back"):
            if side in sides:
                cells = [_signed(m, sides[side][m]) for m in targets]
                rows.append((profile, side, str(sides[side]["rows"]), *(cell for three in cells for cell in three)))
    return _table(columns, rows)


def _signed(_metric: str, errors: Mapping[str, float]) -> tuple[str, str, str]:
    return f"{errors['median_abs']:.1%}", f"{errors['p90_abs']:.1%}", f"{errors['bias']:+.1%}"


def _verdict(summary: Mapping[str, Any], targets: Mapping[str, float]) -> str:
    """Which profiles with enough rows meet the targets on held-back rows, and which miss them by how much."""
    aim = ", ".join(f"{metric.upper()} within {limit:.0%}" for metric, limit in targets.items())
    lines = [f"Aimed at, for the median of held-back rows of profiles with {LEAST_ROWS} rows or more: {aim}.\n"]
    for profile, sides in summary.items():
        held = sides.get("held-back")
        if held is None or sum(side["rows"] for side in sides.values()) < LEAST_ROWS:
            lines.append(f"- {profile}: unvalidated, fewer than {LEAST_ROWS} rows.")
            continue
        missed = [
            f"{metric.upper()} misses by {held[metric]['median_abs'] - limit:.1%}"
            for metric, limit in targets.items()
            if held[metric]["median_abs"] > limit
        ]
        lines.append(f"- {profile}: {'; '.join(missed) if missed else 'met'}.")
    return "\n".join(lines) + "\n"


def _worst(points: Sequence["Point"]) -> str:
    rows = []
    for profile in dict.fromkeys(point.profile for point in points):
        mine = sorted((point for point in points if point.profile == profile), key=_size)[-WORST:]
        rows += [(*_point(point), why(point)) for point in reversed(mine)]
    return _table(("profile", "side", "in/out", "in flight", "TTFT ms", "TPOT ms", "why"), rows)


def _size(point: "Point") -> float:
    return max(abs(point.ttft_error), abs(point.tpot_error))


def _point(point: "Point") -> tuple[str, ...]:
    row, got = point.row, point.simulated
    return (
        point.profile,
        point.side,
        f"{row.prompt_tokens}/{row.output_tokens}",
        str(row.concurrency),
        f"{got.ttft_ms:,.0f} for {row.ttft_ms:,.0f}",
        f"{got.tpot_ms:.1f} for {row.tpot_ms:.1f}",
    )


def why(point: "Point") -> str:
    """What a row's error comes from, as far as its own figures tell."""
    row, profile = point.row, load_profile(point.profile)
    assert row.concurrency is not None
    demand = row.concurrency * (row.prompt_tokens + row.output_tokens)
    if demand > profile.kv_tokens:
        return (
            f"{demand / profile.kv_tokens:.1f} × the KV: who waits depends on SGLang's admission estimate, "
            "for which a fixed reserve stands here"
        )
    if abs(point.ttft_error) < abs(point.tpot_error):
        if point.tpot_error < 0:
            return "decode waits longer for the prefills of others than it does here"
        return "one factor for all batches and contexts: it is between those that the rows want"
    if point.ttft_error > 0 and row.concurrency > 1:
        return "requests of one length stay in step and arrive together here; real ones drift apart"
    return "prompts that arrive together cost more than the fitted prefill and request time"


def _disaggregated(points: Sequence["Point"]) -> str:
    if not points:
        return "None: no row names prefill and decode workers whose forms both have a profile.\n"
    rows = []
    for point in points:
        name, _, *figures = _point(point)
        workers = f"{_count(point.row.prefill)} → {_count(point.row.decode)}"
        rows.append((name, workers, *figures, f"{point.ttft_error:+.0%}", f"{point.tpot_error:+.0%}"))
    columns = ("profiles", "workers", "in/out", "in flight", "TTFT ms", "TPOT ms", "TTFT error", "TPOT error")
    return _table(columns, rows) + DISAGGREGATED


def _count(pool: Pool | None) -> str:
    return "?" if pool is None else str(pool.workers)


def _terms(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            f"{row['tp']}, {row['dp']}",
            row["term"],
            f"{row['tp_ms']:.1f}",
            f"{row['dp_ms']:.1f}",
            f"{row['ratio']:.2f}",
            str(row["expected"]),
        )
        for row in rows
    ]
    return TERMS + "\n" + _table(("profiles", "term", "TP ms", "DP ms", "ratio", "expected"), cells)


def _steps(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            row["profile"],
            f"{row['prefill_share']:.1%}",
            f"{row['attention_ms']:.1f}",
            f"{row['experts_ms']:.1f}",
            f"{row['step_ms']:.1f}",
            f"{row['waiting_ratio']:.0%}",
            f"{row['times_decode']:.1f} ×",
        )
        for row in rows
    ]
    columns = ("profile", "ranks that prefill", "attention ms", "experts ms", "step ms", "waiting", "of a decode step")
    return STEPS + "\n" + _table(columns, cells)


def _interference(found: Mapping[str, Mapping[str, float]], steps: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        (
            name,
            f"{figures['before']:,.0f}",
            f"{figures['during']:,.1f}",
            f"{figures['before'] / figures['during']:.0f} ×",
            f"{figures['tpot_ms']:.0f}",
            f"{figures['ttft_ms']:,.0f}",
        )
        for name, figures in found.items()
    ]
    columns = (
        "prefill interval",
        "tokens/s before",
        "during 64k",
        "slower",
        "TPOT ms, steady mix",
        "TTFT ms, steady mix",
    )
    return INTERFERENCE + "\n" + _table(columns, cells) + ELSEWHERE + _medians(steps)


def _medians(steps: Sequence[Mapping[str, Any]]) -> str:
    """What the second public figure is to be compared with: a median between tokens is that of steps of one kind."""
    mine = [row for row in steps if row["profile"] == "dsv3-h200-dp8"]
    alone, *others = sorted(row["step_ms"] for row in mine)
    return (
        "With prefill in every step the median between two tokens is a step with prefill; with every second step it is "
        f"one\nwithout. Here these take {others[0]:.0f} to {others[-1]:.0f} ms and {alone:.0f} ms (table above).\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def draw(points: Sequence["Point"], path: Path) -> None:
    """Simulated against measured, log-log: hollow markers are fit rows, full ones held back."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.profile if "→" not in point.profile else "prefill → decode workers", []).append(point)
    for axis, metric, band in zip(axes, ("ttft", "tpot"), (0.25, 0.15), strict=True):
        for index, (name, members) in enumerate(groups.items()):
            axis.scatter(
                [getattr(point.row, f"{metric}_ms") for point in members],
                [getattr(point.simulated, f"{metric}_ms") for point in members],
                s=26,
                marker="D" if "→" in name else "o",
                edgecolors=f"C{index}",
                facecolors=[f"C{index}" if point.side == "held-back" or "→" in name else "none" for point in members],
            )
            axis.scatter([], [], color=f"C{index}", marker="D" if "→" in name else "o", s=26, label=name)
        _frame(axis, metric, band, [getattr(point.row, f"{metric}_ms") for point in points])
    axes[0].legend(fontsize=8, loc="upper left", title="hollow: seen by fits; full: not seen", title_fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _frame(axis: "Axes", metric: str, band: float, measured_ms: Sequence[float]) -> None:
    ends = [min(measured_ms) * 0.8, max(measured_ms) * 1.25]
    axis.plot(ends, ends, color="0.4", linewidth=1)
    axis.fill_between(
        ends, [end * (1 - band) for end in ends], [end * (1 + band) for end in ends], color="0.9", zorder=0
    )
    axis.set(
        xscale="log", yscale="log", xlabel=f"measured {metric.upper()}, ms", ylabel=f"simulated {metric.upper()}, ms"
    )
    axis.set_title(f"{'time to first token' if metric == 'ttft' else 'time per output token'} (band ±{band:.0%})")
