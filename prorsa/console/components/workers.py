"""The table of workers: role, load, KV and state, with a cursor that the actions refer to."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.style import Style
from textual import events as textual_events

from prorsa.console.components.charts import bar, sparkline
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import ROLE_LETTERS, STYLES, Line, Look, fg, fit
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count, percent, ratio, span
from prorsa.events import WorkerView

SORTS: Final = ("id", "role", "KV", "queue")
_SORTED_COLUMN: Final = {"id": "worker", "role": "role", "KV": "kv", "queue": "queue"}
_OLD_TELEMETRY_S = 5.0
_SELECTED: Final = Style(bgcolor="#1F2A36")
_HEAD: Final = Style(color="#8792A0", underline=False, bold=True)

Piece = tuple[str, str | Style]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, its width, and what it says of a worker. Columns of low ``rank`` come first to a screen."""

    title: str
    width: int
    rank: int
    say: Callable[["WorkerTable", WorkerView, int], Sequence[Piece]]
    align: Literal["left", "right"] = "left"
    stretch: int = 0
    """How many cells it may grow by, where there is room."""


def _say_id(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    return [(fit(worker.worker_id, width, table.look), "strong")]


def _say_role(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    letter = ROLE_LETTERS[worker.role]
    pinned: Piece = ("*", "warning") if worker.pinned else (" ", "text")
    if worker.to_role is not None and worker.to_role != worker.role:
        to = worker.to_role
        return [
            pinned,
            (letter, worker.role),
            (f" {table.look.glyphs.arrow} ", "muted"),
            (fit(f"{ROLE_LETTERS[to]}", width - 5, table.look), to),
        ]
    return [pinned, (fit(f"{letter} {worker.role}", width - 1, table.look), worker.role)]


def _say_state(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    if worker.state == "serving":
        return [(fit(worker.state, width, table.look), "muted")]
    if worker.state in ("dead", "quarantined"):
        return [(fit(f"! {worker.state}", width, table.look), "critical")]
    return [(fit(worker.state, width, table.look), "warning")]


def _say_kv(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    used = ratio(worker.kv_used, worker.kv_capacity)
    number = fit(percent(used), 4, table.look, align="right")
    style = "critical" if used is not None and used >= 0.95 else "text"
    colour = "faint" if used is None else worker.role
    return [(bar(used, width - 5, table.look), _track(colour)), (" ", "text"), (number, style)]


def _track(role: str) -> Style:
    return STYLES[role] + Style(bgcolor="#1B232C")


def _say_trend(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    points = list(table.model.kv_history.get(worker.worker_id, ()))[-width:]
    return [(fit(sparkline(points, 1.0, table.look), width, table.look, align="right"), worker.role)]


def _number(read: Callable[[WorkerView], str], style: str = "text") -> Callable[..., Sequence[Piece]]:
    def say(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
        text = read(worker)
        known = text != count(None)
        return [(fit(text, width, table.look, align="right"), style if known else "faint")]

    return say


def _say_age(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    old = worker.age_s is not None and worker.age_s > _OLD_TELEMETRY_S
    return [(fit(span(worker.age_s), width, table.look, align="right"), "warning" if old else "muted")]


def _say_pin(table: "WorkerTable", worker: WorkerView, width: int) -> Sequence[Piece]:
    if worker.pinned:
        return [(fit(f"pinned {worker.pinned}", width, table.look), "warning")]
    if worker.flippable is False:
        return [(fit("not flippable", width, table.look), "muted")]
    return [(" " * width, "text")]


COLUMNS: Final = (
    Column("WORKER", 7, 0, _say_id),
    Column(" ROLE", 10, 0, _say_role),
    Column("STATE", 11, 1, _say_state),
    Column("KV", 10, 1, _say_kv, stretch=14),
    Column("KV TREND", 14, 6, _say_trend, stretch=16),
    Column("BUSY", 4, 2, _number(lambda worker: percent(worker.busy)), align="right"),
    Column("QUEUE", 6, 3, _number(lambda worker: count(worker.queued)), align="right"),
    Column("RUN", 4, 3, _number(lambda worker: count(worker.running)), align="right"),
    Column("PRE/S", 5, 4, _number(lambda worker: count(worker.prefill_tokens_per_s)), align="right"),
    Column("OUT/S", 5, 4, _number(lambda worker: count(worker.output_tokens_per_s)), align="right"),
    Column("AGE", 6, 7, _say_age, align="right"),
    Column("EPOCH", 5, 8, _number(lambda worker: str(worker.epoch), "muted"), align="right"),
    Column("HELD", 14, 9, _say_pin),
)
_GAP = 2


def layout(width: int, id_cells: int = 7) -> list[tuple[Column, int]]:
    """The columns that fit into ``width`` and how wide each is; spare room goes to those that stretch.

    ``id_cells`` is the longest worker id; ids get up to 22 cells, and what they take beyond 7 counts first.
    """
    extra = {"WORKER": min(max(id_cells, 7), 22) - 7}
    room = width - 2 + _GAP - extra["WORKER"]
    chosen: list[Column] = []
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.width + _GAP > room:
            break
        chosen.append(column)
        room -= column.width + _GAP
    for column in chosen:
        if column.stretch:
            extra[column.title] = min(column.stretch, room)
            room -= extra[column.title]
    return [(column, column.width + extra.get(column.title, 0)) for column in COLUMNS if column in chosen]


class WorkerTable(Drawing, can_focus=True):
    """The workers of the latest view. The cursor stays on its worker whatever the order."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="workers", classes="panel")
        self.sort_by = SORTS[0]
        self.selected_id: str | None = None
        self._first_row = 0

    def rows(self) -> list[WorkerView]:
        """The workers in the order they are shown."""
        workers = [] if self.model.view is None else list(self.model.view.workers)
        workers.sort(key=lambda worker: _natural(worker.worker_id))
        if self.sort_by == "role":
            workers.sort(key=lambda worker: ("prefill", "decode", "mixed").index(worker.role))
        elif self.sort_by == "KV":
            workers.sort(key=lambda worker: -(ratio(worker.kv_used, worker.kv_capacity) or -1.0))
        elif self.sort_by == "queue":
            workers.sort(key=lambda worker: -(-1 if worker.queued is None else worker.queued))
        return workers

    @property
    def selected(self) -> WorkerView | None:
        """The worker under the cursor."""
        rows = self.rows()
        return rows[self._index(rows)] if rows else None

    def _index(self, rows: Sequence[WorkerView]) -> int:
        ids = [worker.worker_id for worker in rows]
        return ids.index(self.selected_id) if self.selected_id in ids else 0

    def move(self, steps: int) -> None:
        """Move the cursor; it stops at both ends."""
        rows = self.rows()
        if rows:
            self.select(min(max(self._index(rows) + steps, 0), len(rows) - 1))

    def select(self, row: int) -> None:
        """Put the cursor on a row; -1 is the last."""
        rows = self.rows()
        if rows:
            self.selected_id = rows[row].worker_id
            self.redraw()

    def sort(self) -> None:
        """Sort by the next of :data:`SORTS`."""
        self.sort_by = SORTS[(SORTS.index(self.sort_by) + 1) % len(SORTS)]
        self.redraw()

    def content_lines(self) -> int:
        """A row a worker and the header."""
        return 1 + (0 if self.model.view is None else len(self.model.view.workers))

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The header and the rows around the cursor."""
        rows = self.rows()
        columns = layout(width, max((len(worker.worker_id) for worker in rows), default=0))
        room = max(height - 1, 1)
        cursor = self._index(rows) if rows else 0
        self._first_row = min(max(self._first_row, cursor - room + 1), cursor, max(len(rows) - room, 0))
        shown = rows[self._first_row : self._first_row + room]
        return [self._header(columns), *(self._row(worker, columns, width, rows[cursor]) for worker in shown)]

    def _header(self, columns: Sequence[tuple[Column, int]]) -> Line:
        line = self.line().gap()
        for column, width in columns:
            title = column.title + (
                self.look.glyphs.down if column.title.strip().lower() == self.sort_by.lower() else ""
            )
            line.add(fit(title, width, self.look, align=column.align), _HEAD).gap(_GAP)
        return line

    def _row(self, worker: WorkerView, columns: Sequence[tuple[Column, int]], width: int, cursor: WorkerView) -> Line:
        selected = worker.worker_id == cursor.worker_id
        line = self.line().add(self.look.glyphs.cursor if selected else " ", fg("#B48EF0"))
        for column, cells in columns:
            for text, style in column.say(self, worker, cells):
                line.add(text, style)
            line.gap(_GAP)
        line.to(width)
        if selected:
            line.segments = [segment._replace(style=_SELECTED + segment.style) for segment in line.segments]
        return line

    def on_click(self, event: textual_events.Click) -> None:
        """Select the worker that was clicked."""
        offset = event.get_content_offset(self)
        if offset is not None and 1 <= offset.y <= len(self.rows()) - self._first_row:
            self.select(self._first_row + offset.y - 1)

    def on_mouse_scroll_down(self) -> None:
        """Move the cursor down."""
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the cursor up."""
        self.move(-1)


def _natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """A key under which ``w2`` comes before ``w10``."""
    return tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", text)
    )
