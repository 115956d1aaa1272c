"""``analytic``: the ratio formula over the forecast, and what a change of the split would save by it."""

from dataclasses import dataclass

from prorsa.control.cost import GOES_ON_S
from prorsa.control.policies.base import Context, Want
from prorsa.control.solver import Need, Solution, solve
from prorsa.control.standing import Standing, Turns
from prorsa.events import Split
from prorsa.forecast.frame import Frame


class Analytic:
    """The ratio formula over the forecast: prefill by throughput, decode by KV capacity with a margin."""

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, name: str = "analytic") -> None:
        self.name = name
        self._standing = Standing()
        self._turns = Turns()

    def decide(self, context: Context) -> Want:
        """Solve for the forecast demand; without a forecast or a known capacity, the present split stays."""
        self._turns.update(context)
        known = _known(context)
        if isinstance(known, str):
            return Want(split=context.current, reason=f"no {known} yet: the split stays")
        standing_tokens = self._standing.update(context, known.frame.backlog_tokens)
        need, inputs = _need(known, context, context.config.horizon_s)
        solution = solve(need, context.bounds, context.current.prefill)
        wanted = Split(prefill=solution.prefill, decode=solution.decode)
        return Want(
            split=wanted,
            reason=_explain(need, solution, context),
            inputs=inputs | {"standing_tokens": round(standing_tokens, 1), "turns_doubt": round(self._turns.factor, 2)},
            alternatives=solution.alternatives,
            overloaded=solution.case == "overload",
            relief_s=_relief_s(known, wanted, context, standing_tokens) / self._turns.factor,
        )

    def state(self) -> str:
        """The backlogs and the moves of late."""
        return f"{self._standing.state()} {self._turns.state()}"


@dataclass(frozen=True, slots=True)
class _Known:
    frame: Frame
    kv_capacity: int
    prefill_tokens_per_s: float
    rank_prefill_tokens_per_s: float


def _known(context: Context) -> _Known | str:
    """What the formula needs, or the name of what is missing."""
    frame = context.frame
    if frame is None:
        return "forecast"
    if context.kv_capacity is None:
        return "KV capacity"
    rate = context.cost.prefill_tokens_per_s(frame.mean_new_tokens, frame.mean_prefix_tokens)
    if rate is None:
        return "prefill rate"
    profile = context.config.profile
    return _Known(frame, context.kv_capacity, rate, rate / (profile.ranks if profile else 1))


def _need(known: _Known, context: Context, horizon_s: float) -> tuple[Need, dict[str, float | None]]:
    config = context.config
    prefill = known.frame.get("prefill", horizon_s)
    kv = known.frame.get("kv_need", horizon_s)
    demand_tokens = prefill.mean if prefill.p50 is None else prefill.p50
    kv_tokens = max(kv.mean if kv.p90 is None else kv.p90, _wanted_kv_tokens(known, context, horizon_s))
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


def _wanted_kv_tokens(known: _Known, context: Context, horizon_s: float) -> float:
    """What decode would hold over the horizon had it room for all that the router holds back.

    A forecast of what decode will hold ends at what it can: at a split with too little decode it would never ask for
    more, while the prompts that wait for KV count as demand for prefill. A request holds its KV while it is prefilled
    and decoded; one after the other, so many fit into a horizon.
    """
    frame = known.frame
    held_s = frame.mean_new_tokens / known.rank_prefill_tokens_per_s
    if frame.request_output_tokens_per_s > 0.0:
        held_s += frame.mean_output_tokens / frame.request_output_tokens_per_s
    return frame.resident_kv_tokens + context.waiting.held_prompt_tokens * min(held_s / horizon_s, 1.0)


def relief_s(split: Split, context: Context) -> float | None:
    """Worker-seconds of work that the present split would leave undone within the decision horizon and ``split`` not.

    None without a forecast or a known capacity.
    """
    known = _known(context)
    return None if isinstance(known, str) else _relief_s(known, split, context)


def _relief_s(known: _Known, wanted: Split, context: Context, standing_tokens: float = 0.0) -> float:
    # A burst that the present split works off within the decision horizon is no reason to flip: what counts is what
    # would still be undone then, and what of the load goes on when the backlog is gone. What stands goes on too.
    horizon_s = context.config.decision_horizon_s
    need, _ = _need(known, context, horizon_s)
    bursts = max(known.frame.backlog_tokens - standing_tokens, 0.0)
    backlog = bursts / (horizon_s * known.prefill_tokens_per_s * context.config.prefill_utilisation)
    lasting = Need(prefill=max(need.prefill - backlog, 0.0), decode=need.decode)
    soon = _done(need, wanted) - _done(need, context.current)
    later = _done(lasting, wanted) - _done(lasting, context.current)
    return soon * horizon_s + later * GOES_ON_S


def _done(need: Need, split: Split) -> float:
    """Workers' worth of the need that a split gets done: a request needs both sides, the busier one holds it up."""
    return (need.prefill + need.decode) / max(need.load(split.prefill, split.decode), 1.0)


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
