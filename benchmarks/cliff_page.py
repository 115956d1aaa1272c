"""The page and the picture of benchmarks/cliff.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cliff_points import (
    ANALYTIC,
    COLOCATED,
    COLOCATED_TUNED,
    FIXED_KEEPING,
    FLIPPED_KEEPING,
    POOLS,
    STATIC_BEST,
    Keeping,
    Point,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "cliff.md"
PICTURE: Final = DOCUMENT.parent / "pictures" / "cliff.png"
BEGIN, END = "<!-- cliff: begin -->", "<!-- cliff: end -->"


def name_of(keeping: Keeping) -> str:
    """What keeps the contexts, in words."""
    kept = (
        "shared store" if keeping.cache == "l3" else f"host tier {keeping.tier} × HBM" if keeping.tier else "HBM alone"
    )
    return f"{kept}, flips lose it" if keeping.cache == "cold" else kept


def tables(points: Sequence[Point]) -> str:
    """A table a pool: a line a system and what keeps its contexts, a column a concurrency."""
    return "\n".join(line for pool in POOLS for line in _table([point for point in points if point.pool == pool]))


def _table(points: Sequence[Point]) -> list[str]:
    if not points:
        return []
    concurrencies = sorted({point.concurrency for point in points})
    lines = [
        f"\n### {POOLS[points[0].pool].title}\n",
        "| contexts are kept by | system | " + " | ".join(f"{c} in flight" for c in concurrencies) + " |",
        "|---|---|" + "---|" * len(concurrencies),
    ]
    for keeping in FLIPPED_KEEPING:
        own = [point for point in points if (point.tier, point.cache) == keeping]
        for system in (COLOCATED, COLOCATED_TUNED, STATIC_BEST, ANALYTIC):
            cells = {point.concurrency: cell(point) for point in own if point.system == system}
            if not cells:
                continue
            lines += [
                f"| {name_of(keeping)} | {system} | " + " | ".join(cells.get(c, "") for c in concurrencies) + " |"
            ]
    return lines


def cell(point: Point) -> str:
    """Throughput, the share of prefill that is prefill again, and what the system was."""
    what = "" if point.system in (COLOCATED, ANALYTIC) else f" `{point.policy.partition(':')[2] or 0}`"
    flips = f" {point.flips} flips" if point.flips else ""
    return f"{point.tokens_per_s:,.0f} ({point.again:.0%}){what}{flips}"


def write(points: Sequence[Point]) -> None:
    """Put the tables between the marks of the document, and draw the picture."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{tables(points)}\n\n{END}{after}")
    draw(points, PICTURE)


LOOK: Final = {
    (COLOCATED, False): ("#999999", "o", "-", "colocated"),
    (COLOCATED_TUNED, False): ("#000000", "s", "-", "colocated, tuned"),
    (STATIC_BEST, False): ("#56B4E9", "^", "-", "fixed split, best"),
    (ANALYTIC, False): ("#E69F00", "D", "-", "analytic"),
    (ANALYTIC, True): ("#E69F00", "v", ":", "analytic, flips lose the cache"),
}
"""Colour, marker, line and label of a system, and whether flips lose its cache."""


def draw(points: Sequence[Point], path: Path) -> None:
    """Two rows of panels a pool, throughput and the share that is prefill again; a column for what keeps contexts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    pools = [pool for pool in POOLS if any(point.pool == pool for point in points)]
    figure, axes = plt.subplots(
        2 * len(pools), len(FIXED_KEEPING), figsize=(14, 5.2 * len(pools)), squeeze=False, sharex="row", sharey="row"
    )
    for index, pool in enumerate(pools):
        own = [point for point in points if point.pool == pool]
        rates, shares = axes[2 * index], axes[2 * index + 1]
        for rate, share, keeping in zip(rates, shares, FIXED_KEEPING, strict=True):
            shown = [point for point in own if point.tier == keeping.tier and _shown(point, keeping)]
            _panel(rate, shown, "tokens_per_s")
            _panel(share, shown, "again")
            rate.set_title(name_of(keeping), fontsize=10)
            share.set_xlabel("trajectories in flight")
        rates[0].set_ylabel(f"{POOLS[pool].title}\noutput tokens/s")
        shares[0].set_ylabel("share of prefill\nthat is prefill again")
        rates[0].set_ylim(0, max(point.tokens_per_s for point in own) * 1.08)
        shares[0].set_ylim(0, 1.03)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(LOOK), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _shown(point: Point, keeping: Keeping) -> bool:
    """A panel of what survives flips shows what does not, too."""
    return point.cache == keeping.cache or (point.cache == "cold" and keeping.cache == "retained")


def _panel(axis: "Axes", points: Sequence[Point], field: str) -> None:
    for (system, cold), (colour, marker, style, label) in LOOK.items():
        own = [point for point in points if point.system == system and (point.cache == "cold") == cold]
        line = sorted((point.concurrency, getattr(point, field)) for point in own)
        if line:
            axis.plot(*zip(*line, strict=True), color=colour, marker=marker, ls=style, ms=4, lw=1.4, label=label)
    axis.set_xticks(sorted({point.concurrency for point in points}))
    axis.grid(alpha=0.25)
