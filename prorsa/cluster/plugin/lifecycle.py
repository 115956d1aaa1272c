"""Turns what the scheduler does with requests into events.

Everything here runs in the scheduler's thread except :meth:`Lifecycle.progress`. A request is known from the moment it
is queued until it is answered; what happens to a request that is not known is not reported.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from prorsa.cluster.plugin.hooks import Feature, Hook
from prorsa.events import (
    Event,
    FinishReason,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmProgress,
    LlmQueued,
    Role,
    split_rid,
)

HEALTH_CHECK: Final = "HEALTH_CHECK"
"""How SGLang's own requests are called."""
MAX_RID: Final = 260
MAX_KNOWN: Final = 65_536
"""Requests that are remembered at most. One whose end the hooks do not see is forgotten when so many others came."""


class _Known:
    """A request on its way through the worker."""

    __slots__ = ("decoding", "prefilling", "req")

    def __init__(self, req: Any) -> None:
        self.req = req
        self.prefilling = False
        self.decoding = False


class Lifecycle:
    """Emits the ``llm.*`` events of one scheduler.

    Args:
        emit: takes an event and neither blocks nor raises.
    """

    def __init__(self, emit: Callable[[Event], object]) -> None:
        self.role: Role = "mixed"
        """The role that the worker has now, and ``epoch`` that role's number."""
        self.epoch = 0
        self.output_tokens_total = 0
        self._emit = emit
        self._worker_id = "unknown"
        self._dp_rank: int | None = None
        self._known: dict[str, _Known] = {}

    def identify(self, worker_id: str, dp_rank: int | None) -> None:
        """Say who reports; ``dp_rank`` is None where there is only one rank."""
        self._worker_id, self._dp_rank = worker_id, dp_rank

    def queued(self, _scheduler: Any, req: Any, is_retracted: bool = False) -> None:
        """A request enters the worker; a retracted one has entered before."""
        rid = req.rid
        if is_retracted or not rid or len(rid) > MAX_RID or rid.startswith(HEALTH_CHECK):
            return
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[rid] = _Known(req)
        prompt_tokens = len(req.origin_input_ids)
        self._emit(LlmQueued(rid=rid, prompt_tokens=prompt_tokens, **self._who()))

    def batch_starts(self, _scheduler: Any, batch: Any, *_: Any) -> None:
        """A batch is launched: the requests that it begins to prefill."""
        if not batch.forward_mode.is_extend():
            return
        for req in batch.reqs:
            known = self._known.get(req.rid)
            if known is not None and not known.prefilling and not req.output_ids:
                known.prefilling = True
                self._emit(LlmPrefillStart(rid=req.rid, **self._who()))

    def batch_done(self, _result: Any, _scheduler: Any, batch: Any, *_: Any) -> None:
        """A batch's result is in: prompts that are whole now, and output tokens."""
        if batch.forward_mode.is_extend():
            for req in batch.reqs:
                known = self._known.get(req.rid)
                if known is not None and known.prefilling and req.output_ids:
                    self._prefilled(known)
        elif batch.forward_mode.is_decode():
            self.output_tokens_total += len(batch.reqs)

    def admitted(self, result: Any, _queue: Any, *_: Any, **__: Any) -> None:
        """Decode has reserved KV for requests."""
        for waiting in result[0]:
            req = waiting.req
            if req.rid in self._known:
                self._emit(LlmAdmitted(rid=req.rid, kv_tokens=req.kv.kv_allocated_len, **self._who()))

    def output(self, _result: Any, _streamer: Any, reqs: Iterable[Any], *_: Any, **__: Any) -> None:
        """Output has left for the clients: first tokens and ends."""
        answers = self.role != "prefill"  # the answer of a pair is the decode worker's
        for req in reqs:
            known = self._known.get(req.rid)
            if known is None:
                continue
            if answers and not known.decoding and req.output_ids:
                known.decoding = True
                self._emit(LlmFirstToken(rid=req.rid, worker_id=self._worker_id))
            if req.finished_reason is not None:
                del self._known[req.rid]
                if answers:
                    self._ended(req, finish_reason(req.finished_reason.to_json()))

    def aborted(self, _result: Any, _scheduler: Any, _abort: Any, req: Any) -> None:
        """A request has ended outside of the output stream."""
        if self._known.pop(req.rid, None) is not None and self.role != "prefill":
            self._ended(req, "abort")

    def progress(self) -> LlmProgress | None:
        """What decodes and what prefills now, or None if nothing does; may be called from any thread."""
        known = list(self._known.values())
        output = tuple((item.req.rid, len(item.req.output_ids)) for item in known if item.decoding)
        prefilled = tuple((item.req.rid, _computed(item.req)) for item in known if item.prefilling)
        if not output and not prefilled:
            return None
        return LlmProgress(worker_id=self._worker_id, output=output, prefilled=prefilled)

    def feature(self) -> Feature:
        """The hooks that feed it."""
        scheduler = "managers.scheduler.Scheduler"
        streamer = "managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
        return Feature(
            "events",
            (
                Hook("before", f"{scheduler}._add_request_to_queue", self.queued),
                Hook("before", f"{scheduler}.run_batch", self.batch_starts),
                Hook("after", f"{scheduler}.process_batch_result", self.batch_done),
                Hook("after", f"{scheduler}.send_abort_output", self.aborted),
                Hook("after", f"{streamer}.stream_output", self.output),
                Hook("after", "disaggregation.decode.DecodePreallocQueue.pop_preallocated", self.admitted),
            ),
        )

    def _prefilled(self, known: _Known) -> None:
        known.prefilling = False
        req = known.req
        cached = req.cached_tokens
        computed = max(0, len(req.origin_input_ids) - cached)
        self._emit(LlmPrefillEnd(rid=req.rid, cached_tokens=cached, computed_tokens=computed, **self._who()))

    def _ended(self, req: Any, reason: FinishReason) -> None:
        request_id, attempt = split_rid(req.rid)
        if request_id != req.rid:
            return  # Prorsa's router says it, with the tokens of all attempts
        self._emit(
            LlmEnd(
                request_id=request_id,
                attempt=attempt,
                output_tokens=len(req.output_ids),
                finish_reason=reason,
                cached_tokens=req.cached_tokens,
            )
        )

    def _who(self) -> dict[str, Any]:
        return {"worker_id": self._worker_id, "dp_rank": self._dp_rank, "epoch": self.epoch}


def finish_reason(reason: dict[str, Any]) -> FinishReason:
    """SGLang's finish reason in the schema's words; an abort with a server error's status is an error."""
    kind = reason["type"]
    if kind == "abort":
        return "error" if int(reason.get("status_code") or 0) >= 500 else "abort"
    return "length" if kind == "length" else "stop"


def _computed(req: Any) -> int:
    """Prompt tokens whose KV the chunks so far have computed."""
    return max(0, int(req.prefix_len) - int(req.cached_tokens))
