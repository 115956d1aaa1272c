"""Progress of a batch on stderr, where that is a terminal."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from prorsa.runner import Watch

SPEED_OVER_S = 300.0
"""The time left is estimated from the progress of so long: cells differ, and advance by leaps."""


@contextmanager
def batch_progress(names: Sequence[str]) -> Iterator[Watch]:
    """A bar for each cell under way and, where there are several, one for all with the time left."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bars = Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True, speed_estimate_period=SPEED_OVER_S
    )
    shares = [0.0] * len(names)
    tasks: dict[int, TaskID] = {}
    with bars:
        everything = bars.add_task(f"0 of {len(names)}", total=len(names), visible=len(names) > 1)

        def watch(number: int, share: float) -> None:
            shares[number] = share
            if number not in tasks:
                tasks[number] = bars.add_task(names[number], total=1.0)
            bars.update(tasks[number], completed=share, visible=share < 1.0)
            done = sum(share >= 1.0 for share in shares)
            bars.update(everything, completed=sum(shares), description=f"{done} of {len(names)}")

        yield watch
