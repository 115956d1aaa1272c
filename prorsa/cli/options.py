"""Parsing of what several commands take."""

import re
from collections.abc import Sequence
from typing import Final

from cyclopts import Token

from prorsa.errors import InputError

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
