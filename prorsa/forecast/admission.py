"""Decode's side of demand: what it will admit, and how much KV it will need."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.compound import compound_quantiles
from prorsa.forecast.demand import LATER_ERROR, QUANTILES, SIZES, PrefillDemand, Sums, widen
from prorsa.forecast.learn import Learner
from prorsa.forecast.models import SIZE_GRID, binned
from prorsa.forecast.sources import Outlook, Rows, Steps
from prorsa.forecast.waits import Wait

Array = NDArray[np.float64]

_RATE_ERROR: Final = 0.15
_Z: Final = np.array([-1.2816, 0.0, 1.2816])


class AdmissionDemand:
    """KV tokens (prompt and the answer that comes of it) of requests that decode admits, and the KV that it then holds.

    Requests that wait are admitted in their order at the service rate; those that arrive come after them. While the
    queue is short this is arrival by arrival; while it is long it is the service rate that counts.

    Attributes:
        queue: float64[H], of requests that wait now.
        arrivals: of requests that become ready within the horizon, with quantiles.
        total: both.
        kv_need: peak KV within the horizon.
    """

    def __init__(
        self, steps: Steps, learner: Learner, rows: Rows, outlook: Outlook, prefill: PrefillDemand, resident_kv: float
    ) -> None:
        self._steps, self._learner, self._rows, self._outlook = steps, learner, rows, outlook
        self._output = learner.mean_output_tokens
        self._wait_s = self._waits(prefill)
        self._admitted_by = np.array([outlook.queue.admitted_by(float(h)) for h in steps.horizons_s])
        size = outlook.queue.prompt_tokens + self._output
        scored = ~outlook.queue.retried
        self.queue = self._admitted_by @ (size * scored)
        self.arrivals = self._arrivals(prefill)
        self.total = self._total(size * scored)
        self.kv_need = self._kv_need(prefill, resident_kv)

    def _waits(self, prefill: PrefillDemand) -> Array:
        """float64[K]: how long what arrives in each second waits for admission (a fluid queue, in order)."""
        outlook = self._outlook
        rate = outlook.queue.tokens_per_s
        work_s = np.cumsum(prefill.per_bin) / rate
        before_s = work_s - prefill.per_bin / rate
        at_s = self._steps.ends_s - 1.0
        start_s = outlook.queue.new_wait_s + outlook.pause_s
        # Departure d[k] = max(at[k], d[k-1]) + work[k], unrolled.
        idle_until = np.maximum.accumulate(np.maximum(at_s - before_s, start_s))
        return np.maximum(idle_until + before_s - at_s, 0.0)

    def _share_admitted(self) -> Array:
        """float64[H]: of the requests that arrive within each horizon, how many are also admitted in it."""
        requests = self._outlook.requests + self._outlook.burst
        due_s = self._steps.ends_s - 0.5 + self._wait_s
        share = np.zeros(len(self._steps.at))
        for h, (last, horizon_s) in enumerate(zip(self._steps.bin_at, self._steps.horizons_s, strict=True)):
            arriving = requests[: last + 1]
            inside = np.clip(horizon_s - due_s[: last + 1] + 0.5, 0.0, 1.0)
            total = float(arriving.sum())
            share[h] = float(arriving @ inside) / total if total > 0 else 1.0
        return share

    def _arrivals(self, prefill: PrefillDemand) -> Sums:
        rows, outlook, steps = self._rows, self._outlook, self._steps
        share = self._share_admitted()
        size = rows.prompt_tokens + np.where(rows.turn >= 0, prefill.mean_new_tokens, 0.0) + self._output
        waits = outlook.arrives * share
        index = SIZE_GRID.indices(size)
        counts = np.array([binned(index, chance, SIZE_GRID.bins) for chance in (waits * (1.0 - waits)).T])
        sure = (waits * waits).T @ size
        later = np.cumsum(outlook.second)[steps.bin_at] * share
        later_size = prefill.mean_context_tokens + prefill.mean_new_tokens + self._output
        first = np.cumsum(outlook.sampler)[steps.bin_at] * share
        first_size = float(self._learner.first_prompts.means[0]) + self._output
        counts[:, SIZE_GRID.index(later_size)] += later
        counts[:, SIZE_GRID.index(first_size)] += first
        burst = np.cumsum(outlook.burst)[steps.bin_at] * share * first_size
        mean = waits.T @ size + later * later_size + first * first_size
        spread = compound_quantiles(counts, SIZES, QUANTILES) + sure[:, None]
        comes = outlook.burst_by[:, None] > 1.0 - QUANTILES
        error = LATER_ERROR * (later * later_size + first * first_size)
        return Sums(mean + burst, widen(spread + comes * burst[:, None], error))

    def _total(self, size: Array) -> Sums:
        """Queue and arrivals; the queue's own uncertainty widens the spread."""
        chance = self._admitted_by
        # One request more or less, and a service rate that is known to about a seventh.
        mean_size = float(size.mean()) if len(size) else 0.0
        variance = (chance * (1.0 - chance)) @ (size * size) + (mean_size**2 + (_RATE_ERROR * self.queue) ** 2) * (
            self.queue > 0
        )
        quantiles = widen(self.arrivals.quantiles, np.sqrt(variance))
        return Sums(self.arrivals.mean + self.queue, quantiles + self.queue[:, None])

    def _kv_need(self, prefill: PrefillDemand, resident_kv: float) -> Sums:
        rows, outlook, learner, steps = self._rows, self._outlook, self._learner, self._steps
        rate = learner.decode_rate.value
        starts, admitted = self._admissions(prefill)
        fresh = learner.waits.fresh(Wait.OUTPUT, steps.rounded_s * rate)
        new_ends = np.convolve(starts, fresh)[: steps.bins]
        old_ends = outlook.finishes.sum(axis=0)
        decoding = float(rows.decoding.sum()) + np.cumsum(starts - new_ends - old_ends)
        context = prefill.mean_context_tokens + prefill.mean_new_tokens + self._output
        released = outlook.finishes.T @ (rows.prompt_tokens + rows.output_tokens) + old_ends * rate * steps.ends_s
        moving = steps.ends_s > outlook.pause_s
        path = resident_kv + np.cumsum(
            admitted + np.maximum(decoding, 0.0) * rate * moving - released - new_ends * context
        )
        peak = np.maximum(np.maximum.accumulate(path), 0.0)[steps.bin_at] + self._lift(
            np.maximum(decoding, 0.0), context
        )
        done = np.cumsum(outlook.finishes, axis=1)[:, steps.bin_at]
        size = rows.prompt_tokens + rows.output_tokens
        variance = (done * (1.0 - done)).T @ (size * size) + np.cumsum(starts)[steps.bin_at] * context**2
        return Sums(peak, np.maximum(peak[:, None] + np.sqrt(variance)[:, None] * _Z, 0.0))

    def _lift(self, decoding: Array, context: float) -> Array:
        """How far the peak lies above the highest mean, for a batch that comes and goes like a Poisson number.

        The largest of n independent normal levels is about ``sqrt(2 ln n)`` deviations up; levels one stay apart are
        taken as independent. While requests wait, what leaves is replaced at once and the level does not fluctuate so.
        """
        if self._outlook.queue.saturated:
            return np.zeros(len(self._steps.at))
        learner = self._learner
        stay_s = self._output / learner.decode_rate.value + learner.prefill_latency_s.value
        independent = np.maximum(np.array(self._steps.horizons_s) / max(stay_s, 1.0), 1.0)
        level_sd = context * np.sqrt(np.maximum.accumulate(decoding)[self._steps.bin_at])
        lift: Array = np.sqrt(2.0 * np.log(independent)) * level_sd
        return lift

    def _admissions(self, prefill: PrefillDemand) -> tuple[Array, Array]:
        """Requests that begin to decode, and prompt tokens that decode reserves, a second."""
        outlook, steps, bins = self._outlook, self._steps, self._steps.bins
        queue = outlook.queue
        latency_s = self._learner.prefill_latency_s.value
        at = np.minimum(queue.ahead_tokens / queue.tokens_per_s + outlook.pause_s, bins).astype(np.intp)
        late = np.minimum(steps.ends_s - 1.0 + self._wait_s, bins).astype(np.intp)
        requests = outlook.requests
        context = prefill.mean_context_tokens + prefill.mean_new_tokens
        reserved = binned(late, requests * context, bins + 1)
        reserved += binned(at, queue.prompt_tokens * ~queue.admitted, bins + 1)
        starts = binned(np.minimum(late + int(latency_s), bins), requests, bins + 1)
        starts += np.bincount(queue.prefilled_bins(latency_s + outlook.pause_s, bins), minlength=bins + 1)
        return starts[:bins], reserved[:bins]
