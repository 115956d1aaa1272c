"""Requests to a pair of workers, with the standard library alone."""

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from testbed.pool import Worker

_legs = ThreadPoolExecutor(256, thread_name_prefix="leg")
_random = random.Random()
_lock = threading.Lock()


class HttpError(RuntimeError):
    """A worker answered with a status that is not 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class Answer(NamedTuple):
    """What the decode leg answered, and the prompt tokens that the prefill worker had in its cache."""

    output_ids: list[int]
    cached_tokens: int
    finish_reason: str
    meta: dict[str, Any]


def request(method: str, url: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
    """The answer as JSON, or as text if it is none.

    Raises:
        HttpError: on a status that is not 200.
        OSError: if nobody answers within ``timeout_s``.
    """
    data = None if body is None else json.dumps(body).encode()
    order = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(order, timeout=timeout_s) as reply:
            text = reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise HttpError(error.code, error.read().decode(errors="replace")) from None
    try:
        return json.loads(text)
    except ValueError:
        return text


def generate(
    prefill: "Worker",
    decode: "Worker",
    input_ids: Sequence[int],
    max_new_tokens: int = 16,
    *,
    rid: str | None = None,
    timeout_s: float = 60.0,
    **more: Any,
) -> Answer:
    """One greedy request through a pair of workers, both legs at once.

    Raises:
        HttpError: as the decode leg answers; as the prefill leg does if only that one fails.
        OSError: if a leg does not answer within ``timeout_s``.
    """
    body = {
        "input_ids": list(input_ids),
        "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": room(),
        **more,
    }
    if rid is not None:
        body["rid"] = rid
    first = _legs.submit(request, "POST", prefill.url + "/generate", body, timeout_s)
    second = _legs.submit(request, "POST", decode.url + "/generate", body, timeout_s)
    answer = second.result()
    first.result()
    meta = answer["meta_info"]
    return Answer(answer["output_ids"], meta["cached_tokens"], meta["finish_reason"]["type"], meta)


def room() -> int:
    """A bootstrap room that no other request has."""
    with _lock:
        return _random.randrange(1, 2**63)
