"""Colours and characters of the console, and the line that everything is drawn on.

Prefill is blue and decode orange, two colours that stay apart under the three colour blindnesses; a letter, a shape or
a pattern always says the same thing as the colour does, so that the console reads without colour (``NO_COLOR``) and
without anything but ASCII. There are a dark and a light palette, and a Textual theme of each.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from prorsa.console.text import UNKNOWN

RoleKey = Literal["prefill", "decode", "mixed", "switching"]
ROLE_LETTERS: Final[dict[RoleKey, str]] = {"prefill": "P", "decode": "D", "mixed": "M", "switching": "~"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The colours of one theme."""

    name: str
    dark: bool
    background: str
    panel: str
    raised: str
    """Ground of the row under the cursor and of fields."""
    track: str
    """Ground of bars."""
    text: str
    muted: str
    faint: str
    prefill: str
    decode: str
    mixed: str
    switching: str
    band_prefill: str
    band_decode: str
    good: str
    warning: str
    critical: str
    accent: str
    ink: str
    """Text on a ground of any of the colours above."""

    def role(self, role: RoleKey) -> str:
        """The colour of a role."""
        return {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed, "switching": self.switching}[role]

    def theme(self) -> Theme:
        """The same colours for what Textual draws."""
        return Theme(
            name=self.name,
            primary=self.prefill,
            secondary=self.decode,
            accent=self.accent,
            foreground=self.text,
            background=self.background,
            surface=self.panel,
            panel=self.raised,
            success=self.good,
            warning=self.warning,
            error=self.critical,
            dark=self.dark,
            variables={"muted": self.muted, "faint": self.faint, "raised": self.raised},
        )


DARK: Final = Palette(
    name="prorsa-dark",
    dark=True,
    background="#0E1318",
    panel="#141A21",
    raised="#1F2A36",
    track="#1B232C",
    text="#D5DCE4",
    muted="#8792A0",
    faint="#3A4450",
    prefill="#56B4E9",
    decode="#E69F00",
    mixed="#CC79A7",
    switching="#6B7684",
    band_prefill="#1D3F54",
    band_decode="#4D3A10",
    good="#4CC38A",
    warning="#F0E442",
    critical="#FF6B5E",
    accent="#B48EF0",
    ink="#0E1318",
)
LIGHT: Final = Palette(
    name="prorsa-light",
    dark=False,
    background="#FAFBFC",
    panel="#EEF1F4",
    raised="#DCE4EC",
    track="#E3E8ED",
    text="#1B232C",
    muted="#5A6673",
    faint="#B4BEC8",
    prefill="#0072B2",
    decode="#B35900",
    mixed="#A0457D",
    switching="#7A8591",
    band_prefill="#BFDDEF",
    band_decode="#F3D9B8",
    good="#1A7F4E",
    warning="#8A6100",
    critical="#C4281A",
    accent="#6B3FC0",
    ink="#FFFFFF",
)
PALETTES: Final = {palette.name: palette for palette in (DARK, LIGHT)}


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
    mark: str
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
    mark="◆",
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
    mark="+",
    rule="-",
    levels="_.-=+*#@",
    bar="#",
    bar_rest=".",
    band=":",
    patterns={"prefill": "P", "decode": "d", "mixed": "m", "switching": "~"},
)
_TO_ASCII: Final = str.maketrans(
    {
        "–": "-",
        "→": ">",
        "…": "~",
        "×": "x",
        "·": "|",
        "−": "-",
        "─": "-",
        "≥": ">",
        "≤": "<",
        "●": "*",
        "◆": "+",
        "▲": "^",
        "▼": "v",
        "±": "~",
        "━": "=",
    }
)


@dataclass(slots=True)
class Look:
    """How to draw: which characters, whether colours may carry areas, and which colours.

    Every widget of a console holds the same one: another palette shows at the next drawing.
    """

    glyphs: Glyphs = UNICODE
    colour: bool = True
    palette: Palette = DARK

    def plain(self, text: str) -> str:
        """``text`` in the characters of this look."""
        if not self.glyphs.ascii:
            return text
        return text.translate(_TO_ASCII).encode("ascii", "replace").decode()

    def style(self, name: str) -> Style:
        """The style of a meaning: ``text``, ``strong``, ``muted``, ``faint``, a severity or a role."""
        return styles(self.palette)[name]


def fg(colour: str, *, bold: bool = False) -> Style:
    """A style of one foreground colour."""
    return Style(color=colour, bold=bold or None)


@cache
def styles(palette: Palette) -> dict[str, Style]:
    """The styles by meaning."""
    return {
        "text": fg(palette.text),
        "strong": fg(palette.text, bold=True),
        "muted": fg(palette.muted),
        "faint": fg(palette.faint),
        "good": fg(palette.good),
        "info": fg(palette.text),
        "warning": fg(palette.warning),
        "critical": fg(palette.critical, bold=True),
        "accent": fg(palette.accent, bold=True),
        "prefill": fg(palette.prefill),
        "decode": fg(palette.decode),
        "mixed": fg(palette.mixed),
        "switching": fg(palette.muted),
        "head": Style(color=palette.muted, bold=True),
        "selected": Style(bgcolor=palette.raised),
        "track": Style(bgcolor=palette.track),
        "key": Style(color=palette.background, bgcolor=palette.muted, bold=True),
        "tab": Style(color=palette.ink, bgcolor=palette.accent, bold=True),
        "badge-good": badge(palette.good, palette),
        "badge-warning": badge(palette.warning, palette),
        "badge-critical": badge(palette.critical, palette),
        "badge-replay": badge(palette.accent, palette),
        "badge-muted": Style(color=palette.text, bgcolor=palette.faint, bold=True),
    }


def badge(colour: str, palette: Palette) -> Style:
    """Text on a filled ground, for a state."""
    return Style(color=palette.ink, bgcolor=colour, bold=True)


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
            self.segments.append(Segment(text, self.look.style(style) if isinstance(style, str) else style))
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
