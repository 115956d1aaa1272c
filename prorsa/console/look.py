"""Colours and characters of the console, and the line that everything is drawn on.

Prefill is blue and decode orange, two colours that stay apart under the three colour blindnesses; a letter, a shape or
a pattern always says the same thing as the colour does, so that the console reads without colour (``NO_COLOR``) and
without anything but ASCII.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from prorsa.console.text import UNKNOWN

PREFILL: Final = "#56B4E9"
DECODE: Final = "#E69F00"
MIXED: Final = "#CC79A7"
SWITCHING: Final = "#6B7684"
BACKGROUND: Final = "#0E1318"
PANEL: Final = "#141A21"
TEXT: Final = "#D5DCE4"
MUTED: Final = "#8792A0"
FAINT: Final = "#3A4450"
GOOD: Final = "#4CC38A"
WARNING: Final = "#F0E442"
CRITICAL: Final = "#FF6B5E"
BAND_PREFILL: Final = "#1D3F54"
BAND_DECODE: Final = "#4D3A10"

RoleKey = Literal["prefill", "decode", "mixed", "switching"]
ROLE_COLOURS: Final[dict[RoleKey, str]] = {
    "prefill": PREFILL,
    "decode": DECODE,
    "mixed": MIXED,
    "switching": SWITCHING,
}
ROLE_LETTERS: Final[dict[RoleKey, str]] = {"prefill": "P", "decode": "D", "mixed": "M", "switching": "~"}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of one mode; each entry has the same width in every mode."""

    ascii: bool
    unknown: str
    arrow: str
    ellipsis: str
    live: str
    up: str
    down: str
    times: str
    cursor: str
    rule: str
    levels: str
    """Sparkline levels, lowest first."""
    bar: str
    """Parts of a cell of a horizontal bar, smallest first; the last is a whole cell."""
    bar_rest: str
    band: str
    patterns: dict[RoleKey, str]
    """What fills a role's area where there is no colour."""


UNICODE: Final = Glyphs(
    ascii=False,
    unknown=UNKNOWN,
    arrow="→",
    ellipsis="…",
    live="●",
    up="▲",
    down="▼",
    times="×",
    cursor="▌",
    rule="─",
    levels="▁▂▃▄▅▆▇█",
    bar="▏▎▍▌▋▊▉█",
    bar_rest=" ",
    band="░",
    patterns={"prefill": "█", "decode": "░", "mixed": "▒", "switching": " "},
)
ASCII: Final = Glyphs(
    ascii=True,
    unknown="-",
    arrow=">",
    ellipsis="~",
    live="*",
    up="^",
    down="v",
    times="x",
    cursor=">",
    rule="-",
    levels="_.-=+*#@",
    bar="#",
    bar_rest=".",
    band=":",
    patterns={"prefill": "P", "decode": "d", "mixed": "m", "switching": "~"},
)
_TO_ASCII: Final = str.maketrans(
    {"–": "-", "→": ">", "…": "~", "×": "x", "·": "|", "−": "-", "─": "-", "≥": ">", "≤": "<", "●": "*"}
)


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw: which characters, and whether colours may carry areas."""

    glyphs: Glyphs = UNICODE
    colour: bool = True

    def plain(self, text: str) -> str:
        """``text`` in the characters of this look."""
        if not self.glyphs.ascii:
            return text
        return text.translate(_TO_ASCII).encode("ascii", "replace").decode()


def fg(colour: str, *, bold: bool = False) -> Style:
    """A style of one foreground colour."""
    return Style(color=colour, bold=bold or None)


STYLES: Final[dict[str, Style]] = {
    "text": fg(TEXT),
    "strong": fg(TEXT, bold=True),
    "muted": fg(MUTED),
    "faint": fg(FAINT),
    "good": fg(GOOD),
    "warning": fg(WARNING),
    "critical": fg(CRITICAL, bold=True),
    "prefill": fg(PREFILL),
    "decode": fg(DECODE),
    "mixed": fg(MIXED),
    "switching": fg(MUTED),
}


def badge(colour: str) -> Style:
    """Dark text on a filled ground, for the state of the link."""
    return Style(color=BACKGROUND, bgcolor=colour, bold=True)


class Line:
    """One line under construction: pieces of text with a style, and how wide they are by now."""

    __slots__ = ("look", "segments", "width")

    def __init__(self, look: Look) -> None:
        self.look = look
        self.segments: list[Segment] = []
        self.width = 0

    def add(self, text: str, style: str | Style = "text") -> "Line":
        """Append ``text``, translated into the characters of the look."""
        text = self.look.plain(text)
        if text:
            self.segments.append(Segment(text, STYLES[style] if isinstance(style, str) else style))
            self.width += cell_len(text)
        return self

    def gap(self, cells: int = 1) -> "Line":
        """Append blanks."""
        return self.add(" " * max(cells, 0))

    def extend(self, items: Iterable[tuple[str, Style | None]]) -> "Line":
        """Append cells of a raster as they are."""
        segments = cells(items)
        self.segments += segments
        self.width += sum(len(segment.text) for segment in segments)
        return self

    def to(self, column: int) -> "Line":
        """Append blanks up to ``column``."""
        return self.gap(column - self.width)

    def right(self, other: "Line", width: int) -> "Line":
        """Append ``other`` so that it ends at ``width``, if it fits with a blank before it; else leave it out."""
        if self.width + other.width + 1 <= width:
            self.to(width - other.width)
            self.segments += other.segments
            self.width += other.width
        return self

    def strip(self, width: int) -> Strip:
        """The line as a strip of exactly ``width`` cells."""
        return Strip(self.segments, self.width).adjust_cell_length(width)


def fit(text: str, width: int, look: Look, *, align: Literal["left", "right"] = "left") -> str:
    """``text`` in exactly ``width`` cells, cut with an ellipsis where it is longer."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)) + look.glyphs.ellipsis if width > 0 else ""
    pad = " " * (width - cell_len(text))
    return pad + text if align == "right" else text + pad


def fit_words(text: str, width: int, look: Look) -> str:
    """Like :func:`fit`, cut between two words where it is longer and the cut costs less than half of the room."""
    if cell_len(text) <= width:
        return fit(text, width, look)
    head = set_cell_size(text, max(width - 1, 0))
    if not text[len(head) :].startswith(" "):
        head = head[: head.rfind(" ")] if head.rfind(" ") > width // 2 else head
    return fit(head.rstrip(" ,;:") + look.glyphs.ellipsis, width, look)


def wrap(text: str, width: int) -> list[str]:
    """``text`` broken at blanks into lines of at most ``width`` cells; a longer word is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width or not line:
            line = joined
            continue
        lines.append(line)
        line = word
    return [*lines, line] if line else lines


def cells(items: Iterable[tuple[str, Style | None]]) -> list[Segment]:
    """Segments of a row of single cells, neighbours of one style joined."""
    segments: list[Segment] = []
    text, style = "", None
    for char, char_style in items:
        if char_style is not style and text:
            segments.append(Segment(text, style))
            text = ""
        text, style = text + char, char_style
    if text:
        segments.append(Segment(text, style))
    return segments
