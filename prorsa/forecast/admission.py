"""Decode's side of demand: what it will admit, and how much KV it will need."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.demand import scaled
from prorsa.forecast.horizons import Z90, ByHorizon, Sums, arrived, upto, widen
from prorsa.forecast.jit import compiled
from prorsa.forecast.learn import Learner
from prorsa.forecast.models import SIZE_GRID
from prorsa.forecast.sources import Outlook
from prorsa.forecast.steps import Steps

Array = NDArray[np.float64]

_RATE_ERROR: Final = 0.15
"""How well the service rate is known, as a share."""
_WAIT_ERROR: Final = 0.1
"""How well the wait of one request is known, as a share of it."""
_MOMENT_S: Final = 0.5
"""How well the moment of an admission is known at best: steps of engines, and the router's rounds."""


@compiled
def _of_queue(
    due_s: Array,
    admitted: NDArray[np.bool_],
    retried: NDArray[np.bool_],
    prompt_tokens: Array,
    answers: Array,
    horizons_s: Array,
    going_on: Array,
) -> tuple[Array, Array]:
    """Tokens of requests that wait now and are admitted within each horizon: their mean and deviation, float64[H] each.

    A wait is known to a share of it: the chance falls in a straight line around those that are expected at the end of
    the horizon, so that as many come later as come sooner than expected. Nothing is admitted that is cut off before it:
    ``going_on`` float64[K] is the chance that it is not. What is admitted again does not count.
    """
    mean, variance = np.zeros(len(horizons_s)), np.zeros(len(horizons_s))
    around_s, all_tokens = 2.0 * (_WAIT_ERROR * horizons_s + _MOMENT_S), 0.0
    for i in range(len(due_s)):
        tokens = 0.0 if retried[i] else prompt_tokens[i] + answers[i]
        all_tokens += tokens
        if admitted[i]:
            continue
        comes = going_on[int(min(due_s[i], len(going_on) - 1.0))]
        for h in range(len(horizons_s)):
            chance = comes * min(max((horizons_s[h] - due_s[i]) / around_s[h] + 0.5, 0.0), 1.0)
            mean[h] += chance * tokens
            variance[h] += chance * (1.0 - chance) * tokens * tokens
    for h in range(len(horizons_s)):
        if mean[h] > 0.0:
            # One request more or less, and a service rate that is known to about a seventh.
            variance[h] += (all_tokens / len(due_s)) ** 2 + (_RATE_ERROR * mean[h]) ** 2
    return mean, np.sqrt(variance)


@compiled
def _share_of(admitted: Array, come: ByHorizon) -> Array:
    """Of what becomes ready within each horizon, how much is admitted by then: float64[H]; all where nothing comes."""
    share = np.ones(len(admitted))
    for h in range(len(share)):
        arriving = come.tool[0, h] + come.box[0, h] + come.second[0, h] + come.sampler[0, h]
        if arriving > 1e-9:
            share[h] = min(admitted[h] / arriving, 1.0)
    return share


@compiled
def _parts(admissible: Array, admissible2: Array, share: Array, come: ByHorizon, contexts: Array, first: int) -> Array:
    """Expected requests by size: float64[H, size bins].

    Args:
        admissible, admissible2: see :class:`~prorsa.forecast.beliefs.Expected`.
        share: float64[H], of what becomes ready, how much is admitted by then.
        contexts: float64[size bins], shares of sizes of requests that come back; ``first`` the size bin of first ones.
    """
    counts = np.empty(admissible.shape)
    for h in range(len(counts)):
        of, back = share[h], share[h] * come.second[0, h]
        for size in range(len(contexts)):
            known = max(of * admissible[h, size] - of * of * admissible2[h, size], 0.0)
            counts[h, size] = known + back * contexts[size]
        counts[h, first] += share[h] * come.sampler[0, h]
    return counts


@compiled
def _peak(
    kv: Array,
    batch: Array,
    resident: float,
    at: NDArray[np.intp],
    independent: Array,
    changes: Array,
    context: float,
) -> tuple[Array, Array]:
    """The highest KV that decode holds within each horizon: its mean, float64[H], and quantiles, float64[H, 3].

    The batch comes and goes like a Poisson number: the largest of n independent normal levels is about ``sqrt(2 ln n)``
    deviations above the highest mean.

    Args:
        kv, batch: float64[K], KV tokens and requests that decode is expected to hold; ``resident`` KV tokens now.
        at: int[H], the last second of each horizon.
        independent: float64[H], how many levels in a horizon are independent of each other.
        changes: float64[H], variance of what is released and admitted within a horizon.
        context: KV tokens of a request.
    """
    mean, quantiles = np.empty(len(at)), np.empty((len(at), 3))
    for h in range(len(at)):
        level_sd = context * np.sqrt(batch[: at[h] + 1].max())
        mean[h] = max(kv[: at[h] + 1].max(), resident) + np.sqrt(2.0 * np.log(independent[h])) * level_sd
        # Sums of chances that are all but certain come out below nothing by their rounding.
        spread = Z90 * np.sqrt(max(changes[h], 0.0))
        quantiles[h] = max(mean[h] - spread, 0.0), mean[h], mean[h] + spread
    return mean, quantiles


