"""Policies that flip nothing: a fixed split, colocated workers, and a plan that somebody else makes."""

from typing import Final

from prorsa.control.policies.base import Context, Want
from prorsa.errors import ConfigError
from prorsa.events import Split

COLOCATED_TUNED: Final = "colocated:tuned"
CLAIRVOYANT: Final = "clairvoyant"
ROLLOUTS: Final = 300
"""What ``clairvoyant`` tries over a run, about, where its name says nothing else."""


class Static:
    """``static:P:D``: always the same split."""

    economy = False
    flips = False
    needs_forecast = False
    needs_events = False

    def __init__(self, name: str, split: Split) -> None:
        self.name = name
        self.split = split

    def decide(self, context: Context) -> Want:
        """The fixed split, or the nearest to it when workers are missing."""
        bounds = context.bounds
        prefill = min(max(self.split.prefill, bounds.low), bounds.high)
        split = Split(prefill=prefill, decode=bounds.workers - prefill)
        reason = f"fixed at {self.split}"
        if split != self.split:
            reason += f", which {bounds.workers} workers cannot be: nearest is {split}"
        return Want(split=split, reason=reason)

    def state(self) -> str:
        """Nothing to remember."""
        return ""


class Colocated:
    """``colocated``, ``colocated:N``, ``colocated:N:CHUNK``: every worker does both; there is nothing to decide.

    Attributes:
        prefill_interval: decode steps at least between two prefill steps while requests run; 0 for prefill first.
        chunk_tokens: prefill budget of a step and rank; None is the profile's.
    """

    economy = False
    flips = False
    needs_forecast = False
    needs_events = False

    def __init__(self, name: str, prefill_interval: int = 0, chunk_tokens: int | None = None) -> None:
        self.name = name
        self.prefill_interval = prefill_interval
        self.chunk_tokens = chunk_tokens

    def decide(self, context: Context) -> Want:
        """The present split stays."""
        return Want(split=context.current, reason="every worker is mixed: there is no split to choose")

    def state(self) -> str:
        """Nothing to remember."""
        return ""


class Planned:
    """``clairvoyant``, ``clairvoyant:N``: a plan made elsewhere, by somebody who may know the future.

    Attributes:
        plan: splits wanted from a time on (run seconds, ascending); before the first the present split stays.
    """

    economy = False
    flips = True
    needs_forecast = False
    needs_events = False

    def __init__(self, name: str, plan: tuple[tuple[float, Split], ...] = ()) -> None:
        self.name = name
        self.plan = plan

    def decide(self, context: Context) -> Want:
        """The split of the plan's last entry that has come."""
        now_s = context.t_ns / 1e9
        due = [split for from_s, split in self.plan if from_s <= now_s]
        return Want(split=due[-1] if due else context.current, reason="planned with the true future")

    def state(self) -> str:
        """The plan."""
        return str(self.plan)


def parse_split(text: str, workers: int | None, *, where: str) -> Split:
    """``P:D`` as a split.

    Raises:
        ConfigError: unless both are positive whole numbers that add up to ``workers`` (where that is known).
    """
    parts = text.split(":")
    if len(parts) != 2 or not all(_is_positive(part) for part in parts):
        raise ConfigError(f"{where}: a split is P:D with at least one worker each, as in 4:4; got {text!r}")
    prefill, decode = map(int, parts)
    if workers is not None and prefill + decode != workers:
        raise ConfigError(f"{where}: {prefill} + {decode} is not the pool's {workers} workers; make it add up")
    return Split(prefill=prefill, decode=decode)


def parse_colocated(name: str) -> Colocated:
    """``colocated``, ``colocated:N`` or ``colocated:N:CHUNK``.

    Raises:
        ConfigError: for anything else.
    """
    parts = name.split(":")[1:]
    interval, chunk = [*parts, "0"][0], parts[1] if len(parts) > 1 else None
    fits = len(parts) <= 2 and (interval == "0" or _is_positive(interval)) and (chunk is None or _is_positive(chunk))
    if not fits:
        raise ConfigError(
            f"policy {name}: give colocated:N or colocated:N:CHUNK with N decode steps between two prefill steps and "
            "CHUNK tokens a prefill step, as in colocated:8:2048"
        )
    return Colocated(name, int(interval), int(chunk) if chunk else None)


def colocated_settings(name: str) -> Colocated | None:
    """The settings of a colocated policy by its name, before tuning the plain ones; None for any other policy."""
    if name == COLOCATED_TUNED:
        return Colocated(name)
    return parse_colocated(name) if name == "colocated" or name.startswith("colocated:") else None


def rollouts_of(name: str) -> int | None:
    """How many rollouts ``clairvoyant`` or ``clairvoyant:N`` may make, about; None for any other policy.

    Raises:
        ConfigError: unless N is a positive whole number.
    """
    base, colon, count = name.partition(":")
    if base != CLAIRVOYANT:
        return None
    if colon and not _is_positive(count):
        raise ConfigError(f"policy {name}: give clairvoyant:N with the number of rollouts, as in clairvoyant:100")
    return int(count) if colon else ROLLOUTS


def _is_positive(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
