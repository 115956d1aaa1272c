"""The log: decisions that act, flips, requests, alerts, workers that come and go, steps and weight updates."""

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult

from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.table import Column, Table, cell
from prorsa.console.components.trends import Window
from prorsa.console.log import LogEntry
from prorsa.console.look import Line, Look, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.text import run_time


class LogTable(Table[LogEntry]):
    """A line an event, the newest on top."""

    title = "log, newest first"
    empty = "nothing has happened yet"

    def all_rows(self) -> Sequence[LogEntry]:
        """Newest first."""
        return list(self.model.log.entries)[::-1]

    def key_of(self, row: LogEntry) -> str:
        """Its place in the run."""
        return str(row.hub_seq)

    def text_of(self, row: LogEntry) -> str:
        """Kind, grade and text."""
        return f"{row.kind} {row.tone} {row.text}"

    def columns(self) -> Sequence[Column[LogEntry]]:
        """When, what."""
        return (
            Column("TIME", 8, 0, lambda row, w: cell(run_time(row.t_ns), w, self.look, "muted")),
            Column("KIND", 12, 1, lambda row, w: cell(row.kind, w, self.look, "muted")),
            Column("WHAT", 20, 0, lambda row, w: [(fit_words(row.text, w, self.look), row.tone)], stretch=400),
            Column("FROM", 14, 2, lambda row, w: cell(row.source, w, self.look, "faint")),
        )


class LogDetail(Detail):
    """All that one event says."""

    def __init__(self, model: ConsoleModel, look: Look, entry: LogEntry) -> None:
        super().__init__(model, look)
        self.entry = entry

    def title(self) -> str:
        """Its kind and place."""
        return f"{self.entry.kind}, hub_seq {self.entry.hub_seq}"

    def body(self, width: int) -> Sequence[Line]:
        """The line, then every field."""
        entry = self.entry
        lines = self.fact("time", run_time(entry.t_ns), width) + self.fact("from", entry.source, width)
        lines += [*self.say(entry.text, width, entry.tone), self.line(), self.heading("fields", width)]
        fields = entry.fields()
        names = max((len(name) for name in fields), default=8) + 2
        for name, value in fields.items():
            lines += self.fact(name, str(value), width, names=names)
        return lines


class LogPage(Page):
    """The table over the whole screen."""

    key = "log"
    title = "Log"
    short = "Log"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.entries = LogTable(model, look, id="log")

    @property
    def table(self) -> LogTable:
        """The entries."""
        return self.entries

    def detail(self) -> Detail | None:
        """The entry under the cursor."""
        entry = self.entries.selected
        return None if entry is None else LogDetail(self.model, self.look, entry)

    def compose(self) -> ComposeResult:
        """The table."""
        yield self.entries

    def drawings(self) -> Iterable[Drawing]:
        """The table."""
        return [self.entries]
