"""The overview: all that matters of a run at a glance."""

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.containers import Container, Horizontal

from prorsa.console.components.admission import AdmissionLine
from prorsa.console.components.decisions import DecisionPanel
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.flips import FlipPanel
from prorsa.console.components.requests import RequestPanel
from prorsa.console.components.trends import TARGETS, DemandChart, Sparks, SplitChart, Window
from prorsa.console.components.workers import WorkerTable
from prorsa.console.look import Look
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.pages.workers import WorkerDetail


class OverviewPage(Page):
    """Split and demand over time, live trajectories against what the caches hold, workers, what operators asked for,
    flips, and why the split is as it is.
    """

    key = "overview"
    title = "Overview"
    short = "Over"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.charts = [
            SplitChart(model, look, window, id="split"),
            *(DemandChart(model, look, window, target) for target in TARGETS),
        ]
        self.sparks = Sparks(model, look, window)
        self.admission = AdmissionLine(model, look)
        self.worker_table = WorkerTable(model, look)
        self.requests = RequestPanel(model, look)
        self.flips = FlipPanel(model, look)
        self.decisions = DecisionPanel(model, look)

    @property
    def table(self) -> WorkerTable:
        """The workers."""
        return self.worker_table

    def detail(self) -> Detail | None:
        """The worker under the cursor."""
        worker = self.worker_table.selected
        return None if worker is None else WorkerDetail(self.model, self.look, self.window, worker.worker_id)

    def compose(self) -> ComposeResult:
        """Charts or sparklines on top; below them the tables, and the decisions beside them."""
        with Horizontal(id="charts"):
            yield from self.charts
        yield self.sparks
        yield self.admission
        with Container(id="main"):
            with Container(id="left"):
                yield self.worker_table
                yield self.requests
                yield self.flips
            yield self.decisions

    def on_mount(self) -> None:
        """Name the panels."""
        titles = ["split over time", *(f"{target.title}, next 15 s" for target in TARGETS)]
        titles += ["requests and overrides", "flips", "decisions"]
        for widget, title in zip([*self.charts, self.requests, self.flips, self.decisions], titles, strict=True):
            widget.border_title = title

    def drawings(self) -> Iterable[Drawing]:
        """All of them."""
        return [*self.charts, self.sparks, self.admission, self.worker_table, self.requests, self.flips, self.decisions]
