"""What commands print: JSON or tables on stdout, narration on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A plain table on stdout; the first column is text, the others are numbers, flush right."""
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        # Piped output is not cut to some width that nobody looks at.
        console = Console(width=Console(width=WIDE).measure(table).maximum)
    console.print(table)


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


def print_runs(runs: Sequence[Mapping[str, object]]) -> None:
    """The runs of ``simulate`` and ``demo`` as a table."""
    columns = (
        "policy", "scenario", "seed", "makespan s", "steady tok/s", "step s", "tok/s", "latency p50 s", "p99 s",
        "idle", "flips", "resumed", "done", "truncated",
    )  # fmt: skip
    print_table(columns, [_run_row(run) for run in runs])
    for run in runs:
        if run["bound_by_trajectory"]:
            narrate(
                f"{run['policy']} seed {run['seed']}: bound by its longest trajectory; its makespan carries no claim"
            )
    profiles = {str(run["profile"]) for run in runs if not run["profile_validated"]}
    for profile in sorted(profiles):
        narrate(f"profile {profile} is unvalidated: fewer than 10 measured rows match it")


def _run_row(run: Mapping[str, object]) -> list[str]:
    latency = run["trajectory_latency_s"]
    assert isinstance(latency, Mapping)
    return [
        str(run["policy"]),
        str(run["scenario"]),
        str(run["seed"]),
        number(run["makespan_s"]),
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


def print_forecast(forecast: Mapping[str, object]) -> None:
    """Forecast scores as a table."""
    columns = ("target", "horizon s", "WAPE", "arrivals", "bias", "p10-p90", "last", "EWMA", "Kalman")
    names = ("wape", "wape_arrivals", "bias", "coverage_80", "last", "ewma", "kalman")
    rows = []
    for target, by_horizon in forecast.items():
        assert isinstance(by_horizon, Mapping)
        for horizon, scores in by_horizon.items():
            rows.append([target, horizon, *(percent(scores.get(name)) for name in names)])
    print_table(columns, rows)
