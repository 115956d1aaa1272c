"""The forecast: by target and horizon what is expected and how far off it has been, and where the demand comes from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal

from prorsa.console.components.charts import bar
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.table import Column, Piece, Table, cell, number
from prorsa.console.components.trends import TARGETS, DemandChart, Window
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.text import count, percent
from prorsa.events import ForecastRow

TARGET_NAMES: Final = {"prefill": "prefill demand", "decode_admission": "decode admission", "kv_need": "KV need"}
BASELINES: Final = ("last", "ewma", "kalman", "arima")
TOTALS: Final = ("total", "arrivals", "perfect")
"""Rows that are sums, and no source of demand."""
SOURCE_NAMES: Final = {
    "ready": "waits to be prefilled now",
    "retry": "prefilled again after a move",
    "sampler": "new trajectories",
    "sandbox": "sandboxes that come up",
    "tool": "tools that return",
    "second": "decodes that will end, run a tool and come back",
}
GOOD_COVERAGE: Final = (0.7, 0.9)
"""Coverage of an 80 % band that counts as what it promises."""


@dataclass(frozen=True, slots=True)
class ForecastLine:
    """One target over one horizon: the total that is expected, and the scores of past ones."""

    target: str
    horizon_s: float
    total: ForecastRow | None
    scores: Mapping[str, float | None]


class ForecastTable(Table[ForecastLine]):
    """A line for each target and horizon."""

    title = "forecast and its errors so far"
    empty = "no forecast yet"

    def all_rows(self) -> Sequence[ForecastLine]:
        """By target, then by horizon."""
        view = self.model.view
        if view is None:
            return ()
        keys: set[tuple[str, float]] = {(row.target, row.horizon_s) for row in view.forecast}
        keys |= {(target, float(horizon)) for target, by in view.scores.items() for horizon in by}
        order = list(TARGET_NAMES)
        return [
            ForecastLine(
                target,
                horizon_s,
                self.model.forecast_row(target, "total", horizon_s),
                view.scores.get(target, {}).get(f"{horizon_s:g}", {}),
            )
            for target, horizon_s in sorted(keys, key=lambda key: (order.index(key[0]), key[1]))
        ]

    def key_of(self, row: ForecastLine) -> str:
        """Target and horizon."""
        return f"{row.target}/{row.horizon_s:g}"

    def text_of(self, row: ForecastLine) -> str:
        """Target and horizon."""
        return f"{TARGET_NAMES[row.target]} {row.horizon_s:g} s"

    def columns(self) -> Sequence[Column[ForecastLine]]:
        """What is expected, then the errors."""
        return (
            Column("TARGET", 16, 0, lambda row, w: cell(TARGET_NAMES[row.target], w, self.look, _style(row.target))),
            Column("OVER", 5, 0, lambda row, w: cell(f"{row.horizon_s:g} s", w, self.look, right=True), align="right"),
            Column("EXPECTED", 8, 0, lambda row, w: number(_middle(row), w, self.look, "strong"), align="right"),
            Column("P10–P90", 13, 2, lambda row, w: cell(_band(row), w, self.look, "muted", right=True), align="right"),
            Column("ERROR", 5, 1, lambda row, w: self._score(row, "wape", w), align="right"),
            Column("ARRIVALS", 8, 4, lambda row, w: self._score(row, "wape_arrivals", w), align="right"),
            Column("BIAS", 5, 3, lambda row, w: self._score(row, "bias", w), align="right"),
            Column("IN BAND", 7, 2, self._say_coverage, align="right"),
            Column("EWMA", 5, 3, lambda row, w: self._score(row, "ewma", w, "muted"), align="right"),
            Column("KALMAN", 6, 6, lambda row, w: self._score(row, "kalman", w, "muted"), align="right"),
            Column("LAST", 5, 6, lambda row, w: self._score(row, "last", w, "muted"), align="right"),
            Column("WINDOWS", 7, 5, self._say_windows, align="right"),
        )  # fmt: skip

    def _score(self, row: ForecastLine, name: str, width: int, style: str = "text") -> list[Piece]:
        return number(percent(row.scores.get(name)), width, self.look, style)

    def _say_windows(self, row: ForecastLine, width: int) -> list[Piece]:
        return number(count(row.scores.get("windows")), width, self.look, "muted")

    def _say_coverage(self, row: ForecastLine, width: int) -> list[Piece]:
        share = row.scores.get("coverage_80")
        off = share is not None and not GOOD_COVERAGE[0] <= share <= GOOD_COVERAGE[1]
        return number(percent(share), width, self.look, "warning" if off else "text")


def _style(target: str) -> str:
    return {"prefill": "prefill", "decode_admission": "decode"}.get(target, "strong")


def _middle(row: ForecastLine) -> str:
    total = row.total
    return count(None if total is None else total.mean if total.p50 is None else total.p50)


def _band(row: ForecastLine) -> str:
    total = row.total
    return count(None) if total is None or total.p10 is None else f"{count(total.p10)}–{count(total.p90)}"


class SourcesDetail(Detail):
    """Where the demand of a target over a horizon comes from, and what the baselines say."""

    def __init__(self, model: ConsoleModel, look: Look, table: ForecastTable, *, key: str | None = None) -> None:
        super().__init__(model, look)
        self._table = table
        self._key = key

    def _line(self) -> ForecastLine | None:
        if self._key is None:
            return self._table.selected
        return next((row for row in self._table.all_rows() if self._table.key_of(row) == self._key), None)

    def title(self) -> str:
        """The target and horizon."""
        row = self._line()
        return "sources" if row is None else f"{TARGET_NAMES[row.target]}, next {row.horizon_s:g} s: sources"

    def body(self, width: int) -> Sequence[Line]:
        """Sources by size, then the sums, baselines and errors."""
        row, view = self._line(), self.model.view
        if row is None or view is None:
            return self.say("no forecast yet", width, "muted")
        rows = [item for item in view.forecast if (item.target, item.horizon_s) == (row.target, row.horizon_s)]
        sources = [item for item in rows if item.source not in (*TOTALS, *BASELINES)]
        lines = self._bars(sorted(sources, key=lambda item: -item.mean), row, width)
        if not sources:
            lines += self.say("this target is forecast as a whole, not by source", width, "muted")
        lines += [self.line(), self.heading("beside it", width)]
        for item in rows:
            if item.source in (*TOTALS, *BASELINES):
                lines += self.fact(item.source, f"{count(item.mean)} tokens", width, "muted")
        return lines + self._errors(row, width)

    def _bars(self, sources: Sequence[ForecastRow], row: ForecastLine, width: int) -> list[Line]:
        most = max((item.mean for item in sources), default=0.0)
        room = max(min(width - 22, 40), 4)
        lines = []
        for item in sources:
            line = self.line().gap().add(fit(item.source, 10, self.look), "strong")
            line.add(fit(count(item.mean), 6, self.look, align="right")).gap()
            track = self.look.style(_style(row.target)) + self.look.style("track")
            lines.append(line.add(bar(item.mean / most if most else 0.0, room, self.look), track))
            if item.source in SOURCE_NAMES:
                named = fit_words(SOURCE_NAMES[item.source], width - 4, self.look)
                lines.append(self.line().gap(3).add(named, "muted"))
        return lines

    def _errors(self, row: ForecastLine, width: int) -> list[Line]:
        if not row.scores:
            return [self.line(), *self.say("this horizon is not scored", width, "muted")]
        lines = [self.line(), self.heading("errors so far, of the actual demand", width)]
        names = {"wape": "error (WAPE)", "wape_arrivals": "of arrivals", "bias": "bias", "coverage_80": "in band"}
        for name, score in row.scores.items():
            share = name not in ("windows", "empty", "unsettled")
            lines += self.fact(names.get(name, name), percent(score) if share else count(score), width)
        return lines


class ForecastPage(Page):
    """The table, the sources of its line, and on large screens the charts."""

    key = "forecast"
    title = "Forecast"
    short = "Fcst"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.rows = ForecastTable(model, look, id="forecast-table")
        self.beside = SourcesDetail(model, look, self.rows)
        self.charts = [DemandChart(model, look, window, target, id=f"forecast-{target.short}") for target in TARGETS]

    @property
    def table(self) -> ForecastTable:
        """The table."""
        return self.rows

    def detail(self) -> Detail | None:
        """The sources of the line under the cursor."""
        row = self.rows.selected
        return None if row is None else SourcesDetail(self.model, self.look, self.rows, key=self.rows.key_of(row))

    def compose(self) -> ComposeResult:
        """Table over sources and charts."""
        yield self.rows
        with Horizontal(id="forecast-below"):
            yield self.beside
            yield from self.charts

    def on_mount(self) -> None:
        """Name the charts."""
        for chart, target in zip(self.charts, TARGETS, strict=True):
            chart.border_title = f"{target.title}, next 15 s"

    def drawings(self) -> Iterable[Drawing]:
        """All of them."""
        return [self.rows, self.beside, *self.charts]
