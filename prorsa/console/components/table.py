"""A table of rows with a cursor, marks, a filter and an order: what every list of the console is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from rich.style import Style
from textual import events as textual_events

from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit
from prorsa.console.model import ConsoleModel

Row = TypeVar("Row")
Piece = tuple[str, str | Style]
SortKey = Callable[[Any], Any]

_GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: its title, its width, and what it says of a row. Columns of low ``rank`` come first to a screen."""

    title: str
    width: int
    rank: int
    say: Callable[[Row, int], Sequence[Piece]]
    align: Literal["left", "right"] = "left"
    stretch: int = 0
    """How many cells it may grow by, where there is room."""
    sort: str | None = None
    """The order that is marked at its title."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Words that must all be in a row's text; one that begins with ``!`` must not."""

    text: str = ""

    def matches(self, content: str) -> bool:
        """Whether a row with this text is shown; upper and lower case are alike."""
        content = content.lower()
        return all(
            word[1:] not in content if word.startswith("!") and len(word) > 1 else word in content
            for word in self.text.lower().split()
        )


class Table(Drawing, Generic[Row], can_focus=True):
    """Rows of the model, one a line. The cursor stays on its row whatever the order."""

    title = ""
    empty = "nothing yet"

    def __init__(self, model: ConsoleModel, look: Look, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(model, look, id=id, classes="panel table")
        self.filter = Filter()
        self.sort_by = next(iter(self.sorts()))
        self.selected_key: str | None = None
        self.marks: set[str] = set()
        self._first_row = 0
        self._shown: list[Row] | None = None

    # --- what a table says of itself ---------------------------------------------------------------------------------

    def all_rows(self) -> Sequence[Row]:
        """The rows in their own order."""
        raise NotImplementedError

    def columns(self) -> Sequence[Column[Row]]:
        """The columns, from left to right."""
        raise NotImplementedError

    def key_of(self, row: Row) -> str:
        """What tells a row from the others."""
        raise NotImplementedError

    def text_of(self, row: Row) -> str:
        """What a filter looks at."""
        raise NotImplementedError

    def sorts(self) -> Mapping[str, SortKey | None]:
        """Orders by name; None is the rows' own order. The first is the one to begin with."""
        return {"": None}

    def when_empty(self) -> str:
        """What is said where there is no row at all."""
        return self.empty

    def widths(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Widths that depend on the rows, by title."""
        del rows
        return {}

    # --- rows and cursor ---------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The rows that pass the filter, in the order that they are shown."""
        if self._shown is None:
            rows = [row for row in self.all_rows() if not self.filter.text or self.filter.matches(self.text_of(row))]
            key = self.sorts()[self.sort_by]
            if key is not None:
                rows.sort(key=key)
            self._shown = rows
        return self._shown

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        rows = self.rows()
        return rows[self._index(rows)] if rows else None

    def marked(self) -> list[Row]:
        """The marked rows that are there, whether or not the filter shows them."""
        return [row for row in self.all_rows() if self.key_of(row) in self.marks]

    def toggle_mark(self) -> None:
        """Mark the row under the cursor, or take its mark off, and go on to the next."""
        row = self.selected
        if row is not None:
            self.marks ^= {self.key_of(row)}
            self.move(1)
            self.redraw()

    def _index(self, rows: Sequence[Row]) -> int:
        for index, row in enumerate(rows):
            if self.key_of(row) == self.selected_key:
                return index
        return 0

    def move(self, steps: int) -> None:
        """Move the cursor; it stops at both ends."""
        rows = self.rows()
        if rows:
            self.select(min(max(self._index(rows) + steps, 0), len(rows) - 1))

    def select(self, row: int) -> None:
        """Put the cursor on a row; -1 is the last."""
        rows = self.rows()
        if rows:
            self.selected_key = self.key_of(rows[row])
            self.redraw()

    def sort(self) -> None:
        """Take the next order."""
        names = list(self.sorts())
        self.sort_by = names[(names.index(self.sort_by) + 1) % len(names)]
        self.redraw()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Draw again, with the filter and the number of rows in the title."""
        self._shown = None
        self.border_title = self.look.plain(self._title())
        super().redraw()

    def _title(self) -> str:
        title = self.title
        if self.filter.text:
            title += f" /{self.filter.text}: {len(self.rows())} of {len(self.all_rows())}"
        return title + (f" · {len(self.marks)} marked" if self.marks else "")

    def content_lines(self) -> int:
        """A line a row, and the header."""
        return 1 + max(len(self.rows()), 1)

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The header and the rows around the cursor."""
        rows = self.rows()
        columns = layout(self.columns(), width, self.widths(rows))
        if not rows:
            why = f"no row matches /{self.filter.text}" if self.filter.text else self.when_empty()
            return [self._header(columns), self.line().gap().add(fit(why, width - 2, self.look), "muted")]
        room = max(height - 1, 1)
        cursor = self._index(rows)
        self._first_row = min(max(self._first_row, cursor - room + 1), cursor, max(len(rows) - room, 0))
        shown = rows[self._first_row : self._first_row + room]
        current = self.key_of(rows[cursor])
        return [self._header(columns), *(self._row(row, columns, width, current) for row in shown)]

    def _header(self, columns: Sequence[tuple[Column[Row], int]]) -> Line:
        line = self.line().gap()
        for column, width in columns:
            sorted_by = column.sort is not None and column.sort == self.sort_by
            title = column.title + (self.look.glyphs.down if sorted_by else "")
            line.add(fit(title, width, self.look, align=column.align), "head").gap(_GAP)
        return line

    def _row(self, row: Row, columns: Sequence[tuple[Column[Row], int]], width: int, current: str) -> Line:
        key = self.key_of(row)
        selected, marked = key == current, key in self.marks
        line = self.line().add(
            self.look.glyphs.cursor if selected else self.look.glyphs.mark if marked else " ", "accent"
        )
        for column, cells in columns:
            for text, style in column.say(row, cells):
                line.add(text, "warning" if marked and column is columns[0][0] else style)
            line.gap(_GAP)
        line.to(width)
        if selected:
            ground = self.look.style("selected")
            line.segments = [
                segment._replace(style=ground if segment.style is None else ground + segment.style)
                for segment in line.segments
            ]
        return line

    # --- mouse -------------------------------------------------------------------------------------------------------

    def on_click(self, event: textual_events.Click) -> None:
        """Select the row that was clicked; a double click opens its details."""
        offset = event.get_content_offset(self)
        if offset is not None and 1 <= offset.y <= len(self.rows()) - self._first_row:
            self.select(self._first_row + offset.y - 1)
            if event.chain == 2:
                self.app.run_worker(self.app.run_action("do('details')"))

    def on_mouse_scroll_down(self) -> None:
        """Move the cursor down."""
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        """Move the cursor up."""
        self.move(-1)


def layout(
    columns: Sequence[Column[Row]], width: int, widths: Mapping[str, int] | None = None
) -> list[tuple[Column[Row], int]]:
    """The columns that fit into ``width`` and how wide each is; spare room goes to those that stretch.

    ``widths`` are those of columns that depend on what is in them; what they take beyond their own counts first.
    """
    extra = {title: max(cells, 0) for title, cells in (widths or {}).items()}
    own = {column.title: max(column.width, extra.get(column.title, 0)) for column in columns}
    room = width - 2 + _GAP
    chosen: list[Column[Row]] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if own[column.title] + _GAP > room:
            break
        chosen.append(column)
        room -= own[column.title] + _GAP
    for column in chosen:
        grown = min(column.stretch, room)
        own[column.title] += grown
        room -= grown
    return [(column, own[column.title]) for column in columns if column in chosen]


def cell(text: str, width: int, look: Look, style: str | Style = "text", *, right: bool = False) -> list[Piece]:
    """One piece of text that fills a column."""
    return [(fit(text, width, look, align="right" if right else "left"), style)]


def number(text: str, width: int, look: Look, style: str = "text") -> list[Piece]:
    """A number to the right of its column; one that is not known is faint."""
    known = text not in (look.glyphs.unknown, "–")
    return cell(text, width, look, style if known else "faint", right=True)
