"""The life of a request: wait for a pair, run, and where that fails or is cancelled go on elsewhere, until answered."""

import time
from typing import Any, Final

import structlog

from prorsa.cluster.router.attempt import Attempt, Cut, Done, Lost, Outcome, Refused, finish_type
from prorsa.cluster.router.choose import Limits, Pair, Pool, Wish
from prorsa.cluster.router.config import RouterConfig
from prorsa.cluster.router.fleet import Fleet
from prorsa.cluster.router.gate import Gate
from prorsa.cluster.router.inbound import Single
from prorsa.cluster.router.jobs import Answer, Job, Sink
from prorsa.cluster.router.merge import Segment, cut_at_seam, same_weights, weight_version
from prorsa.cluster.router.metrics import Metrics
from prorsa.cluster.router.noting import Loads, Notes
from prorsa.cluster.router.ready import Dropped, ReadyQueue
from prorsa.cluster.router.replying import aborted_answer, chunk_body, error_answer, finish_of, whole_body
from prorsa.cluster.router.resume import resume_body
from prorsa.cluster.router.sessions import Reuse, Session, Sessions
from prorsa.cluster.router.state import State
from prorsa.errors import WorkerError
from prorsa.events import make_rid

MAX_ATTEMPTS: Final = 99
"""Attempts have two digits."""

log = structlog.get_logger(__name__)


