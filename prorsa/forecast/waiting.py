"""The queue before prefill: what waits, and how fast it is served."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import Columns, State
from prorsa.forecast.models import Ratio

Array = NDArray[np.float64]


class ServiceRate:
    """Uncached tokens a second that admission lets through while requests wait, learnt per prefill worker.

    It measures whatever limits admission: prefill's speed, or decode's KV when that is what requests wait for. While
    nothing waits the rate is only known to be at least what came, so that only larger values count.
    """

    def __init__(self, prior_tokens_per_s: float = 8000.0, time_constant_s: float = 30.0) -> None:
        self._per_worker = Ratio(prior_tokens_per_s, time_constant_s, prior_weight=5.0)
        self._waited = False
        self._workers = 1

    def close_tick(self, admitted_tokens: float, waiting: int, workers: int | None, elapsed_s: float) -> None:
        """``admitted_tokens`` (uncached) were admitted since the last tick; ``waiting`` requests still wait."""
        self._workers = max(workers or 1, 1)
        weight = self._workers * elapsed_s
        saturated = self._waited and waiting > 0
        if weight > 0 and (saturated or admitted_tokens / weight > self._per_worker.value):
            self._per_worker.add(admitted_tokens, weight, elapsed_s)
        self._waited = waiting > 0

    @property
    def tokens_per_s(self) -> float:
        """Of all prefill workers together; at least one token, so that it can divide."""
        return max(self._per_worker.value * self._workers, 1.0)


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that are ready and not prefilled, in the order in which they became ready.

    Attributes:
        slot: int[n].
        tokens: uncached tokens still to compute.
        prompt_tokens: whole prompts.
        admitted: whether decode holds KV for each already.
        retried: whether each has been prefilled before.
        ahead_tokens: tokens that are admitted before each of those not yet admitted.
        tokens_per_s: service rate.
    """

    slot: NDArray[np.intp]
    tokens: Array
    prompt_tokens: Array
    admitted: NDArray[np.bool_]
    retried: NDArray[np.bool_]
    ahead_tokens: Array
    tokens_per_s: float

    @property
    def backlog_tokens(self) -> float:
        """Uncached tokens of first prefills, less chunks computed."""
        return float(self.tokens[~self.retried].sum())

    @property
    def retry_tokens(self) -> float:
        """Tokens that must be prefilled again."""
        return float(self.tokens[self.retried].sum())

    @property
    def waiting(self) -> int:
        """Requests not yet admitted."""
        return int((~self.admitted).sum())

    @property
    def new_wait_s(self) -> float:
        """How long a request that arrives now waits for admission."""
        return float(self.tokens[~self.admitted].sum()) / self.tokens_per_s

    def admitted_by(self, horizon_s: float) -> Array:
        """Probability that each is admitted within ``horizon_s``: 0 for those that are, even odds where it is due."""
        due_s = self.ahead_tokens / self.tokens_per_s
        spread_s = 1.0 + 0.5 * horizon_s
        chance = np.clip((horizon_s - due_s) / spread_s + 0.5, 0.0, 1.0)
        return np.where(self.admitted, 0.0, np.where(due_s <= 0.0, 1.0, chance))

    def prefilled_bins(self, latency_s: float, bins: int) -> NDArray[np.intp]:
        """The second in which each one's prefill ends; ``bins`` for later."""
        due_s = np.where(self.admitted, 0.5 * latency_s, self.ahead_tokens / self.tokens_per_s + latency_s)
        return np.minimum(due_s, bins).astype(np.intp)


def make_queue(columns: Columns, typical_tokens: float, tokens_per_s: float) -> Queue:
    """The queue as it stands; a request without an index estimate counts ``typical_tokens``, at most its prompt."""
    waits = np.flatnonzero((columns.state == State.READY) | (columns.state == State.PREFILL))
    slot = waits[np.argsort(columns.ready_s[waits], kind="stable")]
    prompt, index = columns.prompt_tokens[slot], columns.uncached_tokens[slot]
    uncached = np.where(np.isnan(index), np.minimum(typical_tokens, prompt), index)
    tokens = np.maximum(uncached - columns.computed_tokens[slot], 0.0)
    admitted = columns.admitted[slot]
    unadmitted = np.where(admitted, 0.0, tokens)
    return Queue(
        slot=slot,
        tokens=tokens,
        prompt_tokens=prompt,
        admitted=admitted,
        retried=columns.retried[slot],
        ahead_tokens=np.cumsum(unadmitted) - unadmitted,
        tokens_per_s=tokens_per_s,
    )
