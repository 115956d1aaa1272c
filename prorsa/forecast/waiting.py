"""The queue before prefill: what waits, and how fast it is served."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import Columns, State
from prorsa.forecast.habits import LossModel
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
        saturated: whether the first of those not yet admitted has waited for longer than a moment.
    """

    slot: NDArray[np.intp]
    tokens: Array
    prompt_tokens: Array
    admitted: NDArray[np.bool_]
    retried: NDArray[np.bool_]
    ahead_tokens: Array
    tokens_per_s: float
    saturated: bool

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
        """Probability that each is admitted within ``horizon_s``; 0 for those that are.

        While requests wait, service is at a random point between two of them: the one that is next is admitted with
        the chance that its turn comes, which makes the expected number that of the service rate.
        """
        served = horizon_s * self.tokens_per_s - self.ahead_tokens
        size = self.tokens if self.saturated else np.zeros(len(self.tokens))
        chance = np.clip(served / np.maximum(size, 1.0), 0.0, 1.0)
        return np.where(self.admitted, 0.0, chance)

    def admitted_bins(self, pause_s: float, bins: int) -> NDArray[np.intp]:
        """The second in which each is admitted if not before ``pause_s``; 0 for those that are, ``bins`` for later."""
        due_s = np.where(self.admitted, 0.0, self.ahead_tokens / self.tokens_per_s) + pause_s
        return np.minimum(due_s, bins).astype(np.intp)


def make_queue(columns: Columns, t_s: float, typical_tokens: float, tokens_per_s: float, losses: LossModel) -> Queue:
    """The queue as it stands.

    The router's index tells what was cached when a request became ready; what waits long may find less. A request
    without an index estimate counts ``typical_tokens``, at most its prompt.
    """
    waits = np.flatnonzero((columns.state == State.READY) | (columns.state == State.PREFILL))
    slot = waits[np.argsort(columns.ready_s[waits], kind="stable")]
    prompt, index = columns.prompt_tokens[slot], columns.uncached_tokens[slot]
    uncached = np.where(np.isnan(index), np.minimum(typical_tokens, prompt), index)
    admitted = columns.admitted[slot]
    rest = prompt - uncached
    idle_s = columns.ready_s[slot] - columns.answered_s[slot]
    waited_s = t_s - columns.ready_s[slot]
    tokens = np.maximum(uncached - columns.computed_tokens[slot], 0.0)
    for _ in range(_PASSES):
        due_s = _ahead(tokens, admitted) / tokens_per_s
        gone = np.nan_to_num(losses.between(idle_s, idle_s + waited_s + due_s))
        gone[columns.flushed[slot]] = 1.0
        expected = np.where(admitted, uncached, uncached + gone * rest)
        tokens = np.maximum(expected - columns.computed_tokens[slot], 0.0)
    return Queue(
        slot=slot,
        tokens=tokens,
        prompt_tokens=prompt,
        admitted=admitted,
        retried=columns.retried[slot],
        ahead_tokens=_ahead(tokens, admitted),
        tokens_per_s=tokens_per_s,
        saturated=bool((waited_s[~admitted] > _MOMENT_S).any()),
    )


_MOMENT_S: Final = 1.0


_PASSES: Final = 2
"""What is evicted makes the queue longer, and the longer queue evicts more; twice is enough for both to settle."""


def _ahead(tokens: Array, admitted: NDArray[np.bool_]) -> Array:
    unadmitted = np.where(admitted, 0.0, tokens)
    return np.cumsum(unadmitted) - unadmitted
