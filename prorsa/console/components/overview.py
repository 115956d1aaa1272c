"""The main screen: all that matters of a run at a glance. The size of the terminal decides which parts are shown."""

from typing import Final

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widgets import Static

from prorsa.console.components.decisions import DecisionPanel
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.flips import FlipPanel
from prorsa.console.components.footer import Footer
from prorsa.console.components.requests import RequestPanel
from prorsa.console.components.topbar import Banner, SplitBar, Timeline, TopBar
from prorsa.console.components.trends import TARGETS, DemandChart, Sparks, SplitChart, Window
from prorsa.console.components.workers import WorkerTable
from prorsa.console.look import Look
from prorsa.console.model import ConsoleModel
from prorsa.console.status import FeedKind, FeedStatus, is_old, waiting_for, why_old

MIN_COLUMNS: Final = 40
MIN_ROWS: Final = 12
WIDE_COLUMNS: Final = 120


class Overview(Screen[None]):
    """Draws the model; the feed's status is handed in."""

    # Textual declares these two as instance variables, so they cannot be ClassVars here.
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_COLUMNS, "-narrow"), (80, "-medium"), (WIDE_COLUMNS, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_ROWS, "-short"), (46, "-tall")]  # noqa: RUF012

    def __init__(self, model: ConsoleModel, look: Look, *, kind: FeedKind, read_only: bool) -> None:
        super().__init__(id="overview")
        self.model = model
        self.look = look
        self.window = Window()
        self.top = TopBar(model, look, read_only=read_only)
        self.bar = SplitBar(model, look)
        self.timeline = Timeline(model, look)
        self.banner = Banner(model, look)
        self.charts = [
            SplitChart(model, look, self.window, id="split"),
            *(DemandChart(model, look, self.window, target) for target in TARGETS),
        ]
        self.sparks = Sparks(model, look, self.window)
        self.table = WorkerTable(model, look)
        self.requests = RequestPanel(model, look)
        self.flips = FlipPanel(model, look)
        self.decisions = DecisionPanel(model, look)
        self.keys = Footer(model, look, kind=kind, read_only=read_only)
        self.waiting = Static(id="waiting")
        self.small = Static(id="small")
        self.body = Container(id="body")
        self.timeline.set_class(kind == "replay", "shown")

    def compose(self) -> ComposeResult:
        """All parts, from top to bottom."""
        yield self.top
        yield self.bar
        yield self.timeline
        yield self.banner
        yield self.waiting
        yield self.small
        with self.body:
            with Horizontal(id="charts"):
                yield from self.charts
            yield self.sparks
            with Container(id="main"):
                with Container(id="left"):
                    yield self.table
                    yield self.requests
                    yield self.flips
                yield self.decisions
        yield self.keys

    def on_mount(self) -> None:
        """Name the panels; the keys go to the table of workers."""
        titles = ["split over time", *(f"{target.title}, next 15 s" for target in TARGETS)]
        titles += ["workers", "requests and overrides", "flips", "decisions"]
        panels = [*self.charts, self.table, self.requests, self.flips, self.decisions]
        for widget, title in zip(panels, titles, strict=True):
            widget.border_title = title
        self.table.focus()

    def on_resize(self) -> None:
        """Fit to the size; say what size is needed, where it is too small."""
        text = f"The console needs {MIN_COLUMNS}×{MIN_ROWS}; this terminal has {self.size.width}×{self.size.height}."
        self.small.update(self.look.plain(text))
        self.requests.roomy = self.size.width >= WIDE_COLUMNS
        self.redraw()

    def show_status(self, status: FeedStatus, *, held: bool) -> None:
        """Draw where the data comes from and how old it is; an old frame is dimmed. ``held``: the rest stands still."""
        known = self.model.view is not None
        old = known and is_old(status, ended=self.model.ended is not None)
        self.top.status, self.top.paused, self.timeline.status = status, held, status
        self.banner.old, self.banner.now_ns = why_old(status) if old else None, status.now_ns
        self.bar.set_class(old, "old")
        self.body.set_class(old, "old")
        self.body.set_class(known, "shown")
        self.waiting.set_class(known, "hidden")
        if not known:
            self.waiting.update(self.look.plain("\n".join(waiting_for(status))))
        for widget in (self.top, self.timeline, self.banner):
            widget.redraw()

    def redraw(self) -> None:
        """Draw everything from the model."""
        self.window.follow(self.model.known_s)
        for widget in self._drawings():
            widget.redraw()

    def _drawings(self) -> list[Drawing]:
        bars = [self.top, self.bar, self.timeline, self.banner]
        return [*bars, *self.charts, self.sparks, self.table, self.requests, self.flips, self.decisions, self.keys]
