"""What reactive policies go by: sums over load reports and the router's queue. None where nobody has told."""

from collections.abc import Iterable

from prorsa.cluster.registry import Worker
from prorsa.control.policies.base import Context
from prorsa.events import Role


def workers_of(context: Context, role: Role) -> list[Worker]:
    """The serving workers of a role."""
    return [worker for worker in context.workers if worker.role == role]


def queued_prefill_tokens(context: Context) -> float | None:
    """Uncached prompt tokens that wait for prefill, in the router and at the workers.

    By the router's events; where there are none (a pool behind a stock router), by what the workers say themselves.
    """
    if context.waiting.known:
        return float(context.waiting.uncached_tokens)
    reports = [worker.load.queued_tokens if worker.load else None for worker in workers_of(context, "prefill")]
    return _sum(reports)


def decode_kv_use(context: Context) -> float | None:
    """KV that decode holds, and the prompts that the router holds back, by decode's capacity; may exceed 1.

    In SGLang a request reserves its KV on decode before it is prefilled, so what waits in the router waits for both.
    """
    decoders = workers_of(context, "decode")
    used = _sum(worker.load.kv_used if worker.load else None for worker in decoders)
    capacity = _sum(worker.kv_capacity for worker in decoders)
    if used is None or not capacity:
        return None
    return (used + context.waiting.held_prompt_tokens) / capacity


def decode_kv_held(context: Context) -> float | None:
    """KV that decode holds by decode's capacity; at most 1."""
    decoders = workers_of(context, "decode")
    used = _sum(worker.load.kv_used if worker.load else None for worker in decoders)
    capacity = _sum(worker.kv_capacity for worker in decoders)
    return None if used is None or not capacity else used / capacity


def token_time_s(worker: Worker) -> float | None:
    """Seconds between two tokens of one request on a decode worker, over its last report; None where none is known."""
    if worker.load is None or worker.rates is None or not worker.load.running:
        return None
    rate = worker.rates.output_tokens_per_s
    return worker.load.running / rate if rate else None


def output_tokens_per_s(context: Context) -> float | None:
    """Output tokens a second over all decode workers; None unless each has told."""
    return _sum(worker.rates.output_tokens_per_s if worker.rates else None for worker in workers_of(context, "decode"))


def prefill_wait_s(context: Context) -> float | None:
    """Seconds that the present prefill workers take for what waits."""
    queued, rate = queued_prefill_tokens(context), prefill_tokens_per_s(context)
    count = len(workers_of(context, "prefill"))
    return None if queued is None or not rate or not count else queued / (rate * count)


def prefill_tokens_per_s(context: Context) -> float | None:
    """Prefill rate of one busy worker, for requests such as those that wait."""
    waiting = context.waiting
    new, prefix = waiting.mean_uncached_tokens, waiting.mean_prefix_tokens
    return context.cost.prefill_tokens_per_s(new or float(_TYPICAL_TOKENS), prefix or 0.0)


_TYPICAL_TOKENS = 8192
"""Size of a request where none waits that could tell: SGLang's default chunk."""


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is unknown or there is none."""
    known = list(values)
    if not known:
        return None
    total = 0.0
    for value in known:
        if value is None:
            return None
        total += value
    return total
