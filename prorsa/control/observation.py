"""What a learned policy sees: a fixed number of features, whatever the size of the pool.

Demand and queues are given in workers or in seconds of work, splits as shares of the pool, so that eight plain workers
and sixty-four of eight ranks each look alike where they are alike. Whatever has no natural bound is squashed by
``x / (1 + x)``. What is not known reads 0, beside a flag that says so. ``VERSION`` changes with the list.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.clock import seconds
from prorsa.control.policies.base import Context
from prorsa.control.policies.signals import decode_kv_held, workers_of
from prorsa.forecast.frame import Frame

VERSION: Final = 1
"""Version of the observation; a policy file says for which one it was trained."""

HORIZONS_S: Final = (5.0, 15.0, 30.0, 60.0)

_HEAD: Final = {
    "known": "1 where there is a forecast, a prefill rate and a KV capacity, else 0, and all demand reads 0",
    "prefill_share": "workers that will be prefill once the flips under way have ended, of the pool",
    "switching_share": "workers in a flip, of the pool",
    "room_up": "workers that bounds leave to become prefill, of the pool",
    "room_down": "workers that bounds leave to become decode, of the pool",
    "pool": "log2 of the workers / 10",
    "moved": "1 / (1 + minutes since a worker last changed its role); 0 before the first change",
    "cold": "1 where a flip loses the worker's prefix cache",
    "shared": "1 where a shared store holds every prefix",
    "backlog": "seconds that the present prefill workers take for what waits, squashed at 10 s",
    "queue": "requests that wait, by the live trajectories",
    "decoding": "requests that decode, by the live trajectories",
    "kv_held": "KV that decode holds, by its capacity",
    "step": "seconds between two tokens of a request, squashed at 0.1 s",
    "fresh": "uncached tokens of the next requests, by their prompts",
    "prompt": "prompt of the next requests, by the KV of a worker, squashed at 0.05",
    "output": "tokens of an answer, squashed at 1,000",
    "contexts": "KV that the contexts of all live trajectories take, by that of the prefill workers, squashed at 1",
}
_BY_HORIZON: Final = {
    "prefill_need": "prefill workers that the forecast's p50 keeps busy over the horizon, of the pool",
    "prefill_need_high": "the same by the p90",
    "decode_need": "decode workers whose KV the forecast's p90 fills within the horizon, of the pool",
}

FEATURES: Final[dict[str, str]] = _HEAD | {
    f"{name}_{horizon_s:g}s": text for horizon_s in HORIZONS_S for name, text in _BY_HORIZON.items()
}
"""Name and meaning of each feature, in order."""


@dataclass(frozen=True, slots=True)
class _Known:
    frame: Frame
    kv_capacity: int
    prefill_tokens_per_s: float


def observe(context: Context) -> NDArray[np.float32]:
    """The features of a context, in the order of :data:`FEATURES`: each finite, from 0 to 4."""
    values = dict.fromkeys(FEATURES, 0.0) | _pool(context)
    known = _known(context)
    if known is not None:
        values |= _traffic(context, known)
        for horizon_s in HORIZONS_S:
            values |= _demand(context, known, horizon_s)
    return np.clip(np.array(list(values.values()), np.float32), 0.0, 4.0)


def _known(context: Context) -> _Known | None:
    frame = context.frame
    if frame is None or context.kv_capacity is None:
        return None
    rate = context.cost.prefill_tokens_per_s(frame.mean_new_tokens, frame.mean_prefix_tokens)
    return None if rate is None else _Known(frame, context.kv_capacity, rate)


def _pool(context: Context) -> dict[str, float]:
    workers, bounds, prefill = context.bounds.workers, context.bounds, context.current.prefill
    since = [worker.role_since_ns for worker in context.workers if worker.role_since_ns is not None]
    minutes = seconds(context.t_ns - max(since)) / 60.0 if since else math.inf
    return {
        "prefill_share": prefill / workers,
        "switching_share": context.flips_under_way / workers,
        "room_up": max(bounds.high - prefill, 0) / workers,
        "room_down": max(prefill - bounds.low, 0) / workers,
        "pool": math.log2(workers) / 10.0,
        "moved": 1.0 / (1.0 + minutes),
        "cold": float(context.config.cache == "cold"),
        "shared": float(context.config.cache == "l3"),
        "kv_held": decode_kv_held(context) or 0.0,
    }


def _traffic(context: Context, known: _Known) -> dict[str, float]:
    frame = known.frame
    live = max(frame.live_trajectories, 1)
    prefillers = max(len(workers_of(context, "prefill")), 1)
    backlog = frame.backlog_tokens + frame.retry_backlog_tokens
    prompt = max(frame.mean_new_tokens + frame.mean_prefix_tokens, 1.0)
    token_s = 1.0 / frame.request_output_tokens_per_s if frame.request_output_tokens_per_s > 0.0 else 0.0
    return {
        "known": 1.0,
        "backlog": _squash(backlog / (prefillers * known.prefill_tokens_per_s), 10.0),
        "queue": frame.waiting_requests / live,
        "decoding": frame.decode_batch / live,
        "step": _squash(token_s, 0.1),
        "fresh": frame.mean_new_tokens / prompt,
        "prompt": _squash(prompt / known.kv_capacity, 0.05),
        "output": _squash(frame.mean_output_tokens, 1000.0),
        "contexts": _squash(live * prompt / (prefillers * known.kv_capacity), 1.0),
    }


def _demand(context: Context, known: _Known, horizon_s: float) -> dict[str, float]:
    workers = context.bounds.workers
    prefill = known.frame.get("prefill", horizon_s)
    kv = known.frame.get("kv_need", horizon_s)
    busy = workers * horizon_s * known.prefill_tokens_per_s
    middle = prefill.mean if prefill.p50 is None else prefill.p50
    return {
        f"prefill_need_{horizon_s:g}s": middle / busy,
        f"prefill_need_high_{horizon_s:g}s": (middle if prefill.p90 is None else prefill.p90) / busy,
        f"decode_need_{horizon_s:g}s": (kv.mean if kv.p90 is None else kv.p90) / (workers * known.kv_capacity),
    }


def _squash(value: float, half: float) -> float:
    return value / (value + half)
