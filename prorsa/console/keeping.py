"""Keeping what is shown: the screen as a picture, a stretch of the run as a table."""

import asyncio
import csv
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prorsa.clock import nanoseconds, seconds
from prorsa.console.commandline import Spoken
from prorsa.console.components.asking import AskFields
from prorsa.console.forms import Field
from prorsa.console.looking import parse_time_s
from prorsa.console.steering import Doer
from prorsa.errors import InputError
from prorsa.events import ForecastTarget, View, type_name

if TYPE_CHECKING:
    from prorsa.console.app import ProrsaConsole

_TARGETS: Final[tuple[ForecastTarget, ...]] = ("prefill", "decode_admission", "kv_need")
_STATES: Final = ("dispatched", "sandbox", "ready", "prefill", "decode", "tool", "reward", "done")


class Stretch(NamedTuple):
    """A stretch of run time, in seconds from the run's beginning, and the file to write it to."""

    from_s: float
    to_s: float
    file: Path


class Keeping:
    """Writes files; says where."""

    def __init__(self, app: "ProrsaConsole") -> None:
        self._app = app

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        return {"picture": self.picture, "export": self.export}

    def picture(self, spoken: Spoken | None) -> None:
        """Write the screen as an SVG file."""
        named = spoken.word(0) if spoken is not None else None
        page = self._app.frame.page.key
        path = Path(named) if named else Path(f"prorsa-{page}-{datetime.now().astimezone():%Y%m%d-%H%M%S}.svg")
        _write(path, self._app.export_screenshot(title=f"prorsa console: {page}"))
        self._app.notify(f"The screen is in {path}.", markup=False)

    def export(self, spoken: Spoken | None) -> None:
        """Write a stretch of the run as CSV: the one that was named, or the one that is asked for.

        Raises:
            InputError: without the run's journal on this machine, or for words that are no stretch.
        """
        if self._app.journal is None:
            raise InputError("export reads the run's journal: open the console on its directory, where that is")
        if spoken is not None and len(spoken.words) == 3:
            from_text, to_text, file = spoken.words
            self._begin(Stretch(parse_time_s(from_text), parse_time_s(to_text), Path(file)))
            return
        if spoken is not None and spoken.words:
            raise InputError("export takes two times and a file: :export 5m 12m night.csv")
        end_s = self._app.model.tick_s or 0.0
        begin_s = max(end_s - self._app.frame.window.length_s, 0.0)
        fields = (
            Field("from", "from", value=f"{begin_s:.0f}s", check=parse_time_s),
            Field("to", "to", value=f"{end_s:.0f}s", check=parse_time_s),
            Field("file", "file", value="prorsa.csv"),
        )

        def go(answers: dict[str, str] | None) -> None:
            if answers is not None:
                stretch = (parse_time_s(answers["from"]), parse_time_s(answers["to"]), Path(answers["file"]))
                self._begin(Stretch(*stretch))

        self._app.push_screen(AskFields(fields, "Write a stretch of the run as CSV", self._app.look), go)

    def _begin(self, stretch: Stretch) -> None:
        assert self._app.journal is not None
        self._app.start(self._export(self._app.journal, stretch))

    async def _export(self, journal: Path, stretch: Stretch) -> None:
        try:
            rows = await asyncio.to_thread(export_csv, journal, stretch)
        except InputError as error:
            self._app.notify(str(error), severity="error", markup=False)
        else:
            self._app.notify(f"{rows} rows are in {stretch.file}.", markup=False)


def export_csv(journal: Path, stretch: Stretch) -> int:
    """Write a line for each view of a stretch; returns how many. Unknown is empty, never 0.

    Raises:
        InputError: if the stretch is empty, or the file cannot be written.
    """
    if not stretch.from_s < stretch.to_s:
        raise InputError(
            f"from {stretch.from_s:g} s to {stretch.to_s:g} s is no stretch of time: give two times, in order"
        )
    rows = 0
    try:
        with stretch.file.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=_columns())
            writer.writeheader()
            for view in _views(journal, stretch):
                writer.writerow(_row(view))
                rows += 1
    except OSError as error:
        raise InputError(f"{stretch.file}: {error.strerror}; name a file that can be written") from error
    return rows


def _views(journal: Path, stretch: Stretch) -> Iterator[View]:
    from prorsa.bus.journal import JournalReader  # not at the top: a live console starts faster without

    with JournalReader(journal) as reader:
        begin, end = reader.seq_before(nanoseconds(stretch.from_s)), reader.seq_before(nanoseconds(stretch.to_s) + 1)
        for stamped in reader.read(begin, end, (type_name(View),)):
            if isinstance(stamped.event, View):
                yield stamped.event


def _columns() -> list[str]:
    forecast = [f"{target}_15s_{name}" for target in _TARGETS for name in ("p10", "p50", "p90")]
    pool = ["t_s", "policy", "mode", "prefill", "decode", "mixed", "switching"]
    rates = ["prefill_tokens_per_s", "output_tokens_per_s", "idle", "mean_context_tokens"]
    return [*pool, *rates, *(f"trajectories_{state}" for state in _STATES), *forecast, "alerts", "overrides"]


def _row(view: View) -> dict[str, Any]:
    split = view.split
    row: dict[str, Any] = {
        "t_s": round(seconds(view.tick_ns), 3),
        "policy": view.policy,
        "mode": view.mode,
        "prefill": split.prefill,
        "decode": split.decode,
        "mixed": split.mixed,
        "switching": split.switching,
        "prefill_tokens_per_s": view.prefill_tokens_per_s,
        "output_tokens_per_s": view.output_tokens_per_s,
        "idle": view.idle,
        "mean_context_tokens": view.mean_context_tokens,
        "alerts": " ".join(alert.code for alert in view.alerts),
        "overrides": " ".join(f"{entry.kind}:{entry.target or entry.value or ''}" for entry in view.overrides),
    }
    row |= {f"trajectories_{state}": view.trajectories.get(state) for state in _STATES}
    for item in view.forecast:
        if item.source == "total" and item.horizon_s == 15.0:
            row |= {f"{item.target}_15s_{name}": getattr(item, name) for name in ("p10", "p50", "p90")}
    return row


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a file that can be written") from error
