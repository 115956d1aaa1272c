"""What commands print: JSON or tables on stdout, narration on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from prorsa.figures import Comparison, Standing

UNKNOWN = "\N{EN DASH}"
WIDE = 10_000


def print_json(value: object) -> None:
    """One JSON object on stdout, on one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def narrate(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    dispensable: Sequence[str] = (),
) -> None:
    """A plain table on stdout; the first column is text, the others are numbers, flush right.

    Of the ``dispensable`` columns, the first are left out where a terminal has no room for all.
    """
    content, console = list(rows), Console()
    left_out: set[str] = set()
    for name in (*dispensable, None):
        table = _table(columns, content, left_out, title)
        width = Console(width=WIDE).measure(table).maximum
        if not console.is_terminal:
            # Piped output is not cut to some width that nobody looks at.
            console = Console(width=width)
        if width <= console.width or name is None:
            break
        left_out.add(name)
    console.print(table)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], left_out: set[str], title: str | None) -> Table:
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    shown = [index for index, column in enumerate(columns) if column not in left_out]
    for index in shown:
        table.add_column(columns[index], justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table


def number(value: object, form: str = ",.0f") -> str:
    """A number, or a dash where it is unknown."""
    if value is None:
        return UNKNOWN
    assert isinstance(value, int | float)
    return format(value, form)


def percent(value: object) -> str:
    """A share as per cent, or a dash."""
    if value is None:
        return UNKNOWN
    assert isinstance(value, int | float)
    return f"{100 * value:.1f}%"


_RUN_COLUMNS: Final = (
    "policy", "scenario", "seed", "makespan s", "limit s", "steady tok/s", "step s", "tok/s", "latency p50 s", "p99 s",
    "idle", "flips", "resumed", "done", "truncated",
)  # fmt: skip
_RUN_DISPENSABLE: Final = ("resumed", "truncated", "tok/s", "done", "p99 s", "latency p50 s", "limit s", "idle")


def print_runs(runs: Sequence[Mapping[str, object]]) -> None:
    """The runs of ``simulate`` and ``demo`` as a table. What no run has is left out."""
    rows = [_run_row(run) for run in runs]
    unknown = [column for index, column in enumerate(_RUN_COLUMNS) if all(row[index] == UNKNOWN for row in rows)]
    shown = [index for index, column in enumerate(_RUN_COLUMNS) if column not in unknown]
    columns = [_RUN_COLUMNS[index] for index in shown]
    print_table(columns, [[row[index] for index in shown] for row in rows], dispensable=_RUN_DISPENSABLE)
    for run in runs:
        if run["bound_by_trajectory"]:
            narrate(
                f"{run['policy']} seed {run['seed']}: bound by its longest trajectory; its makespan carries no claim"
            )
    _narrate_tuning(runs)
    print_shadows(runs)
    profiles = {str(run["profile"]) for run in runs if not run["profile_validated"]}
    for profile in sorted(profiles):
        narrate(f"profile {profile} is unvalidated: fewer than 10 measured rows match it")


_SHADOW_COLUMNS: Final = (
    "shadow", "beside", "scenario", "seed", "decisions", "agree", "prefill apart", "prefill more", "would move",
    "moved", "handed over", "failed",
)  # fmt: skip


def print_shadows(runs: Sequence[Mapping[str, object]]) -> None:
    """How the policies in shadow of these runs compare with those that decided; nothing where there are none."""
    rows = [_shadow_row(run, shadow) for run in runs if isinstance(shadow := run.get("shadow"), Mapping)]
    if rows:
        sys.stdout.write("\n")
        print_table(_SHADOW_COLUMNS, rows, dispensable=("failed", "handed over", "seed"))


def _shadow_row(run: Mapping[str, object], shadow: Mapping[str, object]) -> list[str]:
    return [
        str(shadow["policy"]),
        str(run["policy"]),
        str(run["scenario"]),
        str(run["seed"]),
        number(shadow["compared"]),
        percent(shadow["agreement"]),
        number(shadow["prefill_apart"], ".2f"),
        number(shadow["prefill_more"], "+.2f"),
        number(shadow["would_move"]),
        number(shadow["moved"]),
        number(shadow["handed_over"]),
        number(shadow["failed"]),
    ]


def _narrate_tuning(runs: Sequence[Mapping[str, object]]) -> None:
    found = {}
    for run in runs:
        tuning = run.get("tuning")
        if isinstance(tuning, Mapping):
            found[run["scenario"], run["policy"]] = tuning
    for (scenario, policy), tuning in found.items():
        seeds = ", ".join(str(seed) for seed in tuning["seeds"])
        value = tuning["tried"][tuning["chosen"]]
        narrate(f"{policy} on {scenario} is {tuning['chosen']}: {tuning['figure']} {value:,.1f} on seeds {seeds}")


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """How the policies of each scenario compare with its first; nothing for scenarios with one policy."""
    columns = (
        "policy",
        "",
        "mean",
        "gain",
        "95 % interval",
        "seeds",
        "makespan s",
        "limit s",
        "idle",
        "flips",
        "bound",
    )
    for comparison in comparisons:
        if len(comparison.standings) < 2:
            continue
        sys.stdout.write("\n")
        print_table(
            columns,
            [_standing_row(standing) for standing in comparison.standings],
            title=f"{comparison.scenario}: {comparison.figure.key}, gain over {comparison.standings[0].policy}",
            dispensable=("seeds", "bound", "limit s", "makespan s", "idle", "flips"),
        )


def _standing_row(standing: Standing) -> list[str]:
    gain = standing.gain
    interval = "" if gain is None or gain.low is None else f"{gain.low:.3f} to {gain.high:.3f}"
    return [
        standing.policy,
        standing.mark,
        number(standing.mean, ",.1f"),
        "" if gain is None else f"{gain.mean:.3f}x",
        interval,
        str(len(standing.runs)),
        number(standing.mean_of("makespan_s")),
        number(standing.limit_makespan_s),
        percent(standing.mean_of("gpu_idle_ratio")),
        number(standing.mean_of("flips"), ",.1f"),
        f"{standing.bound}/{len(standing.runs)}" if standing.bound else "",
    ]


def _run_row(run: Mapping[str, object]) -> list[str]:
    latency = run["trajectory_latency_s"]
    assert isinstance(latency, Mapping)
    return [
        str(run["policy"]),
        str(run["scenario"]),
        str(run["seed"]),
        number(run["makespan_s"]),
        number(run["limit_makespan_s"]),
        number(run["steady_output_tokens_per_s"]),
        number(run["step_s"], ",.1f"),
        number(run["output_tokens_per_s"]),
        number(latency["p50"]),
        number(latency["p99"]),
        percent(run["gpu_idle_ratio"]),
        number(run["flips"]),
        number(run["requests_resumed"]),
        number(run["trajectories_completed"]),
        number(run["trajectories_truncated"]),
    ]
