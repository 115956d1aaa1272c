"""What moves or disturbs a generated workload over a run: mixes of classes, drifting tools, slow tools, cold images.

All of it goes by the index of a trajectory, which is its place in the order of dispatch, not by the time at which a
policy happens to get there: so a seed stays the same workload under every policy.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from prorsa.cluster.workloads.fitted import workload_names
from prorsa.cluster.workloads.limits import Floats, Ints


class MixPoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shares of the classes at trajectory ``at``; between two points they move linearly, beyond them they stay.

    ``shares`` are weights by the name of the class; two points at the same trajectory make a jump.
    """

    at: int
    shares: dict[str, float]


class DriftPoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By which factor the gaps of trajectory ``at`` are longer; between two points it moves linearly."""

    at: int
    factor: float


class SlowTools(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tool calls that hang: a ``share`` of the gaps take a Pareto-distributed time instead of their own, if longer.

    P(time > t) = (from_s / t)^alpha for t >= ``from_s``: with an ``alpha`` of 1 or less even the mean has no bound but
    the cap on gaps, which stands for the tools' timeout.
    """

    share: float
    from_s: float
    alpha: float


class SandboxBursts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Images that no node holds: blocks of ``block`` trajectories in a row share one, and pull it at the same time.

    With probability ``cold`` a block waits for its pull: a lognormal time (median ``pull_s``, 99th percentile
    ``pull_p99_s``), the last of the block as much as three times the first, as they share the registry's link.
    Classes without sandboxes pull nothing.
    """

    block: int
    cold: float
    pull_s: float
    pull_p99_s: float


class Shape(Struct, frozen=True, kw_only=True):
    """All of the above for one workload; the defaults leave it as it is."""

    mix: tuple[MixPoint, ...] = ()
    tool_drift: tuple[DriftPoint, ...] = ()
    slow_tools: SlowTools | None = None
    sandbox_bursts: SandboxBursts | None = None

    def problems(self) -> Iterator[str]:
        """What is wrong with it, a line each; nothing where it is right."""
        yield from _mix_problems(self.mix)
        yield from _order_problems("tool_drift", [point.at for point in self.tool_drift])
        for point in self.tool_drift:
            if not 0 < point.factor <= 1000:
                yield f"tool_drift at {point.at} has the factor {point.factor}: give one above 0, up to 1,000"
        if self.slow_tools is not None:
            yield from _slow_problems(self.slow_tools)
        if self.sandbox_bursts is not None:
            yield from _burst_problems(self.sandbox_bursts)


def shares_at(mix: Sequence[MixPoint], names: Sequence[str], index: Ints) -> Floats:
    """Shares float64[len(index), len(names)] of the classes ``names`` at the trajectories ``index``; rows sum to 1."""
    at = np.array([point.at for point in mix])
    weights = np.array([[point.shares.get(name, 0.0) for name in names] for point in mix])
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.stack([_linear(index, at, column) for column in shares.T], axis=1)


def factors_at(drift: Sequence[DriftPoint], index: Ints) -> Floats:
    """Factors float64[len(index)] on the gaps of the trajectories ``index``."""
    return _linear(index, np.array([point.at for point in drift]), np.array([point.factor for point in drift]))


def class_names(mix: Sequence[MixPoint]) -> tuple[str, ...]:
    """The classes of a mix, sorted."""
    return tuple(sorted({name for point in mix for name in point.shares}))


def _linear(index: Ints, at: Ints, values: Floats) -> Floats:
    """Linear between the points; at a jump the later point counts, from its trajectory on."""
    after = np.searchsorted(at, index, side="right")
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(at) - 1)
    width = np.maximum(at[after] - at[before], 1)
    share = np.clip((index - at[before]) / width, 0.0, 1.0)
    return np.asarray(values[before] + share * (values[after] - values[before]))


def _order_problems(name: str, at: Sequence[int]) -> Iterator[str]:
    if list(at) != sorted(at) or any(place < 0 for place in at):
        yield f"{name} is at {', '.join(map(str, at))}: give trajectories from 0 on, in order"


def _mix_problems(mix: Sequence[MixPoint]) -> Iterator[str]:
    yield from _order_problems("mix", [point.at for point in mix])
    known = workload_names()
    for point in mix:
        for name, share in point.shares.items():
            if name not in known:
                yield f"mix at {point.at} names {name!r}: give shares of {', '.join(known)}"
            if not (math.isfinite(share) and share >= 0):
                yield f"mix at {point.at} has {share} of {name}: give a share of 0 or more"
        if not sum(point.shares.values()) > 0:
            yield f"mix at {point.at} has no shares above 0: give at least one"


def _slow_problems(slow: SlowTools) -> Iterator[str]:
    if not 0 < slow.share <= 1:
        yield f"slow_tools.share is {slow.share}: give a share above 0, up to 1"
    if not 0 < slow.from_s <= 86_400:
        yield f"slow_tools.from_s is {slow.from_s}: give seconds above 0, up to a day"
    if not 0.1 <= slow.alpha <= 100:
        yield f"slow_tools.alpha is {slow.alpha}: give an exponent from 0.1 to 100"


def _burst_problems(bursts: SandboxBursts) -> Iterator[str]:
    if not 1 <= bursts.block <= 100_000:
        yield f"sandbox_bursts.block is {bursts.block}: give 1 to 100,000 trajectories"
    if not 0 < bursts.cold <= 1:
        yield f"sandbox_bursts.cold is {bursts.cold}: give a probability above 0, up to 1"
    if not 0 < bursts.pull_s <= bursts.pull_p99_s <= 86_400:
        yield (
            f"sandbox_bursts.pull_s is {bursts.pull_s} and pull_p99_s {bursts.pull_p99_s}: "
            "give seconds above 0, the second no shorter than the first"
        )
