"""The split and the demand over time: charts on wide screens, sparklines on narrower ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.style import Style

from prorsa.console.components.charts import (
    Raster,
    demand_raster,
    nice_ceiling,
    peak,
    sparkline,
    split_raster,
)
from prorsa.console.components.drawing import Drawing
from prorsa.console.history import resample
from prorsa.console.look import (
    Line,
    Look,
    Palette,
    fg,
    fit,
)
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count, percent

WINDOWS_S: Final = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0)
"""Stretches of time that the charts can show."""

_AXIS = 6
_NAME = 14
_WIDEST_BY_ITSELF = WINDOWS_S.index(600.0)


@dataclass(slots=True)
class Window:
    """The stretch of time that every chart shows, up to the latest view.

    It grows with what is known of the run up to ten minutes, until an operator sets it.
    """

    index: int = 0
    by_hand: bool = False

    @property
    def length_s(self) -> float:
        """Its length."""
        return WINDOWS_S[self.index]

    def follow(self, known_s: float) -> None:
        """Show what is known of the run, if nobody has set the window."""
        while not self.by_hand and self.length_s < known_s and self.index < _WIDEST_BY_ITSELF:
            self.index += 1

    def zoom(self, steps: int) -> None:
        """Show a stretch ``steps`` longer, or shorter if negative."""
        self.by_hand = True
        self.index = min(max(self.index + steps, 0), len(WINDOWS_S) - 1)

    def name(self) -> str:
        """Its length in words."""
        minutes = self.length_s / 60
        return f"{minutes:g} min" if minutes < 60 else f"{minutes / 60:g} h"


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the forecast as it is charted."""

    key: str
    title: str
    short: Literal["prefill", "decode"]

    def colour(self, palette: Palette) -> str:
        """The colour of its line."""
        return palette.role(self.short)

    def band(self, palette: Palette) -> str:
        """The ground of its band."""
        return palette.band_prefill if self.short == "prefill" else palette.band_decode


TARGETS: Final = (
    Target("prefill", "prefill demand", "prefill"),
    Target("decode_admission", "decode admission", "decode"),
)


class Chart(Drawing):
    """A chart with a value axis on its left and a time axis under it."""

    def __init__(self, model: ConsoleModel, look: Look, window: Window, *, id: str) -> None:  # noqa: A002
        super().__init__(model, look, id=id, classes="panel chart")
        self.window = window

    def redraw(self) -> None:
        """Draw again, and say in the lower edge how things stand now."""
        self.border_subtitle = self.look.plain(self.now())
        super().redraw()

    def now(self) -> str:
        """How things stand now, in a few words."""
        raise NotImplementedError

    def bounds(self) -> tuple[float, float] | None:
        """The stretch of time to draw; None before the first view."""
        end_s = self.model.tick_s
        return None if end_s is None else (end_s - self.window.length_s, end_s)

    def framed(self, raster: Raster, labels: dict[int, str], width: int) -> list[Line]:
        """The raster's rows behind their axis labels, and the time axis."""
        lines = []
        for row, items in enumerate(raster):
            line = self.line().add(fit(labels.get(row, ""), _AXIS - 2, self.look, align="right"), "muted")
            line.add(" |" if self.look.glyphs.ascii else " │", "faint")
            line.extend(items)
            lines.append(line)
        return [*lines, self._time_axis(width)]

    def _time_axis(self, width: int) -> Line:
        line = self.line().to(_AXIS).add(f"−{self.window.name()}", "muted")
        return line.right(self.line().add("now", "muted"), width)


class SplitChart(Chart):
    """Workers by role over time, as stacked areas, with the flips under them."""

    def now(self) -> str:
        """The split."""
        return "" if self.model.view is None else str(self.model.view.split)

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """Legend, areas, marks of the flips, time."""
        bounds = self.bounds()
        rows, columns = height - 3, width - _AXIS
        if bounds is None or rows < 1 or columns < 8:
            return []
        splits = self.model.splits.columns(*bounds, columns)
        raster = split_raster(splits, rows, self.look)
        whole = max((s.prefill + s.decode + s.mixed + s.switching for s in splits if s is not None), default=0)
        labels = {0: str(whole), rows - 1: "0"} if whole else {}
        *body, axis = self.framed(raster, labels, width)
        return [self._legend(width), *body, self._flips(*bounds, columns), axis]

    def _legend(self, width: int) -> Line:
        line = self.line()
        for role, name in (
            ("decode", "D decode"),
            ("prefill", "P prefill"),
            ("mixed", "M mixed"),
            ("switching", "~ flipping"),
        ):
            if role == "mixed" and (self.model.view is None or not self.model.view.split.mixed):
                continue
            if line.width + len(name) + 2 <= width:
                line.add(name, role).gap(2)
        return line

    def _flips(self, from_s: float, to_s: float, columns: int) -> Line:
        marks = [" "] * columns
        for flip in self.model.flips.values():
            if from_s <= flip.t_s <= to_s and flip.changes_role:
                column = min(int((flip.t_s - from_s) / (to_s - from_s) * columns), columns - 1)
                marks[column] = self.look.glyphs.up if flip.latest.to_role == "prefill" else self.look.glyphs.down
        line = self.line().add(fit("flip", _AXIS - 2, self.look, align="right"), "muted").gap(2)
        styles = {self.look.glyphs.up: self.look.style("prefill"), self.look.glyphs.down: self.look.style("decode")}
        return line.extend([(mark, styles.get(mark)) for mark in marks])


