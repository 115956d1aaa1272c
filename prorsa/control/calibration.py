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


class Calibration:
    """Compares the output that was predicted for a window between two decisions with what came.

    Attributes:
        error: |mean of log(actual / predicted)|, exponentially forgotten: what is off one way, not what scatters.
    """

    def __init__(self) -> None:
        self._bias = 0.0
        self._expected: tuple[int, Array] | None = None
        self._counters: dict[str, int] = {}

    @property
    def error(self) -> float:
        """The relative error; 0 until something has been compared."""
        return abs(self._bias)

    def state(self) -> str:
        """A short text that differs when anything here does."""
        return f"{self._bias:.9g}"

    def expect(self, context: Context, output_tokens_per_s: Array) -> None:
        """Note what the model predicts from now on, by second."""
        self._expected = context.t_ns, output_tokens_per_s
        self._counters = _output(context)

    def check(self, context: Context) -> None:
        """Compare with what has come since."""
        if self._expected is None:
            return
        since_ns, per_s = self._expected
        passed_s = round(seconds(context.t_ns - since_ns))
        predicted = float(per_s[:passed_s].sum())
        came = _output(context)
        shared = came.keys() & self._counters.keys()
        actual = sum(max(came[worker] - self._counters[worker], 0) for worker in shared)
        if predicted >= _LEAST_TOKENS and actual > 0 and passed_s <= len(per_s):
            off = min(max(math.log(actual / predicted), -_MOST), _MOST)
            self._bias = _KEEP * self._bias + (1.0 - _KEEP) * off


def _output(context: Context) -> dict[str, int]:
    """Output tokens of each worker since its start, where it has told."""
    return {
        worker.worker_id: worker.load.output_tokens_total
        for worker in context.workers
        if worker.load is not None and worker.load.output_tokens_total is not None
    }
