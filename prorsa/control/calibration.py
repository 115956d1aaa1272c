"""How far the fluid model's predictions have been off: its own measure of what it does not know."""

import math
from typing import Final

from prorsa.clock import seconds
from prorsa.control.fluid import Array
from prorsa.control.policies.base import Context

_KEEP: Final = 0.85
"""Weight of the past at each decision: about half a minute of decisions every 5 s."""
_MOST: Final = 1.0
"""An error beyond this (a factor of e) counts as this much, so that one odd window is forgotten soon."""
_LEAST_TOKENS: Final = 100.0
"""A window in which fewer output tokens were expected says nothing."""
_SEEN_S: Final = 20.0
"""Seconds that must have been compared before the bias is known: fewer than that hold a handful of answers."""

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
