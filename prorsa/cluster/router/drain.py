"""Draining a worker: what can go on elsewhere is cancelled at once, the rest is left to finish or, late, runs again."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from prorsa.cluster.router.dispatch import Dispatcher
from prorsa.cluster.router.jobs import Job

POLL_S: Final = 0.02
PREFILL_GRACE_S: Final = 1.0
"""Time that a prefill worker gets to finish what it has; the router keeps its queue short, so it mostly does."""
LATE: Final = 0.7
"""Share of the deadline after which what has not finished runs again elsewhere, if no client has seen of it."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did: requests cancelled to go on elsewhere, output tokens they kept, requests still left."""

    requests_resumed: int
    tokens_kept: int
    left: int


async def drain(dispatcher: Dispatcher, worker_id: str, deadline_s: float) -> Drained:
    """Empty a fenced worker of the router's requests; returns when it is empty or the deadline has passed."""
    began = time.monotonic()
    cancelled: dict[str, tuple[Job, int]] = {}
    while True:
        elapsed_s = time.monotonic() - began
        for job in dispatcher.on(worker_id):
            if _now(dispatcher, job, worker_id, elapsed_s, deadline_s) and job.attempt is not None:
                cancelled.setdefault(job.request_id, (job, len(job.kept)))
                job.attempt.cancel("drain")
        busy = dispatcher.loads.busy(worker_id)
        if not busy or elapsed_s >= deadline_s:
            kept = sum(max(0, len(job.kept) - before) for job, before in cancelled.values())
            return Drained(len(cancelled), kept, len(dispatcher.on(worker_id)) or int(busy))
        await asyncio.sleep(POLL_S)


def _now(dispatcher: Dispatcher, job: Job, worker_id: str, elapsed_s: float, deadline_s: float) -> bool:
    attempt = job.attempt
    if attempt is None or attempt.cancelled is not None:
        return False
    if not attempt.prefilled and not attempt.pair.mixed and attempt.pair.prefill.worker_id == worker_id:
        return elapsed_s >= min(PREFILL_GRACE_S, LATE * deadline_s)
    if job.may_cancel(resume=dispatcher.resumes):
        return True
    return elapsed_s >= LATE * deadline_s and not job.delivered
