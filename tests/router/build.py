"""Small makers for the tests of the router's pure parts."""

from typing import Any

from prorsa.cluster.router.choose import Limits, Load, Pool, Wish
from prorsa.cluster.router.merge import Segment
from prorsa.cluster.router.sessions import Prompt, Reuse
from prorsa.cluster.router.table import Entry, Table


def entry(worker_id: str, role: str, **fields: Any) -> Entry:
    known = {"url": f"http://{worker_id}:1", "bootstrap_host": "10.0.0.1", "bootstrap_port": 9000}
    return Entry(worker_id=worker_id, role=role, **{**known, **fields})


def table(*entries: Entry, prove: bool = True) -> Table:
    made = Table.empty()
    for one in entries:
        made.put(one)
    if prove:
        for prefill, decode in made.unproven():
            made.prove(prefill, decode)
    return made


def pool(made: Table, *, homes: dict[str, int] | None = None, window: int = 1000, fill: float = 1.0) -> Pool:
    return Pool(made, {}, lambda worker: (homes or {}).get(worker, 0), Limits(window, fill))


def wish(tokens: int = 100, *, shared: int = 0, held: dict[str, int] | None = None, **fields: Any) -> Wish:
    prompt = Prompt(list(range(tokens)), tokens)
    return Wish(**{"kv_tokens": tokens + 64, **fields, "reuse": Reuse(prompt, shared, held or {})})


def load(**fields: int) -> Load:
    return Load(**fields)


def segment(
    output_ids: list[int], *, finish: str = "abort", version: str = "v1", prompt_tokens: int = 3, **meta: Any
) -> Segment:
    info = {
        "id": "x",
        "finish_reason": {"type": finish},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(output_ids),
        "cached_tokens": 2,
        "weight_version": version,
        "weight_versions": [{"version": version, "start": 0, "end": len(output_ids)}],
        "output_token_logprobs": [[-0.1, token, None] for token in output_ids],
        "output_token_logprobs_length": len(output_ids),
        **meta,
    }
    text = "".join(chr(97 + token % 26) for token in output_ids)
    reply = {"text": text, "output_ids": output_ids, "meta_info": info}
    prefill = {"meta_info": {"cached_tokens": 1, "weight_version": version, "input_token_logprobs": [[-1.0, 5, None]]}}
    return Segment(reply, prefill, "p1", "d1", prompt_tokens)