class AdmissionDemand:
    """KV tokens (prompt and the answer that comes of it) of requests that decode admits, and the KV that it then holds.

    Requests that wait are admitted in their order at the service rate; those that arrive come after them. While the
    queue is short this is arrival by arrival; while it is long it is the service rate that counts.

    Attributes:
        queue: float64[H], of requests that wait now.
        mean: float64[H], of requests that become ready within the horizon.
        counts: float64[H, size bins], these by size; ``sure`` float64[H], tokens that come in any case.
    """

    def __init__(self, steps: Steps, learner: Learner, outlook: Outlook, come: ByHorizon) -> None:
        self._steps, self._learner, self._outlook, self._come = steps, learner, outlook, come
        queue, expected, at = outlook.queue, outlook.expected, steps.bin_at
        going_on = np.ones(1) if outlook.going_on is None else outlook.going_on
        self.queue, self._deviation = _of_queue(
            queue.due_s,
            queue.admitted,
            queue.retried,
            queue.prompt_tokens,
            outlook.answers,
            steps.horizons_s,
            going_on,
        )
        admitted, burst = upto(outlook.streams.admitted, at), upto(outlook.burst.admitted, at)
        self._burst = burst[1] + burst[3]
        self.mean: Array = admitted[1] + admitted[3] + self._burst
        self._admitted = admitted[0]
        self._share = _share_of(admitted[0], come)
        self.sure: Array = self._share**2 * expected.squares
        first = SIZE_GRID.index(outlook.cycle.first_prompt + outlook.cycle.answer_tokens)
        self.counts = _parts(expected.admissible, expected.admissible2, self._share, come, self._contexts(), first)

    def _contexts(self) -> Array:
        """Shares of sizes of what comes back: contexts of those that live, grown by as much as the means say."""
        outlook, (requests, _, prompts) = self._outlook, map(max, self._come.second.tolist())
        contexts, number = outlook.expected.contexts, float(outlook.expected.totals[4])
        if number <= 0.0 or requests <= 0.0:
            return np.zeros(len(contexts))
        mean = prompts / requests + outlook.cycle.answer_tokens
        return scaled(contexts / number, outlook.mean_context_tokens, mean)

    def quantiles(self, spread: Array) -> tuple[Sums, Sums]:
        """Arrivals, and all.

        Args:
            spread: float64[H, 3], quantiles of the compound sum of ``counts``.
        """
        come, answer = self._come, self._outlook.cycle.answer_tokens
        later = self._share * (come.second[2] + come.sampler[2] + answer * (come.second[0] + come.sampler[0]))
        quantiles = arrived(spread, self.counts, self.mean, self.sure, self._burst, self._outlook.burst_by, later)
        arrivals = Sums(self.mean, quantiles)
        return arrivals, self._total(arrivals)

    def _total(self, arrivals: Sums) -> Sums:
        """Queue and arrivals; the queue's own uncertainty widens the spread."""
        quantiles = widen(arrivals.quantiles, self._deviation)
        return Sums(arrivals.mean + self.queue, quantiles + self.queue[:, None])

    def kv_need(self) -> Sums:
        """The peak of the KV that decode holds, within each horizon."""
        outlook, streams = self._outlook, self._outlook.streams
        context = outlook.mean_context_tokens + outlook.mean_new_tokens + outlook.cycle.answer_tokens
        changes = outlook.expected.finish_variance + self._admitted * context**2
        kv, at = streams.kv + outlook.burst.kv, self._steps.bin_at
        return Sums(*_peak(kv, streams.batch, outlook.resident, at, self._independent(), changes, context))

    def _independent(self) -> Array:
        """How many levels within each horizon are taken as independent: those one stay of a request apart.

        One while requests wait, since what leaves is replaced at once and the level does not fluctuate.
        """
        if self._outlook.queue.saturated:
            return np.ones(len(self._steps.at))
        learner = self._learner
        stay_s = self._outlook.cycle.answer_tokens / learner.output_rate.value + learner.prefill_latency_s.value
        independent: Array = np.maximum(self._steps.horizons_s / max(stay_s, 1.0), 1.0)
        return independent
