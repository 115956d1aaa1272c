"""How far the fluid model has been off of late: in what workers prefill while they are busy, and in the output."""

import math
from typing import Final

import numpy as np

from prorsa.clock import seconds
from prorsa.control.fluid import Array, PoolState
from prorsa.control.policies.base import Context
from prorsa.events import WorkerLoad

_KEEP: Final = 0.85
"""Weight of the past at each decision: about half a minute of decisions every 5 s."""
_MOST: Final = 1.0
"""An error beyond this (a factor of e) counts as this much, so that one odd window is forgotten soon."""
_LEAST_TOKENS: Final = 100.0
"""A window in which fewer output tokens were expected says nothing."""
_SEEN_S: Final = 20.0
"""Seconds that must have been compared before the bias is known: fewer than that hold a handful of answers."""

_PACE_S: Final = 120.0
"""Busy seconds of prefill, of all workers, after which what was seen of their pace has lost 63 % of its weight."""
_PACE_LEAST_S: Final = 20.0
"""Busy seconds that the profile's own pace counts for at first."""
_SLOWEST: Final = 0.25
_FASTEST: Final = 1.25
"""Bounds of the pace: beyond them the counters are wrong rather than the profile."""

Counters = dict[str, int]
"""Output tokens of each worker since its start, where it has told."""


class Calibration:
    """Compares the output that was predicted for the windows between decisions with what came.

    What is compared are sums over windows, each forgotten exponentially: what is off one way counts, not what scatters.
    """

    def __init__(self) -> None:
        self._predicted = 0.0
        self._came = 0.0
        self._seen_s = 0.0
        self._expected: tuple[int, Array] | None = None
        self._counters: Counters = {}

    @property
    def bias(self) -> float | None:
        """log(output / predicted) of late; None until enough has been compared."""
        return None if self._seen_s < _SEEN_S else self._log_ratio()

    @property
    def error(self) -> float:
        """The relative error either way; 0 until something has been compared."""
        return abs(self._log_ratio())

    def _log_ratio(self) -> float:
        if self._predicted <= 0.0:
            return 0.0
        return math.log(max(self._came / self._predicted, math.exp(-_MOST)))

    def state(self) -> str:
        """A short text that differs when anything here does."""
        return f"{self._predicted:.9g} {self._came:.9g} {self._seen_s:.9g}"

    def expect(self, context: Context, output_tokens_per_s: Array) -> None:
        """Note what the model predicts from now on, by second."""
        self._expected = context.t_ns, output_tokens_per_s
        self._counters = output_counters(context)

    def check(self, context: Context) -> None:
        """Compare with what has come since."""
        if self._expected is None:
            return
        since_ns, per_s = self._expected
        passed_s = round(seconds(context.t_ns - since_ns))
        predicted = float(per_s[:passed_s].sum())
        came = output_since(self._counters, context)
        if came is not None and predicted >= _LEAST_TOKENS and passed_s <= len(per_s):
            came = min(came, math.exp(_MOST) * predicted)
            self._predicted = _KEEP * self._predicted + (1.0 - _KEEP) * predicted
            self._came = _KEEP * self._came + (1.0 - _KEEP) * came
            self._seen_s = min(self._seen_s + passed_s, _SEEN_S)


def output_counters(context: Context) -> Counters:
    """The counters now."""
    return {
        worker.worker_id: worker.load.output_tokens_total
        for worker in context.workers
        if worker.load is not None and worker.load.output_tokens_total is not None
    }


def output_since(before: Counters, context: Context) -> float | None:
    """Output tokens since then, of the workers that told then and now; None without any. A restart counts nothing."""
    now = output_counters(context)
    both = now.keys() & before.keys()
    return float(sum(max(now[worker] - before[worker], 0) for worker in both)) if both else None


class Pace:
    """What prefill workers compute while they are busy, in relation to what their profile says of so many requests.

    The profile takes the requests of a worker to be spread over its ranks at random. They are not: trajectories keep to
    the rank that has their prefix, prompts differ by orders of magnitude, and the ranks wait for each other.
    """

    def __init__(self) -> None:
        self._predicted_s = self._came_s = _PACE_LEAST_S
        self._seen: dict[str, WorkerLoad] = {}

    @property
    def value(self) -> float:
        """Tokens that are computed, by tokens that the profile says; 1 before any have been."""
        return min(max(self._came_s / self._predicted_s, _SLOWEST), _FASTEST)

    def state(self) -> str:
        """A short text that differs when anything here does."""
        return f"{self._predicted_s:.9g} {self._came_s:.9g}"

    def check(self, context: Context, known: PoolState) -> None:
        """Take what the prefill workers have done since the last decision; ``known`` is the pool by the profile."""
        loads = {
            worker.worker_id: worker.load for worker in context.workers if worker.role == "prefill" and worker.load
        }
        for worker_id, load in loads.items():
            before = self._seen.get(worker_id)
            if before is not None and before.epoch == load.epoch:
                self._take(before, load, known)
        self._seen = loads

    def _take(self, before: WorkerLoad, after: WorkerLoad, known: PoolState) -> None:
        tokens = _gained(before.prefill_tokens_total, after.prefill_tokens_total)
        busy_us = _gained(before.busy_us_total, after.busy_us_total)
        if tokens is None or not busy_us or before.queued is None or after.queued is None:
            return
        requests = max((before.queued + after.queued) / 2, 1.0)
        busy_s = busy_us / 1e6
        keep = max(0.0, 1.0 - busy_s / _PACE_S)
        self._predicted_s = keep * self._predicted_s + busy_s
        # In busy seconds too, so that short and long prompts count alike.
        rate = float(np.interp(requests, known.requests, known.prefill_tokens_per_s))
        self._came_s = keep * self._came_s + tokens / rate


def _gained(before: int | None, after: int | None) -> int | None:
    """How much a counter has gained; None where it is unknown or has started again."""
    return None if before is None or after is None or after < before else after - before
