"""What benchmarks/cliff.py measures: pools, systems, what keeps the contexts, and the points that come of it."""

from typing import Final, NamedTuple

import msgspec

from prorsa.cluster.scenario import CacheMode

COLOCATED: Final = "colocated"
TUNED: Final = ("colocated", "colocated:16", "colocated:64")
"""Decode steps between two prefill steps; the first is prefill first, as without tuning."""
ANALYTIC: Final = "analytic"
COLOCATED_TUNED: Final = "colocated, tuned"
STATIC_BEST: Final = "fixed split, best"
SYSTEMS: Final = {COLOCATED: (COLOCATED,), COLOCATED_TUNED: TUNED, ANALYTIC: (ANALYTIC,)}
"""Policies of which a system is the best; fixed splits are the pool's."""


class Pool(NamedTuple):
    """What the cliff is drawn for: a scenario, the fixed splits worth trying, concurrencies, and what is measured."""

    scenario: str
    title: str
    splits: tuple[str, ...]
    concurrencies: tuple[int, ...]
    warm_up_s: float
    window_s: float


POOLS: Final = {
    "dp": Pool(
        "v32-coding-async",
        "DeepSeek-V3.2, 8 workers of DP8",
        ("static:2:6", "static:3:5", "static:4:4", "static:5:3", "static:6:2", "static:7:1"),
        (512, 256, 128),
        1_500.0,
        1_500.0,
    ),
    "tp": Pool(
        "coding-async",
        "Qwen3-32B, 8 workers of TP2",
        ("static:1:7", "static:2:6", "static:3:5", "static:4:4", "static:5:3", "static:6:2", "static:7:1"),
        (32, 64, 96, 128),
        3_000.0,
        3_000.0,
    ),
}


class Keeping(NamedTuple):
    """What keeps a worker's contexts: its host tier in multiples of HBM, and what a flip does to its cache."""

    tier: int
    cache: CacheMode


FIXED_KEEPING: Final = (Keeping(0, "retained"), Keeping(1, "retained"), Keeping(4, "retained"), Keeping(0, "l3"))
FLIPPED_KEEPING: Final = (*FIXED_KEEPING, Keeping(0, "cold"))
KINDS: Final = {
    "fixed": ((COLOCATED, COLOCATED_TUNED, STATIC_BEST), FIXED_KEEPING),
    "adaptive": ((ANALYTIC,), FLIPPED_KEEPING),
}
"""What is measured of the systems whose workers keep their roles, and of that which flips them."""

Key = tuple[str, str, int, str, int]


class Point(msgspec.Struct, frozen=True):
    """A system at a concurrency, by what keeps the contexts.

    Attributes:
        policy: what the system was here: the tuned settings, or the best split.
        tokens_per_s: output tokens a second.
        again: share of the computed prefill that had been computed before.
        flips: in the window.
    """

    pool: str
    system: str
    tier: int
    cache: CacheMode
    concurrency: int
    policy: str
    tokens_per_s: float
    again: float
    flips: int

    @property
    def key(self) -> Key:
        """What the point is of."""
        return self.pool, self.system, self.tier, self.cache, self.concurrency