class DemandChart(Chart):
    """Forecast against actual of one target over 15 s, at the tick the forecast was made."""

    def __init__(
        self,
        model: ConsoleModel,
        look: Look,
        window: Window,
        target: Target,
        *,
        id: str | None = None,  # noqa: A002 - Textual's own name
    ) -> None:
        super().__init__(model, look, window, id=id or target.key.replace("_", "-"))
        self.target = target

    def now(self) -> str:
        """What is expected, and how far off the forecasts have been."""
        wape = self.model.score(self.target.key)
        error = "" if wape is None else f", error {percent(wape)}"
        return expectation(self.model, self.target.key) + error

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """What is expected now, the chart, time."""
        bounds = self.bounds()
        rows, columns = height - 2, width - _AXIS
        if bounds is None or rows < 2 or columns < 8:
            return []
        found = self.model.demand[self.target.key].window(*bounds)
        points = resample(found, *bounds, 2 * columns)
        top = nice_ceiling(peak(points))
        palette = self.look.palette
        raster = demand_raster(
            points, rows, top, self.look, colour=self.target.colour(palette), band=self.target.band(palette)
        )
        labels = {0: count(top), rows - 1: "0"}
        if rows > 4:
            labels[(rows - 1) // 2] = count(top / 2)
        body = self.framed(raster, labels if found else {}, width)
        if not found:
            self._say_empty(body)
        return [self._legend(width), *body]

    def _say_empty(self, body: list[Line]) -> None:
        middle = body[(len(body) - 1) // 2]
        del middle.segments[2:]
        middle.width = _AXIS
        middle.add("no forecast yet", "muted")

    def _legend(self, width: int) -> Line:  # noqa: ARG002 - cut to the width by the caller
        glyphs = self.look.glyphs
        line = self.line().add("* " if glyphs.ascii else "━━ ", "strong").add("actual", "muted").gap(2)
        if self.look.colour and not glyphs.ascii:
            line.add("━━ ", fg(self.target.colour(self.look.palette))).add("p50", "muted").gap(2)
            line.add("   ", Style(bgcolor=self.target.band(self.look.palette)))
        else:
            line.add(glyphs.band * 3, "muted")
        return line.add(" p10–p90", "muted")


def expectation(model: ConsoleModel, target: str) -> str:
    """What is expected of a target over the next 15 s, with its 80 % interval."""
    row = model.forecast_row(target)
    if row is None:
        return count(None)
    middle = count(row.mean if row.p50 is None else row.p50)
    return middle if row.p10 is None or row.p90 is None else f"{middle} ({count(row.p10)}–{count(row.p90)})"


class Sparks(Drawing):
    """The trends in three lines, for screens without room for charts."""

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, id="sparks")
        self.window = window

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """Share of prefill workers, then a line a target."""
        if self.model.tick_s is None:
            return []
        from_s, to_s = self.model.tick_s - self.window.length_s, self.model.tick_s
        columns = width - 43
        if columns < 8:
            return []
        return [
            self._split(from_s, to_s, columns),
            *(self._demand(t, from_s, to_s, columns) for t in TARGETS),
        ][:height]

    def _split(self, from_s: float, to_s: float, columns: int) -> Line:
        line = self.line().gap().add(fit("split", _NAME, self.look), "muted")
        line.extend(split_raster(self.model.splits.columns(from_s, to_s, columns), 1, self.look)[0])
        return line.gap(2).add(f"last {self.window.name()}", "muted")

    def _demand(self, target: Target, from_s: float, to_s: float, columns: int) -> Line:
        points = resample(self.model.demand[target.key].window(from_s, to_s), from_s, to_s, columns)
        values = [None if point is None else point.p50 for point in points]
        line = self.line().gap().add(fit(f"{target.short} need", _NAME, self.look), "muted")
        line.add(sparkline(values, peak(points), self.look), fg(target.colour(self.look.palette))).gap(2)
        return line.add("15 s: ", "muted").add(expectation(self.model, target.key), "text")
