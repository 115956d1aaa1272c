"""Cancel and resume: which requests can go on elsewhere from their tokens so far, and how. No I/O.

A resumed request sends ``prompt + output so far`` as token ids. That equals the undisturbed run exactly if nothing else
depends on where the output began. What does is listed in :func:`why_not_exact`; such a request is left to finish, or
runs again from the start.
"""

from typing import Any, Final

from prorsa.cluster.router.inbound import DEFAULT_MAX_NEW_TOKENS, Single

_GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
_COUNTED: Final = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0}
_MEDIA: Final = ("image_data", "video_data", "audio_data")


def why_not_exact(single: Single) -> str | None:
    """Why a request cannot resume exactly, or None if it can."""
    if single.kind != "generate":
        return "the worker renders chat and parses answers as a whole"
    body, params = single.body, single.body["sampling_params"]
    reasons = (
        (not single.units, "its prompt is not token ids or text"),
        (any(params.get(key) for key in _GRAMMARS), "grammar state"),
        (any(params.get(key) not in (None, neutral) for key, neutral in _COUNTED.items()), "penalties count output"),
        (bool(params.get("stop") or params.get("stop_regex")), "a stop string may lie over the seam"),
        (params.get("beam_width") not in (None, 1), "beam search"),
        (bool(body.get("custom_logit_processor")) or bool(params.get("custom_params")), "a logit processor with state"),
        (bool(params.get("watermark") or body.get("watermark")), "a watermark over the seam"),
        (body.get("return_hidden_states") not in (None, False), "hidden states"),
        (bool(body.get("return_indexer_topk")), "indexer top-k"),
        (bool(body.get("session_params")), "the worker holds its session"),
        (any(body.get(key) for key in _MEDIA), "media in the prompt"),
        (body.get("input_embeds") is not None, "embeddings as prompt"),
    )
    return next((text for applies, text in reasons if applies), None)


def remaining_tokens(single: Single, kept: int) -> int | None:
    """Output tokens that are left after ``kept``; None where the request names no limit on purpose (null)."""
    limit = single.body["sampling_params"].get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    return None if limit is None else int(limit) - kept


def resume_body(single: Single, prompt: list[int], kept: list[int]) -> dict[str, Any]:
    """The body that goes on after ``kept`` output tokens.

    Input logprobs were given by the first attempt and are not asked for again; routed experts are asked for from where
    the aborted attempt's end (SGLang returns rows for ``[start, length - 1)``).
    """
    body = {key: value for key, value in single.body.items() if key != "text"}
    body["input_ids"] = [*prompt, *kept]
    body["sampling_params"] = {**body["sampling_params"], "max_new_tokens": remaining_tokens(single, len(kept))}
    if body.get("return_logprob"):
        body["logprob_start_len"] = -1
    if body.get("return_routed_experts"):
        body["routed_experts_start_len"] = len(prompt) + len(kept) - 1
    return body
