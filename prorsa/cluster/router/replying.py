"""Answers, chunks and errors as clients get them. No I/O."""

from typing import Any

from prorsa.cluster.router.attempt import Attempt, finish_type
from prorsa.cluster.router.inbound import chat_text
from prorsa.cluster.router.jobs import Answer, Job
from prorsa.cluster.router.merge import Segment, join
from prorsa.cluster.router.sessions import Units
from prorsa.events import FinishReason

_FINISH: dict[str | None, FinishReason] = {"length": "length", "abort": "abort", "error": "error"}


def error_body(message: str, *, kind: str, retryable: bool) -> dict[str, Any]:
    """An error as SGLang and OpenAI clients read it."""
    return {"error": {"message": message, "type": kind, "retryable": retryable}}


def error_answer(status: int, message: str, *, retry_after_s: int | None = None) -> Answer:
    """The end of a request that could not be answered; with ``retry_after_s`` the client may send it again."""
    body = error_body(message, kind="service_unavailable", retryable=retry_after_s is not None)
    return Answer(status, body, retry_after_s=retry_after_s)


def aborted_answer(job: Job) -> Answer:
    """The answer to a request that its client took back before it had any output: an ordinary one, without tokens."""
    meta: dict[str, Any] = {
        "id": job.answer_id,
        "finish_reason": {"type": "abort", "message": "aborted by the client"},
        "prompt_tokens": job.prompt.tokens,
        "completion_tokens": 0,
    }
    if job.single.kind == "generate":
        body: dict[str, Any] = {"text": "", "output_ids": [], "meta_info": meta}
        if job.segments:
            body = join(job.segments, rid=job.answer_id)
            body["meta_info"]["finish_reason"] = meta["finish_reason"]
        return Answer(200, body, finish="abort")
    choice: dict[str, Any] = {"index": 0, "finish_reason": "abort", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": ""}} if job.single.kind == "chat" else {"text": ""}
    usage = {"prompt_tokens": job.prompt.tokens, "completion_tokens": 0, "total_tokens": job.prompt.tokens}
    return Answer(200, {"id": job.answer_id, "choices": [choice], "usage": usage}, finish="abort")


def whole_body(job: Job, last: Segment) -> dict[str, Any]:
    """The answer's body from all that the attempts of a request made."""
    if job.single.kind != "generate":
        return last.reply
    return join([*job.segments, last], rid=job.answer_id)


def chunk_body(job: Job, attempt: Attempt, chunk: dict[str, Any]) -> dict[str, Any]:
    """One chunk of a stream, with what earlier attempts made in front of it."""
    if job.single.kind != "generate":
        return chunk
    if attempt.incremental:
        return {**chunk, "meta_info": {**chunk.get("meta_info", {}), "id": job.answer_id}}
    segment = Segment(
        chunk,
        attempt.prefill_reply,
        attempt.pair.prefill.worker_id,
        attempt.pair.decode.worker_id,
        attempt.prompt_tokens,
    )
    return whole_body(job, segment)


def finish_of(job: Job, reply: dict[str, Any]) -> FinishReason:
    """Why an answer ended, in the words of the events."""
    return _FINISH.get(finish_type(job.single, reply), "stop")


def prompt_tokens_of(job: Job, body: dict[str, Any]) -> int | None:
    """Prompt tokens by the worker's own count."""
    source = body.get("meta_info") if job.single.kind == "generate" else body.get("usage")
    value = source.get("prompt_tokens") if isinstance(source, dict) else None
    return value if isinstance(value, int) else None


def output_tokens_of(job: Job, body: dict[str, Any]) -> int:
    """Output tokens of an answer."""
    source = body.get("meta_info") if job.single.kind == "generate" else body.get("usage")
    value = source.get("completion_tokens") if isinstance(source, dict) else None
    return value if isinstance(value, int) else 0


def cached_tokens_of(job: Job, last: Segment) -> int | None:
    """Prompt tokens that were not computed, over all attempts; None where the workers do not say."""
    segments = [*job.segments, last]
    if job.single.kind == "generate":
        known = [segment.cached_tokens for segment in segments]
    else:
        source = last.prefill if last.prefill is not None else last.reply
        details = (source.get("usage") or {}).get("prompt_tokens_details") or {}
        known = [details.get("cached_tokens")]
    values = [value for value in known if value is not None]
    return sum(values) if values else None


def tool_calls_of(job: Job, body: dict[str, Any]) -> tuple[str, ...] | None:
    """Names of the tools that a chat answer calls; None where answers are not parsed."""
    if job.single.kind != "chat":
        return None
    message = (body.get("choices") or [{}])[0].get("message") or {}
    calls = message.get("tool_calls") or ()
    return tuple(call.get("function", {}).get("name") or "unknown" for call in calls)


def context_of(job: Job, body: dict[str, Any]) -> Units:
    """Prompt and output as the next turn's prompt will begin, in the units of the prompt."""
    units = job.single.units
    if job.single.kind == "generate":
        if isinstance(units, list):
            return [*units, *body.get("output_ids", ())]
        return units + (body.get("text") or "")
    choice = (body.get("choices") or [{}])[0]
    if isinstance(units, list):
        return units
    if job.single.kind == "completions":
        return units + (choice.get("text") or "")
    message = choice.get("message")
    return units + chat_text([{"role": "assistant", **message}]) if isinstance(message, dict) else units
