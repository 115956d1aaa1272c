"""Answers put together: prefill and decode leg of one attempt, and the segments of a resumed request. No I/O.

A client sees one ordinary SGLang answer. What a resumed request adds stands under ``meta_info.prorsa``.
"""

import base64
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

_LISTS: Final = (
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
    "output_token_sampling_mask",
    "output_token_sampling_logprobs",
)
_LENGTHS: Final = {
    "output_token_logprobs_length": "output_token_logprobs",
    "output_token_sampling_mask_length": "output_token_sampling_mask",
}
_OF_PROMPT: Final = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_TEXT_HOLE: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class Segment:
    """What one attempt contributed.

    Attributes:
        reply: the decode leg's answer, complete or as far as it came.
        prefill: the prefill leg's answer, or None if the worker was mixed or the leg gave none.
        prefill_worker, decode_worker: who made it.
        prompt_tokens: length of the prompt that this attempt was given.
    """

    reply: dict[str, Any]
    prefill: dict[str, Any] | None
    prefill_worker: str
    decode_worker: str
    prompt_tokens: int

    @property
    def output_ids(self) -> list[int]:
        """Output tokens of this attempt."""
        ids = self.reply.get("output_ids")
        return ids if isinstance(ids, list) else []

    @property
    def meta(self) -> dict[str, Any]:
        """The decode leg's ``meta_info``."""
        meta = self.reply.get("meta_info")
        return meta if isinstance(meta, dict) else {}

    @property
    def weight_version(self) -> str | None:
        """The weights that the last of its tokens came from."""
        return weight_version(self.reply)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that prefill did not compute; decode's own count tells what was not transferred."""
        source = self.meta if self.prefill is None else self.prefill.get("meta_info", {})
        return source.get("cached_tokens")


def join(segments: list[Segment], *, rid: str) -> dict[str, Any]:
    """One answer of ``/generate`` from the segments of a request, in order.

    ``text`` is joined as it is; where a character was cut by a seam (see :func:`cut_at_seam`) the caller has the whole
    output decoded instead. Returns a new dict; ``segments`` must not be empty.
    """
    first, last = segments[0], segments[-1]
    meta = dict(last.meta)
    meta["id"] = rid
    if first.cached_tokens is not None:
        meta["cached_tokens"] = first.cached_tokens
    _take_prompt_side(meta, first)
    answer = {**last.reply, "meta_info": meta}
    if len(segments) == 1:
        _stitch_experts(meta, segments)
        return answer
    outputs = [token for segment in segments for token in segment.output_ids]
    answer["output_ids"] = outputs
    if any("text" in segment.reply for segment in segments):
        answer["text"] = "".join(segment.reply.get("text") or "" for segment in segments)
    meta["prompt_tokens"] = first.meta.get("prompt_tokens", first.prompt_tokens)
    meta["completion_tokens"] = len(outputs)
    if (meta.get("finish_reason") or {}).get("type") == "length":
        meta["finish_reason"] = {**meta["finish_reason"], "length": len(outputs)}
    _join_lists(meta, segments)
    _stitch_experts(meta, segments)
    meta["weight_versions"] = spans(segments)
    meta["prorsa"] = {"segments": [_describe(segment) for segment in segments]}
    return answer


def cut_at_seam(segments: list[Segment]) -> bool:
    """Whether a seam cut through a character, so that joining the texts is not the text of the joined tokens."""
    texts = [segment.reply.get("text") or "" for segment in segments]
    return any(a.endswith(_TEXT_HOLE) or b.startswith(_TEXT_HOLE) for a, b in pairwise(texts))


def spans(segments: list[Segment]) -> list[dict[str, Any]]:
    """``weight_versions`` of the whole output, as SGLang gives them: ``[{version, start, end}]``, like ones joined."""
    joined: list[dict[str, Any]] = []
    offset = 0
    for segment in segments:
        count = len(segment.output_ids)
        whole: list[dict[str, Any]] = [{"version": segment.weight_version, "start": 0, "end": count}]
        for span in segment.meta.get("weight_versions") or whole:
            start, end = span["start"] + offset, min(span["end"], count) + offset
            if joined and joined[-1]["version"] == span["version"]:
                joined[-1]["end"] = end
            elif end > start:
                joined.append({"version": span["version"], "start": start, "end": end})
        offset += count
    return joined


def same_weights(segment: Segment) -> bool:
    """Whether both legs of an attempt ran on the same weights; True where a leg does not say."""
    if segment.prefill is None:
        return True
    versions = segment.meta.get("weight_versions") or [{"version": segment.weight_version}]
    prefill = weight_version(segment.prefill)
    return prefill is None or versions[0]["version"] in (None, prefill)


def weight_version(reply: dict[str, Any]) -> str | None:
    """The weights that the end of a reply came from, in SGLang's form or in OpenAI's."""
    source = reply.get("meta_info") or reply.get("metadata") or {}
    version = source.get("weight_version")
    return version if isinstance(version, str) else None


def _take_prompt_side(meta: dict[str, Any], first: Segment) -> None:
    source = first.prefill["meta_info"] if first.prefill is not None else first.meta
    for key in _OF_PROMPT:
        if key in source:
            meta[key] = source[key]


def _join_lists(meta: dict[str, Any], segments: list[Segment]) -> None:
    for key in _LISTS:
        parts = [segment.meta.get(key) for segment in segments]
        if any(parts):
            meta[key] = [item for part in parts if part for item in part]
    for length, key in _LENGTHS.items():
        if key in meta:
            meta[length] = len(meta[key])


def _stitch_experts(meta: dict[str, Any], segments: list[Segment]) -> None:
    """Routed experts: rows of the prompt from the prefill leg, rows of the output from each decode leg.

    SGLang answers rows for ``[start, length - 1)``; a decode worker has never computed the rows of its prompt.
    """
    rows = [piece for segment in segments if (piece := _expert_rows(segment)) is not None]
    if len(rows) == len(segments):
        meta["routed_experts"] = base64.b64encode(b"".join(rows)).decode()


def _expert_rows(segment: Segment) -> bytes | None:
    text = segment.meta.get("routed_experts")
    if not isinstance(text, str):
        return None
    whole = base64.b64decode(text)
    prompt = segment.prefill["meta_info"].get("routed_experts") if segment.prefill is not None else None
    if not isinstance(prompt, str):
        return whole
    head = base64.b64decode(prompt)
    return head + whole[len(head) :]


def _describe(segment: Segment) -> dict[str, Any]:
    return {
        "output_tokens": len(segment.output_ids),
        "weight_version": segment.weight_version,
        "prefill_worker": segment.prefill_worker,
        "decode_worker": segment.decode_worker,
        "cached_tokens": segment.cached_tokens,
    }


def join_openai(answers: list[dict[str, Any]], prompts: list[int]) -> dict[str, Any]:
    """One OpenAI answer from those of its singles; ``prompts[i]`` is the prompt that answer ``i`` belongs to."""
    whole = dict(answers[0])
    whole["choices"] = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    usages = [answer.get("usage") or {} for answer in answers]
    of_prompt = {prompt: usage.get("prompt_tokens", 0) for prompt, usage in zip(prompts, usages, strict=True)}
    prompt_tokens = sum(of_prompt.values())
    completion_tokens = sum(usage.get("completion_tokens", 0) for usage in usages)
    whole["usage"] = {
        **usages[0],
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    return whole
