"""The policies: pure functions from what is known to a wanted split, with the reason.

A policy wants; overrides and guards decide what comes of it. ``alternatives`` and ``inputs`` go into the decision
event as they are.
"""

from dataclasses import dataclass, field
from typing import Protocol

from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.solver import Bounds, Need, Solution, solve
from prorsa.errors import ConfigError
from prorsa.events import Alternative, Split
from prorsa.forecast.frame import Frame

POLICIES = ("analytic", "default", "static:P:D", "colocated")
"""The names that :func:`make_policy` takes; P and D stand for numbers."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy may look at.

    Attributes:
        current: the split once the flips under way have ended.
        bounds: how many workers may be prefill, by pins, flippability and the one-of-each guard.
        frame: the forecast as the policy is to see it; None where there is none (yet).
        cost: what one worker can do.
        kv_capacity: KV tokens of one worker (the smallest); None where no worker has told.
    """

    t_ns: int
    current: Split
    bounds: Bounds
    frame: Frame | None
    cost: CostModel
    kv_capacity: int | None
    config: ControlConfig


@dataclass(frozen=True, slots=True)
class Want:
    """The split that a policy wants.

    ``relief_s`` is what it hopes to save, where the policy can say: worker-seconds of the work of the decision horizon
    that the present split would leave undone and the wanted one would not.
    """

    split: Split
    reason: str
    inputs: dict[str, float | None] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    overloaded: bool = False
    relief_s: float | None = None


class Policy(Protocol):
    """Decides a split. ``own`` policies are subject to the economy guards; published baselines are not."""

    name: str
    own: bool
    needs_forecast: bool

    def decide(self, context: Context) -> Want:
        """The wanted split; never raises on a context that the controller can make."""
        ...

    def state(self) -> str:
        """A short text that differs when the policy would decide differently on the same context."""
        ...


class Static:
    """``static:P:D``: always the same split; ``colocated``: every worker mixed."""

    own = False
    needs_forecast = False

    def __init__(self, name: str, split: Split) -> None:
        self.name = name
        self.split = split

    def decide(self, context: Context) -> Want:
        """The fixed split, or the nearest to it when workers are missing."""
        if self.split.mixed:
            return Want(split=context.current, reason="every worker is mixed: there is no split to choose")
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


class Analytic:
    """The ratio formula over the forecast: prefill by throughput, decode by KV capacity with a margin."""

    own = True
    needs_forecast = True

    def __init__(self, name: str = "analytic") -> None:
        self.name = name

    def decide(self, context: Context) -> Want:
        """Solve for the forecast demand; without a forecast or a known capacity, the present split stays."""
        known = _known(context)
        if isinstance(known, str):
            return Want(split=context.current, reason=f"no {known} yet: the split stays")
        need, inputs = _need(known, context, context.config.horizon_s)
        solution = solve(need, context.bounds, context.current.prefill)
        return Want(
            split=Split(prefill=solution.prefill, decode=solution.decode),
            reason=_explain(need, solution, context),
            inputs=inputs,
            alternatives=solution.alternatives,
            overloaded=solution.case == "overload",
            relief_s=_relief_s(known, solution, context),
        )

    def state(self) -> str:
        """Nothing to remember."""
        return ""


def make_policy(name: str, workers: int | None = None) -> Policy:
    """The policy of a name as on the command line; ``workers``, where known, must be what a static split adds up to.

    Raises:
        ConfigError: for an unknown name or a split that does not add up; says what there is.
    """
    if name in ("analytic", "default"):
        return Analytic(name)
    if name == "colocated":
        return Static(name, Split(prefill=0, decode=0, mixed=workers or 1))
    if name.startswith("static:"):
        return Static(name, parse_split(name.removeprefix("static:"), workers, where=f"policy {name}"))
    raise ConfigError(f"no policy {name!r}; there are {', '.join(POLICIES)}")


def parse_split(text: str, workers: int | None, *, where: str) -> Split:
    """``P:D`` as a split.

    Raises:
        ConfigError: unless both are positive whole numbers that add up to ``workers`` (where that is known).
    """
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{where}: a split is P:D with at least one worker each, as in 4:4; got {text!r}")
    prefill, decode = map(int, parts)
    if workers is not None and prefill + decode != workers:
        raise ConfigError(f"{where}: {prefill} + {decode} is not the pool's {workers} workers; make it add up")
    return Split(prefill=prefill, decode=decode)


@dataclass(frozen=True, slots=True)
class _Known:
    frame: Frame
    kv_capacity: int
    prefill_tokens_per_s: float


def _known(context: Context) -> _Known | str:
    """What the formula needs, or the name of what is missing."""
    frame = context.frame
    if frame is None:
        return "forecast"
    if context.kv_capacity is None:
        return "KV capacity"
    rate = context.cost.prefill_tokens_per_s(frame.mean_new_tokens, frame.mean_prefix_tokens)
    return "prefill rate" if rate is None else _Known(frame, context.kv_capacity, rate)


def _need(known: _Known, context: Context, horizon_s: float) -> tuple[Need, dict[str, float | None]]:
    config = context.config
    prefill = known.frame.get("prefill", horizon_s)
    kv = known.frame.get("kv_need", horizon_s)
    demand_tokens = prefill.mean if prefill.p50 is None else prefill.p50
    kv_tokens = kv.mean if kv.p90 is None else kv.p90
    need = Need(
        prefill=demand_tokens / (horizon_s * known.prefill_tokens_per_s * config.prefill_utilisation),
        decode=kv_tokens * (1.0 + config.kv_margin) / known.kv_capacity,
    )
    inputs: dict[str, float | None] = {
        "prefill_demand_tokens": round(demand_tokens, 1),
        "kv_need_tokens": round(kv_tokens, 1),
        "prefill_tokens_per_s": round(known.prefill_tokens_per_s, 1),
        "kv_capacity_tokens": float(known.kv_capacity),
        "need_prefill": round(need.prefill, 4),
        "need_decode": round(need.decode, 4),
    }
    return need, inputs


def _relief_s(known: _Known, solution: Solution, context: Context) -> float:
    # A burst that the present split works off within the decision horizon is no reason to flip: what counts is what
    # would still be undone then.
    horizon_s = context.config.decision_horizon_s
    need, _ = _need(known, context, horizon_s)

    def undone_s(split: Split | Solution) -> float:
        return (max(0.0, need.prefill - split.prefill) + max(0.0, need.decode - split.decode)) * horizon_s

    return undone_s(context.current) - undone_s(solution)


def _explain(need: Need, solution: Solution, context: Context) -> str:
    asks = f"{context.config.horizon_s:g} s ahead ask for {need.prefill:.1f} prefill and {need.decode:.1f} decode"
    split = f"{solution.prefill}P:{solution.decode}D"
    match solution.case:
        case "slack":
            return f"{asks}: {split} has room, it stays"
        case "move":
            return f"{asks}: {split} is the nearest split that fits"
        case "overload":
            return f"{asks}, more than the pool has: {split} shares the shortage ({solution.load:.1f}x)"
