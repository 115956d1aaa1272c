"""Decode's side of demand: what it will admit, and how much KV it will need."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.demand import LATER_ERROR, QUANTILES, Sums, matched, scaled, widen
from prorsa.forecast.learn import Learner
from prorsa.forecast.models import SIZE_GRID
from prorsa.forecast.sources import Outlook
from prorsa.forecast.steps import Steps

Array = NDArray[np.float64]

_RATE_ERROR: Final = 0.15
"""How well the service rate is known, as a share."""
_Z: Final = np.array([-1.2816, 0.0, 1.2816])


class AdmissionDemand:
    """KV tokens (prompt and the answer that comes of it) of requests that decode admits, and the KV that it then holds.

    Requests that wait are admitted in their order at the service rate; those that arrive come after them. While the
    queue is short this is arrival by arrival; while it is long it is the service rate that counts.

    Attributes:
        queue: float64[H], of requests that wait now.
        mean: float64[H], of requests that become ready within the horizon.
        counts: float64[H, size bins], these by size; ``sure`` float64[H], tokens that come in any case.
    """

    def __init__(self, steps: Steps, learner: Learner, outlook: Outlook) -> None:
        self._steps, self._learner, self._outlook = steps, learner, outlook
        queue, streams, burst, at = outlook.queue, outlook.streams, outlook.burst, steps.bin_at
        self._answer = outlook.cycle.answer_tokens
        self._admitted_by = queue.admitted_by(steps.horizons_s)
        if outlook.going_on is not None:
            self._admitted_by *= outlook.going_on[np.minimum(queue.due_s.astype(np.intp), steps.bins - 1)]
        self._waiting = (queue.prompt_tokens + outlook.answers) * ~queue.retried
        self.queue: Array = self._admitted_by @ self._waiting
        self._burst_tokens = (burst.admitted[1] + burst.admitted[3]).cumsum()[at]
        self.mean: Array = (streams.admitted[1] + streams.admitted[3]).cumsum()[at] + self._burst_tokens
        calm = streams.tool[0] + streams.box[0] + streams.second[0] + streams.sampler[0]
        arriving = calm.cumsum()[at]
        self._come = streams.admitted[0].cumsum()[at]
        share = self._come / np.maximum(arriving, 1e-9)
        self._share = np.where(arriving > 1e-9, np.minimum(share, 1.0), 1.0)
        self._upto = {
            name: rows.cumsum(axis=1)[:, at] * self._share
            for name, rows in (("second", streams.second), ("sampler", streams.sampler))
        }
        self.sure: Array = self._share**2 * outlook.expected.squares
        self.counts = self._counts()

    def _counts(self) -> Array:
        e, cycle, share = self._outlook.expected, self._outlook.cycle, self._share[:, None]
        counts: Array = np.maximum(share * e.admissible - share**2 * e.admissible2, 0.0)
        second, tokens = self._upto["second"][0], self._upto["second"][2]
        number = e.totals[4]
        if number > 0 and second.max() > 0:
            # What comes back has the contexts of those that live, grown by as much as the means say.
            mean = float(tokens[-1] / second[-1]) + self._answer
            counts += second[:, None] * scaled(e.contexts / number, self._outlook.mean_context_tokens, mean)
        first = SIZE_GRID.index(cycle.first_prompt + self._answer)
        counts[:, first] += self._upto["sampler"][0]
        return counts

    def quantiles(self, spread: Array) -> tuple[Sums, Sums]:
        """Arrivals, and all.

        Args:
            spread: float64[H, 3], quantiles of the compound sum of ``counts``.
        """
        burst_by = self._outlook.burst_by
        comes = burst_by[:, None] > 1.0 - QUANTILES
        whole = np.where(burst_by > 0.0, self._burst_tokens / np.maximum(burst_by, 1e-9), 0.0)
        upto = self._upto["second"] + self._upto["sampler"]
        later = upto[2] + upto[0] * self._answer
        random = self.mean - self.sure - self._burst_tokens
        middle = matched(spread, self.counts, random) + self.sure[:, None] + comes * whole[:, None]
        arrivals = Sums(self.mean, widen(middle, LATER_ERROR * later))
        return arrivals, self._total(arrivals)

    def _total(self, arrivals: Sums) -> Sums:
        """Queue and arrivals; the queue's own uncertainty widens the spread."""
        chance, size = self._admitted_by, self._waiting
        # One request more or less, and a service rate that is known to about a seventh.
        mean_size = float(size.mean()) if len(size) else 0.0
        variance = (chance * (1.0 - chance)) @ (size * size) + (mean_size**2 + (_RATE_ERROR * self.queue) ** 2) * (
            self.queue > 0
        )
        quantiles = widen(arrivals.quantiles, np.sqrt(variance))
        return Sums(arrivals.mean + self.queue, quantiles + self.queue[:, None])

    def kv_need(self) -> Sums:
        """The peak of the KV that decode holds, within each horizon."""
        outlook, at = self._outlook, self._steps.bin_at
        streams = outlook.streams
        context = outlook.mean_context_tokens + outlook.mean_new_tokens + self._answer
        path = np.maximum.accumulate(streams.kv + outlook.burst.kv)
        peak = np.maximum(path, outlook.resident)[at] + self._lift(context)
        # Sums of chances that are all but certain come out below nothing by their rounding.
        variance = np.maximum(outlook.expected.finish_variance + self._come * context**2, 0.0)
        return Sums(peak, np.maximum(peak[:, None] + np.sqrt(variance)[:, None] * _Z, 0.0))

    def _lift(self, context: float) -> Array:
        """How far the peak lies above the highest mean, for a batch that comes and goes like a Poisson number.

        The largest of n independent normal levels is about ``sqrt(2 ln n)`` deviations up; levels one stay apart are
        taken as independent. While requests wait, what leaves is replaced at once and the level does not fluctuate so.
        """
        if self._outlook.queue.saturated:
            return np.zeros(len(self._steps.at))
        learner = self._learner
        stay_s = self._answer / learner.output_rate.value + learner.prefill_latency_s.value
        independent = np.maximum(self._steps.horizons_s / max(stay_s, 1.0), 1.0)
        level_sd = context * np.sqrt(np.maximum.accumulate(self._outlook.streams.batch)[self._steps.bin_at])
        lift: Array = np.sqrt(2.0 * np.log(independent)) * level_sd
        return lift
