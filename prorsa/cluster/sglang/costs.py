"""What prefill and decode cost on a worker, from the counters that SGLang keeps anyway."""

from dataclasses import dataclass

from prorsa.cluster.sglang.replies import Loads, RankLoad


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs between two load reports; None where too little ran, or too much alike, to tell.

    Attributes:
        prefill_tokens_per_s: uncached prompt tokens in a second of prefill.
        step_ms: constant part of a decode step.
        step_ms_per_request: growth of a decode step with each request of the batch.
    """

    prefill_tokens_per_s: float | None = None
    step_ms: float | None = None
    step_ms_per_request: float | None = None


def costs_between(before: Loads, after: Loads) -> Costs:
    """Costs of what the worker did between two reports, over all its ranks.

    Decode: least squares of step time on batch size, from the sums in ``decode_moments``.
    Counters that went back belong to another process of the worker: nothing is known then.
    """
    tokens = _sum(after, "total_prefill_uncached_tokens") - _sum(before, "total_prefill_uncached_tokens")
    busy_us = _sum(after, "total_prefill_busy_us") - _sum(before, "total_prefill_busy_us")
    rate = tokens * 1e6 / busy_us if tokens > 0 and busy_us > 0 else None
    constant, slope = _step(_moments(before), _moments(after))
    return Costs(rate, constant, slope)


def _step(before: list[float], after: list[float]) -> tuple[float | None, float | None]:
    n, b, t_us, bb, bt_us, _ = (late - early for early, late in zip(before, after, strict=True))
    spread = n * bb - b * b
    if n < 2 or b <= 0 or t_us <= 0:
        return None, None
    if spread <= 1e-9 * n * bb:
        # Every step had the same batch: the line through one point is not known.
        return None, None
    slope = (n * bt_us - b * t_us) / spread
    return (t_us - slope * b) / n / 1e3, slope / 1e3


def _moments(loads: Loads) -> list[float]:
    total = [0.0] * 6
    for rank in loads.loads:
        total = [have + more for have, more in zip(total, rank.decode_moments or [0.0] * 6, strict=True)]
    return total


def _sum(loads: Loads, field: str) -> int:
    return sum(_value(rank, field) for rank in loads.loads)


def _value(rank: RankLoad, field: str) -> int:
    value = getattr(rank, field)
    return 0 if value is None else int(value)
