"""What a worker can do: from the profile, corrected by what the workers themselves report."""

from prorsa.cluster.profile import Profile
from prorsa.cluster.registry import Registry
from prorsa.events import WorkerLoad

GOES_ON_S = 120.0
"""For how long beyond the decision horizon a load is taken to go on: a flip's lost prefixes are paid once, and what a
better split gains comes for as long as the load stays. Phases of a rollout last minutes."""

_FORGET_S = 120.0
"""Busy seconds of prefill after which an observation has lost 63 % of its weight."""
_TRUST_S = 5.0
"""Busy seconds that must have been seen before the measured rate replaces the profile's."""


class CostModel:
    """Prefill rate and KV capacity of one worker.

    The prefill rate is Δprefill tokens / Δbusy time over the prefill workers' cumulative counters, exponentially
    forgotten in busy time; before enough of it has been seen, it is the profile's for a typical request, or unknown.
    What counts is the time between two reports that both tell of a queue for a full step of all ranks: a worker that
    waits for work, or for KV on decode, does short steps, and would seem slower the less it is given. Reports of a
    worker with several ranks do not tell which of them had work, so that its profile is believed instead.
    """

    def __init__(self, profile: Profile | None) -> None:
        self.profile = profile
        self._full_step_tokens = profile.chunk_tokens if profile else 1
        self._tokens = 0.0
        self._busy_s = 0.0
        self._seen: dict[str, WorkerLoad] = {}

    def observe(self, load: WorkerLoad, registry: Registry) -> None:
        """Take a load report of a worker that the registry knows."""
        before = self._seen.get(load.worker_id)
        self._seen[load.worker_id] = load
        worker = registry.get(load.worker_id)
        if before is None or worker is None or worker.role != "prefill" or before.epoch != load.epoch:
            return
        tokens, busy_s = _progress(before, load)
        queued = min(before.queued_tokens or 0, load.queued_tokens or 0)
        if busy_s <= 0 or queued < self._full_step_tokens:
            return
        keep = max(0.0, 1.0 - busy_s / _FORGET_S)
        self._tokens = self._tokens * keep + tokens
        self._busy_s = self._busy_s * keep + busy_s

    def prefill_tokens_per_s(self, new_tokens: float, prefix_tokens: float) -> float | None:
        """Prefill rate of one busy worker, for typical requests of these sizes; None while nothing tells it."""
        several = self.profile is not None and self.profile.ranks > 1
        if self._busy_s >= _TRUST_S and not several:
            return self._tokens / self._busy_s
        if self.profile is None:
            return None
        return self.profile.prefill_tokens_per_s(max(new_tokens, 1.0), prefix_tokens)


def _progress(before: WorkerLoad, after: WorkerLoad) -> tuple[float, float]:
    fields = (before.prefill_tokens_total, after.prefill_tokens_total, before.busy_us_total, after.busy_us_total)
    tokens_before, tokens_after, busy_before, busy_after = fields
    if tokens_before is None or tokens_after is None or busy_before is None or busy_after is None:
        return 0.0, 0.0
    if tokens_after < tokens_before or busy_after < busy_before:
        return 0.0, 0.0  # restarted
    return tokens_after - tokens_before, (busy_after - busy_before) / 1e6
