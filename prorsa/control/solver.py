"""The ratio formula: prefill workers by throughput, decode workers by KV capacity, within the pool.

For a demand of ``prefill`` and ``decode`` workers (fractional), the *load* of a split P:D is
max(prefill / P, decode / D): the busier side's need per worker it has. A split fits where its load is at most 1.

- The present split fits: it stays (room to spare is no reason to move).
- Another fits: the one nearest to the present split, the less loaded one of two.
- None fits: the one with the least load, so that both sides fall short by the same share; the present split if it is
  within ``TOLERANCE`` of that, since moving would change nothing that matters.
"""

from dataclasses import dataclass
from typing import Final, Literal

from prorsa.events import Alternative, Split

TOLERANCE: Final = 0.05
"""Relative difference of loads below which two overloaded splits count as equally good."""

Case = Literal["slack", "move", "overload"]


@dataclass(frozen=True, slots=True)
class Need:
    """Workers that the demand asks for, as fractions of a worker; at least zero."""

    prefill: float
    decode: float

    def load(self, prefill: int, decode: int) -> float:
        """Load of a split: 1 is exactly full; infinite where a side that is needed has no worker."""
        return max(_ratio(self.prefill, prefill), _ratio(self.decode, decode))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many of the pool's workers may be prefill: at least ``low``, at most ``high``, of ``workers``."""

    workers: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen split, why, and what else there was (``cost`` of an alternative is its load)."""

    prefill: int
    decode: int
    case: Case
    load: float
    alternatives: tuple[Alternative, ...]


def solve(need: Need, bounds: Bounds, current_prefill: int) -> Solution:
    """Choose the number of prefill workers within ``bounds``, which must hold at least one choice."""
    assert bounds.low <= bounds.high, bounds
    choices = {prefill: need.load(prefill, bounds.workers - prefill) for prefill in range(bounds.low, bounds.high + 1)}
    current = min(max(current_prefill, bounds.low), bounds.high)
    chosen, case = _choose(choices, current)
    return Solution(
        prefill=chosen,
        decode=bounds.workers - chosen,
        case=case,
        load=choices[chosen],
        alternatives=tuple(
            Alternative(split=Split(prefill=prefill, decode=bounds.workers - prefill), cost=round(load, 4))
            for prefill, load in choices.items()
        ),
    )


def _choose(loads: dict[int, float], current: int) -> tuple[int, Case]:
    if loads[current] <= 1.0:
        return current, "slack"
    fitting = [prefill for prefill, load in loads.items() if load <= 1.0]
    if fitting:
        return min(fitting, key=lambda prefill: (abs(prefill - current), loads[prefill])), "move"
    least = min(loads.values())
    if loads[current] <= least * (1.0 + TOLERANCE):
        return current, "overload"
    return min(loads, key=lambda prefill: (loads[prefill], abs(prefill - current))), "overload"


def _ratio(need: float, have: int) -> float:
    if need <= 0.0:
        return 0.0
    return need / have if have else float("inf")
