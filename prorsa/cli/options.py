"""Parsing of what several commands take."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, Token

from prorsa.errors import InputError


@Parameter(name="*")
@dataclass(frozen=True)
class Looking:
    """Which run a command is about, and by which keys it is known there."""

    connect: Annotated[Path | None, Parameter(help="Run directory of the run; by default the newest live run.")] = None
    keys: Annotated[
        Path | None, Parameter(help="Key file, where the hub asks for one; by default what PRORSA_KEYS names.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Acting(Looking):
    """Who asks for something, and why."""

    reason: Annotated[str, Parameter(help="Why; it is kept in the journal.")]
    owner: Annotated[str | None, Parameter(help="Who acts; by default the user's name.")] = None
    request_id: Annotated[str | None, Parameter(help="Makes a repeat of this command safe.")] = None
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would come of it.")] = False
    as_json: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object to stdout.")] = False


Duration = float
"""Seconds, given as 90s, 30m or 2h."""

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(_type: object, tokens: Sequence[Token]) -> float:
    """A converter for durations: a number with s, m or h; bare numbers are seconds.

    Raises:
        InputError: for anything else, or a duration that is not positive.
    """
    text = tokens[0].value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise InputError(f"--for {text}: give a time above zero, as in 90s, 30m or 2h")
    return seconds


def journal_in(path: Path) -> Path:
    """The journal that a path means: itself, or that of the run directory that it is."""
    inside = path / "journal"
    return inside if inside.is_dir() and not (path / "manifest.json").exists() else path


def horizons(text: str) -> tuple[float, ...]:
    """Horizons in seconds, separated by commas.

    Raises:
        InputError: unless all are positive numbers.
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 < value <= 3600 for value in values):
        raise InputError(f"--horizon {text}: give seconds separated by commas, as in 5,15,30")
    return values


def seeds_of(seeds: Sequence[int] | None, span: str | None) -> tuple[int, ...]:
    """Seeds given one by one, or as a range FROM:TO without TO; seed 0 where neither is given. Each counts once.

    Raises:
        InputError: for a range that is none, and for both at once.
    """
    if span is None:
        return tuple(dict.fromkeys(seeds or (0,)))
    if seeds:
        raise InputError("--seed and --seeds: give one of them")
    match = re.fullmatch(r"(\d+):(\d+)", span)
    found = range(int(match[1]), int(match[2])) if match else range(0)
    if not found:
        raise InputError(f"--seeds {span}: give FROM:TO with FROM below TO, as in 0:5 for seeds 0 to 4")
    return tuple(found)