class Dispatcher:
    """Runs requests on the fleet.

    Args:
        config: the router's.
        fleet: the workers.
        sessions, loads, notes: what is known and told of requests.
        state: keeps the ledger of attempts in flight.
        metrics: counts.
        instance: begins every request id of this process, so that ids never meet those of a predecessor.
    """

    def __init__(
        self,
        config: RouterConfig,
        fleet: Fleet,
        sessions: Sessions,
        notes: Notes,
        state: State,
        metrics: Metrics,
        instance: str,
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.sessions = sessions
        self.loads = Loads()
        self.gate = Gate(time.monotonic)
        self.jobs: dict[str, Job] = {}
        self._notes = notes
        self._state = state
        self._metrics = metrics
        self._instance = instance
        self._count = 0
        limits = Limits(config.prefill_window_tokens, config.kv_fill)
        pool = Pool(fleet.table, self.loads.by_worker, sessions.home_tokens, limits)
        self.queue = ReadyQueue(pool, config.queue_limit, self.loads.placed, self._unplace)

    # --- what the outside calls ---------------------------------------------------------------------------------------

    @property
    def resumes(self) -> bool:
        """Whether cancelled requests go on from their tokens so far."""
        return self.config.resume_policy != "rerun"

    def next_id(self) -> str:
        """A request id: instance and a counter, of fixed length."""
        self._count += 1
        return f"{self._instance}-{self._count:08x}"

    async def run(
        self, single: Single, *, session: Session | None, trajectory_id: str | None, sink: Sink | None = None
    ) -> Answer:
        """Run one request to its end and return the answer; with a sink, the chunks go there first."""
        if self.queue.full:
            self._metrics.rejected.inc()
            return error_answer(503, "the ready queue is full: try again", retry_after_s=self.config.retry_after_s)
        job = self._job(single, session, trajectory_id, sink)
        self.jobs[job.request_id] = job
        try:
            if session is not None and not await self.gate.enter(session.key):
                return aborted_answer(job)
            return await self._noted(job)
        finally:
            del self.jobs[job.request_id]

    async def _noted(self, job: Job) -> Answer:
        began, answer = time.monotonic(), None
        self._notes.arrived(job)
        try:
            answer = await self._until_answered(job)
            return answer
        finally:
            if answer is None or answer.status != 200:
                self._notes.failed(job, "abort" if answer is None else "error")
            end = "gone" if answer is None else answer.finish if answer.status == 200 else str(answer.status)
            self._notes.ended(job, end, time.monotonic() - began)

    def abort(self, rid: str) -> int:
        """A client takes requests back, by its own id or the beginning of it, as SGLang matches them."""
        found = [job for job in self.jobs.values() if job.answer_id.startswith(rid)]
        for job in found:
            self._take_back(job)
        return len(found)

    def abort_all(self) -> int:
        """Every request is taken back."""
        jobs = list(self.jobs.values())
        for job in jobs:
            self._take_back(job)
        return len(jobs)

    def on(self, worker_id: str) -> list[Job]:
        """The requests whose attempt occupies a worker."""
        return [job for job in self.jobs.values() if job.attempt is not None and worker_id in job.attempt.workers]

    def worker_lost(self, worker_id: str) -> int:
        """A worker has died or lost its cache: what runs on a dead one goes on elsewhere. Returns the tokens held."""
        entry = self.fleet.table.entries.get(worker_id)
        if entry is None or entry.state == "dead":
            for job in self.on(worker_id):
                if job.attempt is not None:
                    job.attempt.cancel("worker lost")
        return self.sessions.drop_worker(worker_id)

    # --- one request --------------------------------------------------------------------------------------------------

    def _job(self, single: Single, session: Session | None, trajectory_id: str | None, sink: Sink | None) -> Job:
        prompt = self.sessions.prompt_of(single.units)
        return Job(
            request_id=self.next_id(),
            single=single,
            prompt=prompt,
            reuse=Reuse.of(session, prompt),
            session=session,
            trajectory_id=trajectory_id,
            turn=session.turn if session is not None else 0,
            sink=sink,
            body=single.body,
        )

    async def _until_answered(self, job: Job) -> Answer:
        while True:
            try:
                pair = await self._place(job)
            except Dropped:
                return self._aborted(job)
            answer = (
                await self._other_weights(job) if pair is None else await self._judge(job, await self._try(job, pair))
            )
            if answer is not None:
                return answer

    async def _place(self, job: Job) -> Pair | None:
        same = self.config.resume_policy == "same_version_only"
        job.wish = job.next_wish(same_version=same, reserve_tokens=self.config.decode_reserve_tokens)
        waiting = self.queue.enter(job.wish, again=job.attempts > 0)
        job.waiting = waiting
        try:
            return await self.queue.placed(waiting)
        finally:
            job.waiting = None

    async def _try(self, job: Job, pair: Pair) -> Outcome:
        assert job.wish is not None
        rid = make_rid(job.request_id, job.attempts)
        try:
            attempt = self._attempt(job, pair, rid)
        except KeyError as error:
            self._unplace(pair, job.wish)
            return Lost(f"worker {error} was removed", (str(error.args[0]),))
        self._notes.submitted(job, pair)
        self._state.begin(rid, (pair.prefill.worker_id, pair.decode.worker_id))
        job.attempt, job.pair = attempt, pair
        job.attempts += 1
        self._metrics.in_flight.inc()
        try:
            return await attempt.run()
        finally:
            job.attempt = None
            self._metrics.in_flight.dec()
            self._state.end(rid)
            self.loads.finished(pair, job.wish, prefilled=attempt.prefilled)
            self.queue.pump()

    def _attempt(self, job: Job, pair: Pair, rid: str) -> Attempt:
        decode = self.fleet.members[pair.decode.worker_id]
        return Attempt(
            rid=rid,
            single=job.single,
            body=job.body,
            pair=pair,
            prefill=self.fleet.client(pair.prefill.worker_id),
            decode=decode.client,
            bootstrap_host=self.fleet.table.bootstrap_name(pair.prefill),
            handover_s=self.config.handover_s,
            prompt_tokens=job.prompt_tokens,
            on_prefilled=lambda _: self._prefilled(pair),
            on_chunk=None if job.sink is None else lambda attempt, chunk: self._chunk(job, attempt, chunk),
            incremental=decode.info is not None and decode.info.incremental_streaming_output,
        )

    async def _chunk(self, job: Job, attempt: Attempt, chunk: dict[str, Any]) -> None:
        assert job.sink is not None
        if attempt.pair.mixed and not attempt.prefilled:
            attempt.prefilled = True
            self._prefilled(attempt.pair)
        if attempt.chunks == 1:
            self._notes.first_token(job)
        job.delivered = True
        job.final_sent = finish_type(job.single, chunk) is not None or job.final_sent
        await job.sink(chunk_body(job, attempt, chunk))

    def _prefilled(self, pair: Pair) -> None:
        self.loads.prefilled(pair)
        self.queue.pump()

    def _unplace(self, pair: Pair, wish: Wish) -> None:
        self.loads.finished(pair, wish, prefilled=False)
        self.queue.pump()

    # --- how attempts end ---------------------------------------------------------------------------------------------

    async def _judge(self, job: Job, outcome: Outcome) -> Answer | None:
        """The answer, or None if the request goes on."""
        if job.aborted:
            segment = None if isinstance(outcome, Refused) else outcome.segment
            return self._aborted(job) if segment is None else await self._finish(job, segment)
        match outcome:
            case Done(segment) if same_weights(segment) or job.delivered:
                return await self._finish(job, segment)
            case Done(segment):
                self._saw_weights(segment)
                return self._again(job, "prefill and decode ran on different weights")
            case Refused(status, body):
                return Answer(status, raw=body)
            case Cut(segment):
                return await self._go_on(job, "cancelled", segment)
            case Lost(text, blame, segment):
                return await self._lost(job, text, blame, segment)

    async def _lost(self, job: Job, text: str, blame: tuple[str, ...], segment: Segment | None) -> Answer | None:
        job.failures += 1
        job.avoid |= set(blame)
        log.warning("attempt lost", request_id=job.request_id, why=text, blame=blame)
        if job.pair is not None:
            self.fleet.doubt(job.pair.prefill.worker_id, job.pair.decode.worker_id)
        for worker_id in blame:
            self.fleet.suspect(worker_id)
        if job.failures >= self.config.max_attempts:
            why = f"{job.failures} attempts failed, the last one: {text}"
            return error_answer(503, why, retry_after_s=self.config.retry_after_s)
        return await self._go_on(job, "worker failed", segment)

    async def _go_on(self, job: Job, why: str, segment: Segment | None) -> Answer | None:
        """Keep what a cancelled attempt had, if the request can go on from there."""
        if segment is not None and segment.output_ids and self.resumes and job.exact:
            if self._complete(job, segment):
                return await self._finish(job, segment)
            prompt_ids = await self._prompt_ids(job, segment)
            if prompt_ids is not None:
                self._metrics.tokens_kept.inc(len(segment.output_ids))
                job.keep(segment, prompt_ids, resume_body(job.single, prompt_ids, [*job.kept, *segment.output_ids]))
                return self._again(job, why)
        if job.delivered and (segment is not None or not job.segments):
            lost = f"{why} after part of the answer had been streamed, and it cannot go on exactly: send it again"
            return error_answer(503, lost, retry_after_s=self.config.retry_after_s)
        return self._again(job, why)

    def _complete(self, job: Job, segment: Segment) -> bool:
        """Whether an attempt was cut at its very last token."""
        limit = job.max_new_tokens
        if limit is None or len(segment.output_ids) < limit:
            return False
        segment.meta["finish_reason"] = {"type": "length", "length": limit + len(job.kept)}
        return True

    async def _prompt_ids(self, job: Job, segment: Segment) -> list[int] | None:
        units = job.prompt.units if job.segments else job.single.units
        if isinstance(units, list):
            return units
        try:
            return await self.fleet.client(segment.decode_worker).tokenize(units)
        except (WorkerError, KeyError):
            return None

    def _again(self, job: Job, why: str) -> Answer | None:
        if job.attempts >= MAX_ATTEMPTS:
            return error_answer(503, f"{why}; {job.attempts} attempts are enough", retry_after_s=60)
        self._metrics.retries.labels(why).inc()
        job.retry_reason = why
        return None

    async def _other_weights(self, job: Job) -> Answer | None:
        """No worker has the weights any more that the output so far came from: begin again."""
        if job.delivered:
            why = "the weights were updated after part of the answer had been streamed: send it again"
            return error_answer(503, why, retry_after_s=self.config.retry_after_s)
        job.restart()
        return self._again(job, "weights updated")

    def _saw_weights(self, segment: Segment) -> None:
        if segment.prefill is not None:
            self.fleet.saw_weights(segment.prefill_worker, weight_version(segment.prefill))
        self.fleet.saw_weights(segment.decode_worker, segment.weight_version)

    def _take_back(self, job: Job) -> None:
        job.aborted = True
        if job.session is not None:
            self.gate.drop(job.session.key)
        if job.waiting is not None:
            self.queue.drop(job.waiting)
        if job.attempt is not None:
            job.attempt.abort()

    def _aborted(self, job: Job) -> Answer:
        answer = aborted_answer(job)
        self._notes.failed(job, "abort")
        return answer

    async def _finish(self, job: Job, segment: Segment) -> Answer:
        body = whole_body(job, segment)
        if job.segments and cut_at_seam([*job.segments, segment]):
            await self._decode_again(job, segment, body)
        answer = Answer(200, body, finish=finish_of(job, segment.reply))
        if job.sink is not None and not job.final_sent and not self._deltas(job):
            await job.sink(body)
        self._saw_weights(segment)
        self._notes.answered(job, body, segment, answer)
        return answer

    def _deltas(self, job: Job) -> bool:
        return job.single.kind != "generate"

    async def _decode_again(self, job: Job, segment: Segment, body: dict[str, Any]) -> None:
        """A seam went through a character: have the whole output turned into text."""
        skip = job.single.body["sampling_params"].get("skip_special_tokens", True)
        try:
            client = self.fleet.client(segment.decode_worker)
            body["text"] = await client.detokenize(body["output_ids"], skip_special_tokens=bool(skip))
        except (WorkerError, KeyError) as error:
            log.warning("text of a resumed answer has a cut character", request_id=job.request_id, error=str(error))
