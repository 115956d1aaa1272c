"""Rasters for the charts: pure functions from columns of values to rows of cells.

They are drawn here rather than by a plotting widget because a cell has to carry two things at once, the band of a
forecast as its ground and the actual as a line over it, because stacked areas have to tile without seams, and because
the same charts have to work in ASCII and without colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from rich.style import Style

from prorsa.console.history import DemandPoint
from prorsa.console.look import ROLE_LETTERS, Look, Palette, RoleKey, badge, fg
from prorsa.events import Split

Cell = tuple[str, Style | None]
Raster = list[list[Cell]]

STACK: Final[tuple[RoleKey, ...]] = ("prefill", "switching", "mixed", "decode")
"""Roles from the bottom of the split chart to its top."""

BLANK: Final[Cell] = (" ", None)
_STEPS = 8
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


@dataclass(frozen=True, slots=True)
class _Inks:
    """The styles of the areas in one palette: made once, since neighbouring cells of one style are joined."""

    ground: dict[RoleKey, Style]
    edge: dict[tuple[RoleKey, RoleKey], Style]
    alone: dict[RoleKey, Style]
    label: dict[RoleKey, Style]
    line: Style


@cache
def _inks(palette: Palette) -> _Inks:
    return _Inks(
        ground={role: Style(bgcolor=palette.role(role)) for role in STACK},
        edge={
            (below, above): Style(color=palette.role(below), bgcolor=palette.role(above))
            for below in STACK
            for above in STACK
        },
        alone={role: Style(color=palette.role(role)) for role in STACK},
        label={role: badge(palette.role(role), palette) for role in STACK},
        line=fg(palette.text, bold=True),
    )


def amounts(split: Split) -> list[tuple[RoleKey, int]]:
    """Workers by role, in the order of :data:`STACK`."""
    by_role = {"prefill": split.prefill, "switching": split.switching, "mixed": split.mixed, "decode": split.decode}
    return [(role, by_role[role]) for role in STACK]


def split_raster(columns: Sequence[Split | None], height: int, look: Look) -> Raster:
    """The split over time as stacked areas, prefill at the bottom; a column that is not known stays empty.

    The whole height is the largest number of workers in any column.
    """
    totals = [sum(amount for _, amount in amounts(split)) for split in columns if split is not None]
    whole = max(totals, default=0)
    stacks = [_stack(split, whole, height * _STEPS) if split is not None and whole else None for split in columns]
    draw = _stacked_cell if look.colour and not look.glyphs.ascii else _patterned_cell
    bottoms = range((height - 1) * _STEPS, -1, -_STEPS)
    return [[BLANK if stack is None else draw(stack, bottom, look) for stack in stacks] for bottom in bottoms]


def _stack(split: Split, whole: int, steps: int) -> list[tuple[RoleKey, int]]:
    """Each role with the step at which its area ends, from the bottom."""
    ends, reached = [], 0
    for role, amount in amounts(split):
        reached += amount
        if amount:
            ends.append((role, round(reached * steps / whole)))
    return ends


def _within(stack: Sequence[tuple[RoleKey, int]], bottom: int) -> list[tuple[RoleKey, int]]:
    """The roles inside the cell that begins at step ``bottom``, each with how many steps of it they take."""
    parts, at = [], bottom
    for role, end in stack:
        taken = min(end, bottom + _STEPS) - at
        if taken > 0:
            parts.append((role, taken))
            at += taken
    return parts


def _stacked_cell(stack: Sequence[tuple[RoleKey, int]], bottom: int, look: Look) -> Cell:
    parts, inks = _within(stack, bottom), _inks(look.palette)
    if not parts:
        return BLANK
    role, taken = parts[0]
    if taken == _STEPS:
        return " ", inks.ground[role]
    block = look.glyphs.levels[taken - 1]
    above = parts[1][0] if len(parts) > 1 else None
    return block, inks.alone[role] if above is None else inks.edge[role, above]


def _patterned_cell(stack: Sequence[tuple[RoleKey, int]], bottom: int, look: Look) -> Cell:
    parts = _within(stack, bottom)
    if not parts:
        return BLANK
    role, _ = max(parts, key=lambda part: part[1])
    return look.glyphs.patterns[role], _inks(look.palette).alone[role]


def ratio_cells(split: Split | None, width: int, look: Look) -> list[Cell]:
    """The split as one bar of ``width`` cells, every role with its letter; empty where it is not known."""
    total = 0 if split is None else sum(amount for _, amount in amounts(split))
    if split is None or not total or width <= 0:
        return [BLANK] * max(width, 0)
    row: list[Cell] = []
    reached = 0
    for role, amount in amounts(split):
        reached += amount
        length = round(reached * width / total) - len(row)
        row += _labelled(role, amount, length, look)
    return row


def _labelled(role: RoleKey, amount: int, length: int, look: Look) -> list[Cell]:
    """``length`` cells of a role, with as much of its name as they have room for."""
    letter = ROLE_LETTERS[role]
    name = "flipping" if role == "switching" else role
    label = next(
        (
            text
            for text in (f" {amount}{letter} {name} ", f" {amount}{letter} ", f"{amount}{letter}")
            if len(text) <= length
        ),
        letter,
    )
    if look.colour and not look.glyphs.ascii:
        return [(char, _inks(look.palette).label[role]) for char in label.center(length)[:length]]
    return [
        (char, _inks(look.palette).alone[role]) for char in label.center(length, look.glyphs.patterns[role])[:length]
    ]


def nice_ceiling(tokens: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is at least ``tokens``, and at least 1."""
    power = 10.0 ** math.floor(math.log10(max(tokens, 1.0)))
    return next((step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * power >= tokens), 10 * power)


