"""The frame around every page: state of the feed, split, tabs, banners, the line for commands, and the keys."""

from typing import Final

from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from prorsa.console.actions import PAGES
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.footer import Footer
from prorsa.console.components.prompt import Prompt
from prorsa.console.components.tabs import Tabs
from prorsa.console.components.topbar import Banner, SplitBar, Timeline, TopBar
from prorsa.console.components.trends import Window
from prorsa.console.components.workers import WorkerTable
from prorsa.console.look import Look
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.audit import AuditPage
from prorsa.console.pages.base import Page
from prorsa.console.pages.decisions import DecisionsPage
from prorsa.console.pages.forecast import ForecastPage
from prorsa.console.pages.log import LogPage
from prorsa.console.pages.overview import OverviewPage
from prorsa.console.pages.policies import PoliciesPage
from prorsa.console.pages.trajectories import TrajectoriesPage
from prorsa.console.pages.workers import WorkersPage
from prorsa.console.status import FeedKind, FeedStatus, is_old, waiting_for, why_old

MIN_COLUMNS: Final = 40
MIN_ROWS: Final = 12
WIDE_COLUMNS: Final = 120

_PAGES: Final[tuple[type[Page], ...]] = (
    OverviewPage,
    WorkersPage,
    TrajectoriesPage,
    ForecastPage,
    DecisionsPage,
    PoliciesPage,
    AuditPage,
    LogPage,
)


class Frame(Screen[None]):
    """The one screen of the console; dialogs lie over it. Only the page that is shown is drawn."""

    # Textual declares these two as instance variables, so they cannot be ClassVars here.
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_COLUMNS, "-narrow"), (80, "-medium"), (WIDE_COLUMNS, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_ROWS, "-short"), (30, "-high"), (46, "-tall")]  # noqa: RUF012

    def __init__(self, model: ConsoleModel, look: Look, *, kind: FeedKind, read_only: bool) -> None:
        super().__init__(id="frame")
        self.model = model
        self.look = look
        self.window = Window()
        self.top = TopBar(model, look, read_only=read_only)
        self.bar = SplitBar(model, look)
        self.timeline = Timeline(model, look)
        self.tabs = Tabs(model, look)
        self.banner = Banner(model, look)
        self.pages: dict[str, Page] = {page.key: page(model, look, self.window) for page in _PAGES}
        self.keys = Footer(model, look, kind=kind, read_only=read_only)
        self.prompt = Prompt(look)
        self.waiting = Static(id="waiting")
        self.small = Static(id="small")
        self.body = Container(id="body")
        self.over = VerticalScroll(id="over", can_focus=False)
        self.detail: Detail | None = None
        self.timeline.set_class(kind == "replay", "shown")

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self.pages[self.tabs.current]

    def compose(self) -> ComposeResult:
        """All parts, from top to bottom."""
        yield self.top
        yield self.bar
        yield self.timeline
        yield self.tabs
        yield self.banner
        yield self.waiting
        yield self.small
        with self.body:
            yield from self.pages.values()
            yield self.over
        yield self.prompt
        yield self.keys

    def on_mount(self) -> None:
        """Begin with the overview."""
        self.show_page(PAGES[0])

    def on_resize(self) -> None:
        """Fit to the size; say what size is needed, where it is too small."""
        text = f"The console needs {MIN_COLUMNS}×{MIN_ROWS}; this terminal has {self.size.width}×{self.size.height}."
        self.small.update(self.look.plain(text))
        overview = self.pages["overview"]
        assert isinstance(overview, OverviewPage)
        overview.requests.roomy = self.size.width >= WIDE_COLUMNS
        self.redraw()

    def show_page(self, key: str) -> None:
        """Show another page; the keys go to its table."""
        self.close_detail()
        self.tabs.current = key
        for name, page in self.pages.items():
            page.set_class(name == key, "current")
        if self.page.table is not None:
            self.page.table.focus()
        self.redraw()

    def open_detail(self, detail: Detail) -> None:
        """Show everything about one thing in place of the page."""
        self.close_detail()
        self.detail = detail
        self.over.mount(detail)
        self.body.add_class("detailed")
        self.over.scroll_home(animate=False)
        self.redraw()

    def close_detail(self) -> bool:
        """Go back to the page; False if it was shown already."""
        if self.detail is None:
            return False
        self.detail.remove()
        self.detail = None
        self.body.remove_class("detailed")
        return True

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
        """Draw what is shown from the model."""
        self.window.follow(self.model.known_s)
        self.keys.steering_first = isinstance(self.page.table, WorkerTable)
        self.keys.detailed = self.detail is not None
        for widget in self._frame_drawings():
            widget.redraw()
        if self.detail is not None:
            self.detail.redraw()
        else:
            self.page.redraw()

    def _frame_drawings(self) -> list[Drawing]:
        return [self.top, self.bar, self.timeline, self.tabs, self.banner, self.keys]
