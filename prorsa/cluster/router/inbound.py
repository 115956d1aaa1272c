"""What clients send, taken apart: a batch becomes single requests whose answers are put together again. No I/O.

Upstream every request is single and has ``n = 1``, so that each can be placed, cancelled and resumed by itself.
"""

import copy
from dataclasses import dataclass
from typing import Any, Final, Literal

from prorsa.cluster.router.sessions import Units
from prorsa.errors import InputError

Kind = Literal["generate", "completions", "chat"]

PATHS: Final[dict[Kind, str]] = {
    "generate": "/generate",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
DEFAULT_MAX_NEW_TOKENS: Final = 128
"""What SGLang's ``/generate`` takes where the request says nothing."""

_PER_ITEM: Final = (
    "image_data", "video_data", "audio_data", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "token_ids_logprob", "return_sampling_mask", "sampling_logprobs_mode", "return_hidden_states", "lora_path",
    "custom_logit_processor", "extra_key", "cache_salt", "sampling_params", "mm_hashes", "mm_content_hashes",
)  # fmt: skip
"""Fields of ``/generate`` that may be lists with one value an item."""

_OURS: Final = ("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "rid", "stream")


@dataclass(frozen=True, slots=True)
class Single:
    """One request upstream.

    Attributes:
        body: what is sent, without id, stream and bootstrap fields.
        units: the prompt as tokens or text; empty where neither is known (embeddings).
        client_rid: the id that the client gave it, or None.
        index: its place among the answers of the client's request.
        prompt_index: the prompt it belongs to (several singles of one prompt where ``n > 1``).
    """

    kind: Kind
    body: dict[str, Any]
    units: Units
    client_rid: str | None
    index: int = 0
    prompt_index: int = 0


@dataclass(frozen=True, slots=True)
class Inbound:
    """A client's request: its singles, whether it streams, and whether its answer is a list."""

    kind: Kind
    singles: list[Single]
    stream: bool
    many: bool
    include_usage: bool = False


def take_apart(kind: Kind, body: dict[str, Any]) -> Inbound:
    """Split a client's request into singles.

    Raises:
        InputError: if it is malformed in a way that matters here; the rest the workers check.
    """
    if kind == "generate":
        return _generate(body)
    return _openai(kind, body)


def _generate(body: dict[str, Any]) -> Inbound:
    name = next((key for key in ("input_ids", "text") if body.get(key) is not None), None)
    if name is None and body.get("input_embeds") is None:
        raise InputError("no prompt: give `input_ids` (token ids) or `text`")
    value = body[name or "input_embeds"]
    many = (
        isinstance(value, list) and bool(value) and (name == "text" or isinstance(value[0], list)) and name is not None
    )
    if isinstance(value, list) and not value:
        raise InputError(f"`{name}` is empty: give at least one token")
    prompts = value if many else [value]
    n = _samples(body, len(prompts))
    rids = _rids(body.get("rid"), len(prompts), many)
    shared = {key: value for key, value in body.items() if key not in _OURS}
    singles: list[Single] = []
    for item, prompt in enumerate(prompts):
        for _ in range(n):
            single = {**shared, name or "input_embeds": prompt}
            if many:
                _pick(single, item, len(prompts))
            single["sampling_params"] = {**(single.get("sampling_params") or {}), "n": 1}
            units = prompt if name is not None else []
            singles.append(Single("generate", single, units, rids[item], len(singles), item))
    return Inbound("generate", singles, bool(body.get("stream")), many or n > 1)


def _pick(single: dict[str, Any], item: int, count: int) -> None:
    for key in _PER_ITEM:
        value = single.get(key)
        if isinstance(value, list) and len(value) == count and not (key == "token_ids_logprob" and _flat(value)):
            single[key] = value[item]


def _flat(value: list[Any]) -> bool:
    return all(isinstance(item, int) for item in value)


def _samples(body: dict[str, Any], prompts: int) -> int:
    params = body.get("sampling_params")
    all_params = params if isinstance(params, list) else [params or {}]
    if isinstance(params, list) and len(params) != prompts:
        raise InputError(f"{len(params)} sampling_params for {prompts} prompts: give one for all, or one each")
    counts = {int((each or {}).get("n", 1)) for each in all_params}
    if len(counts) > 1:
        raise InputError("sampling_params with different `n` in one batch: send them apart")
    if any(each and each.get("beam_width") not in (None, 1) for each in all_params):
        return 1
    return counts.pop()


def _rids(rid: object, count: int, many: bool) -> list[str | None]:
    if isinstance(rid, list):
        if len(rid) != count:
            raise InputError(f"{len(rid)} rids for {count} prompts: give one each, or one for all")
        return rid
    if not isinstance(rid, str):
        return [None] * count
    if not many:
        return [rid]
    return [f"{rid}_{item}" for item in range(count)]


def _openai(kind: Kind, body: dict[str, Any]) -> Inbound:
    prompts: list[Any] = [body.get("messages" if kind == "chat" else "prompt")]
    if prompts[0] is None:
        raise InputError(f"no prompt: give `{'messages' if kind == 'chat' else 'prompt'}`")
    if kind == "completions" and isinstance(prompts[0], list) and prompts[0] and not isinstance(prompts[0][0], int):
        prompts = prompts[0]
    n = int(body.get("n") or 1)
    shared = {key: value for key, value in body.items() if key not in (*_OURS, "stream_options")}
    options = body.get("stream_options") or {}
    singles: list[Single] = []
    for item, prompt in enumerate(prompts):
        for _ in range(n):
            single = copy.copy(shared)
            single["n"] = 1
            if kind == "completions":
                single["prompt"] = prompt
            units = chat_text(prompt) if kind == "chat" else prompt
            singles.append(Single(kind, single, units, _text_or_none(body.get("rid")), len(singles), item))
    return Inbound(kind, singles, bool(body.get("stream")), len(singles) > 1, bool(options.get("include_usage")))


def chat_text(messages: object) -> str:
    """Chat messages as text whose prefixes are those of the rendered prompt, for the prefix index only."""
    if not isinstance(messages, list):
        raise InputError("`messages` must be a list of {role, content}")
    return "".join(_message_text(message) for message in messages)


def _message_text(message: object) -> str:
    if not isinstance(message, dict):
        raise InputError("`messages` must be a list of {role, content}")
    calls = message.get("tool_calls")
    return f"{message.get('role')}: {message.get('content') or ''}{calls or ''}\n"


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