def peak(points: Sequence[DemandPoint | None]) -> float:
    """The largest value of any point."""
    values = [value for point in points if point for value in (point.p50, point.p90, point.actual) if value is not None]
    return max(values, default=0.0)


def demand_raster(
    points: Sequence[DemandPoint | None], height: int, top: float, look: Look, *, colour: str, band: str
) -> Raster:
    """Forecast and actual in a field of ``len(points) / 2`` by ``height`` cells whose upper edge is ``top``.

    The ground is the band p10-p90, the coloured line the median, the bright line over both the actual. Without colour
    the band is a pattern and only the actual has a line; in ASCII a ``*``.
    """
    width = len(points) // 2
    if look.glyphs.ascii:
        return _ascii_demand(points[: 2 * width : 2], height, top, look)
    actuals = _line_dots([point.actual if point else None for point in points], height, top)
    if not look.colour:
        medians = [[0] * width for _ in range(height)]
    else:
        medians = _line_dots([point.p50 if point else None for point in points], height, top)
    ink = _Ink(colour, band, look)
    return [
        [
            ink.cell(actuals[row][column], medians[row][column], _halves_in_band(points[2 * column], row, height, top))
            for column in range(width)
        ]
        for row in range(height)
    ]


class _Ink:
    """The styles of one demand chart."""

    def __init__(self, colour: str, band: str, look: Look) -> None:
        self.look = look
        self.half = Style(color=band)
        self.ground = Style(bgcolor=band)
        line = _inks(look.palette).line
        self.actual = (line, line + self.ground)
        self.median = (Style(color=colour), Style(color=colour, bgcolor=band))

    def cell(self, actual: int, median: int, halves: tuple[bool, bool]) -> Cell:
        """A cell with these dots, whose upper and lower half are inside the band or not."""
        inside = any(halves) and self.look.colour
        if actual:
            return chr(_BRAILLE + actual), self.actual[inside]
        if median:
            return chr(_BRAILLE + median), self.median[inside]
        if not self.look.colour:
            return (self.look.glyphs.band, None) if any(halves) else BLANK
        if all(halves):
            return " ", self.ground
        return ("▀" if halves[0] else "▄", self.half) if inside else BLANK


def _halves_in_band(point: DemandPoint | None, row: int, height: int, top: float) -> tuple[bool, bool]:
    """Whether the middle of the upper half of a cell, and that of the lower half, lie between p10 and p90.

    A band thinner than half a cell still takes the half that its middle is in.
    """
    if point is None or point.p10 is None or point.p90 is None:
        return False, False
    scale = 2 * height / top
    low, high = point.p10 * scale, point.p90 * scale
    lowest = min(round(low), int((low + high) / 2))
    highest = max(round(high), int((low + high) / 2) + 1)
    lower_half = 2 * (height - row - 1)
    return lowest <= lower_half + 1 < highest, lowest <= lower_half < highest


def _line_dots(values: Sequence[float | None], height: int, top: float) -> list[list[int]]:
    """Braille dots of a line through ``values``, two to a cell; neighbours are joined by vertical strokes."""
    rows = [[0] * (len(values) // 2) for _ in range(height)]
    levels = height * len(_DOTS[0])
    before: int | None = None
    for index, value in enumerate(values[: len(values) // 2 * 2]):
        if value is None:
            before = None
            continue
        level = min(max(round((1 - value / top) * (levels - 1)), 0), levels - 1)
        start = level if before is None else before + (level > before) - (level < before)
        for at in range(min(start, level), max(start, level) + 1):
            rows[at // 4][index // 2] |= _DOTS[index % 2][at % 4]
        before = level
    return rows


def _ascii_demand(points: Sequence[DemandPoint | None], height: int, top: float, look: Look) -> Raster:
    rows: Raster = []
    ink = _inks(look.palette).line
    for row in range(height):
        line: list[Cell] = []
        for point in points:
            actual = None if point is None or point.actual is None else point.actual
            level = None if actual is None else min(max(round((1 - actual / top) * (height - 1)), 0), height - 1)
            inside = any(_halves_in_band(point, row, height, top))
            line.append(("*", ink) if level == row else ((look.glyphs.band, None) if inside else BLANK))
        rows.append(line)
    return rows


def sparkline(values: Sequence[float | None], top: float, look: Look) -> str:
    """One character a value, by its share of ``top``; a blank where it is not known."""
    levels = look.glyphs.levels
    last = len(levels) - 1
    return "".join(
        " " if value is None else levels[min(max(round(value / top * last), 0), last)] if top > 0 else levels[0]
        for value in values
    )


def bar(fraction: float | None, width: int, look: Look) -> str:
    """A horizontal bar of ``width`` cells; dashes where the fraction is not known."""
    glyphs = look.glyphs
    if fraction is None:
        return (glyphs.unknown * width)[:width]
    parts = len(glyphs.bar)
    filled = round(min(max(fraction, 0.0), 1.0) * width * parts)
    whole, part = divmod(filled, parts)
    text = glyphs.bar[-1] * whole + (glyphs.bar[part - 1] if part else "")
    return text + glyphs.bar_rest * (width - len(text))
