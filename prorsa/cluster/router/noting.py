"""What is noted of requests: loads, events, metrics and the prefix index."""

from typing import Any

from prorsa.cluster.router.choose import Load, Pair, Wish
from prorsa.cluster.router.emit import Emitter
from prorsa.cluster.router.jobs import Answer, Job
from prorsa.cluster.router.merge import Segment, weight_version
from prorsa.cluster.router.metrics import Metrics
from prorsa.cluster.router.replying import (
    cached_tokens_of,
    context_of,
    output_tokens_of,
    prompt_tokens_of,
    tool_calls_of,
)
from prorsa.cluster.router.sessions import Sessions
from prorsa.events import LlmEnd, LlmFirstToken, LlmRetry, LlmSubmit, TrajectoryReady, make_rid


class Loads:
    """What the router has placed on each worker."""

    def __init__(self) -> None:
        self.by_worker: dict[str, Load] = {}

    def of(self, worker_id: str) -> Load:
        """The load of a worker."""
        return self.by_worker.setdefault(worker_id, Load())

    def placed(self, pair: Pair, wish: Wish) -> None:
        """A request has been placed."""
        prefill, decode = self.of(pair.prefill.worker_id), self.of(pair.decode.worker_id)
        prefill.prefilling += 1
        prefill.prefill_tokens += pair.new_tokens
        decode.decoding += 1
        decode.kv_tokens += wish.kv_tokens

    def prefilled(self, pair: Pair) -> None:
        """Its KV is with decode."""
        prefill = self.of(pair.prefill.worker_id)
        prefill.prefilling -= 1
        prefill.prefill_tokens -= pair.new_tokens

    def finished(self, pair: Pair, wish: Wish, *, prefilled: bool) -> None:
        """Its attempt has ended."""
        if not prefilled:
            self.prefilled(pair)
        decode = self.of(pair.decode.worker_id)
        decode.decoding -= 1
        decode.kv_tokens -= wish.kv_tokens

    def busy(self, worker_id: str) -> bool:
        """Whether anything is placed on a worker."""
        load = self.of(worker_id)
        return load.prefilling > 0 or load.decoding > 0


class Notes:
    """Events, metrics and the prefix index of a dispatcher."""

    def __init__(self, emit: Emitter, metrics: Metrics, sessions: Sessions) -> None:
        self._emit = emit
        self._metrics = metrics
        self._sessions = sessions

    def arrived(self, job: Job) -> None:
        """A request waits."""
        self._emit(
            TrajectoryReady(
                trajectory_id=job.trajectory_id,
                prompt_tokens=job.prompt.tokens,
                new_tokens=job.reuse.least_new_tokens(),
                request_id=job.request_id,
            )
        )

    def submitted(self, job: Job, pair: Pair) -> None:
        """An attempt is being sent; after the first it is a retry, told with where it comes from."""
        if job.attempts > 0:
            self._retried(job, pair)
        self._emit(
            LlmSubmit(
                trajectory_id=job.trajectory_id,
                request_id=job.request_id,
                attempt=job.attempts,
                turn=job.turn,
                prompt_tokens=job.prompt_tokens,
                new_tokens=pair.new_tokens,
                max_new_tokens=job.max_new_tokens,
                prefill_worker=pair.prefill.worker_id,
                decode_worker=pair.decode.worker_id,
            )
        )

    def _retried(self, job: Job, pair: Pair) -> None:
        before = job.pair
        self._emit(
            LlmRetry(
                trajectory_id=job.trajectory_id,
                request_id=job.request_id,
                attempt=job.attempts,
                reason=job.retry_reason,
                tokens_kept=len(job.kept),
                from_prefill=before.prefill.worker_id if before is not None else None,
                from_decode=before.decode.worker_id if before is not None else None,
                to_prefill=pair.prefill.worker_id,
                to_decode=pair.decode.worker_id,
            )
        )

    def first_token(self, job: Job) -> None:
        """The first chunk of a stream has come."""
        assert job.pair is not None
        rid = make_rid(job.request_id, job.attempts - 1)
        self._emit(LlmFirstToken(trajectory_id=job.trajectory_id, rid=rid, worker_id=job.pair.decode.worker_id))

    def answered(self, job: Job, body: dict[str, Any], last: Segment, answer: Answer) -> None:
        """A request is answered: tell it, and learn what the workers hold now."""
        self._emit(
            LlmEnd(
                trajectory_id=job.trajectory_id,
                request_id=job.request_id,
                attempt=job.attempts - 1,
                output_tokens=output_tokens_of(job, body),
                finish_reason=answer.finish,
                cached_tokens=cached_tokens_of(job, last),
                tool_calls=tool_calls_of(job, body),
                weight_version=weight_version(body),
            )
        )
        self._learn(job, body, last)

    def failed(self, job: Job, finish: str) -> None:
        """A request has ended without a worker's answer."""
        kept = len(job.kept)
        self._emit(
            LlmEnd(
                trajectory_id=job.trajectory_id,
                request_id=job.request_id,
                attempt=max(0, job.attempts - 1),
                output_tokens=kept,
                finish_reason="abort" if finish == "abort" else "error",
            )
        )

    def ended(self, job: Job, end: str, seconds: float) -> None:
        """Count the end of a request."""
        self._metrics.requests.labels(job.single.kind, end).inc()
        self._metrics.latency_s.observe(seconds)

    def _learn(self, job: Job, body: dict[str, Any], last: Segment) -> None:
        prompt_tokens = prompt_tokens_of(job, body)
        units = job.single.units
        if isinstance(units, str) and prompt_tokens is not None:
            self._sessions.learn_density(len(units), prompt_tokens)
        if job.session is None:
            return
        context = context_of(job, body)
        self._sessions.answered(
            job.session,
            context,
            tokens=(prompt_tokens or job.prompt.tokens) + output_tokens_of(job, body),
            prompt_units=len(units),
            prefill=last.prefill_worker,
            decode=last.decode_worker,
        )
