"""How the console writes numbers and times. ``None`` is unknown and is written as a dash, never as 0."""

import re

from prorsa.clock import seconds
from prorsa.errors import InputError

UNKNOWN = "–"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def count(value: float | None) -> str:
    """An amount in at most five characters: ``950``, ``41.2k``, ``1.25M``; ``6.7`` where it is no whole number."""
    if value is None:
        return UNKNOWN
    sign, value = ("-", -value) if value <= -0.005 else ("", abs(value))  # what is 0 when rounded has no sign
    for limit, divisor, unit in ((999.5, 1.0, ""), (999_500.0, 1e3, "k"), (999_500_000.0, 1e6, "M")):
        if value < limit:
            return f"{sign}{_three_digits(value / divisor)}{unit}"
    return f"{sign}{_three_digits(value / 1e9)}G"


def _three_digits(value: float) -> str:
    if value >= 99.95 or value == round(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}".rstrip("0").rstrip(".")


def percent(fraction: float | None) -> str:
    """A fraction as ``52%``."""
    if fraction is None:
        return UNKNOWN
    return f"{round(100 * fraction)}%"  # a whole number: as a float, a small negative share would be -0%


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``, or None where either is unknown or the whole is nothing."""
    if part is None or not whole:
        return None
    return part / whole


def span(value_s: float | None) -> str:
    """A length of time: ``4.2 s``, ``42 s``, ``12:05``, ``1:02:05``."""
    if value_s is None:
        return UNKNOWN
    if value_s < 60:
        return f"{value_s:.1f} s" if value_s < 9.95 else f"{value_s:.0f} s"
    minutes, rest = divmod(int(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def run_time(t_ns: int | None) -> str:
    """A moment on the run clock as ``01:02:05``."""
    if t_ns is None:
        return f"{UNKNOWN * 2}:{UNKNOWN * 2}:{UNKNOWN * 2}"
    minutes, rest = divmod(int(seconds(t_ns)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def speed(value: float) -> str:
    """A speed of the run clock: ``×20``, ``×0.5``."""
    return f"×{value:g}"


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``30m`` or ``1h30m``.

    Raises:
        InputError: if it is not one, or is zero.
    """
    compact = text.replace(" ", "").lower()
    parts = _DURATION.findall(compact)
    total_s = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not total_s or "".join(number + unit for number, unit in parts) != compact:
        raise InputError(f"{text!r} is no duration: write for example 90s, 30m or 1h30m")
    return total_s


def parse_split(text: str, workers: int) -> str:
    """A split ``P:D`` that ``workers`` workers can take, normalised.

    Raises:
        InputError: if it is not of that form, leaves a role empty, or does not add up to ``workers``.
    """
    found = re.fullmatch(r"\s*(\d+)\s*[pP]?\s*:\s*(\d+)\s*[dD]?\s*", text)
    if not found:
        raise InputError(
            f"{text!r} is no split: write P:D, for example {max(workers // 2, 1)}:{workers - workers // 2}"
        )
    prefill, decode = int(found[1]), int(found[2])
    if not prefill or not decode:
        raise InputError(f"{prefill}:{decode} leaves a role without a worker: each role needs one at least")
    if prefill + decode != workers:
        raise InputError(f"{prefill}:{decode} makes {prefill + decode} workers, but there are {workers}")
    return f"{prefill}:{decode}"
