"""Cancelled requests go on elsewhere, and clients see one ordinary answer."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from testbed.pool import Pool
from tests.live.router.running import MARGIN, Client, Flipper, RunningRouter, greedy, prompt, slow

TOKENS = 120


async def clear_prompt(client: Client, seed: int, tokens: int = 80) -> tuple[list[int], dict[str, Any]]:
    """A prompt and its undisturbed answer, whose best token always leads by a margin that batches cannot close."""
    for offset in range(20):
        ids = prompt(1000 * seed + offset, tokens)
        answer = await client.generate(greedy(ids, TOKENS, return_logprob=True, top_logprobs_num=2))
        tops = answer["meta_info"]["output_top_logprobs"]
        if min(first[0] - second[0] for first, second in tops) >= MARGIN:
            return ids, answer
    raise AssertionError("no prompt with clear margins")


async def decoding_worker(client: Client) -> str:
    table = await client.until(lambda table: any(row["load"]["decoding"] for row in table["workers"]))
    return next(row["worker_id"] for row in table["workers"] if row["load"]["decoding"])


async def drained(client: Client, flipper: Flipper, delay_s: float = 1.0) -> str:
    """Empty the worker that decodes after a while, and let it serve on."""
    worker = await decoding_worker(client)
    await asyncio.sleep(delay_s)
    row = await client.row(worker)
    for action in ("fence", "drain", "admit"):
        result = await flipper.step(action, worker, row["role"], row["epoch"] + 1)
        assert result.ok, result
    return worker


async def test_a_resumed_answer_is_the_undisturbed_one(client: Client, pool: Pool, flipper: Flipper) -> None:
    ids, undisturbed = await clear_prompt(client, 1)
    slow(pool, 0.02, "B", "C")
    request = asyncio.create_task(client.generate(greedy(ids, TOKENS, return_logprob=True, top_logprobs_num=2)))
    first = await drained(client, flipper)
    second = await drained(client, flipper, 0.5)
    answer = await request
    meta = answer["meta_info"]
    segments = meta["prorsa"]["segments"]
    assert first != second
    assert [segment["decode_worker"] for segment in segments] == [first, second, first]
    assert all(segment["output_tokens"] > 0 for segment in segments)
    assert answer["output_ids"] == undisturbed["output_ids"]
    assert answer["text"] == undisturbed["text"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), TOKENS)
    assert meta["finish_reason"] == undisturbed["meta_info"]["finish_reason"]
    logprobs = [item[0] for item in meta["output_token_logprobs"]]
    assert logprobs == pytest.approx([item[0] for item in undisturbed["meta_info"]["output_token_logprobs"]], abs=1e-4)
    assert len(meta["output_top_logprobs"]) == TOKENS


async def test_a_resumed_stream_goes_on_where_it_was(client: Client, pool: Pool, flipper: Flipper) -> None:
    ids, undisturbed = await clear_prompt(client, 2)
    slow(pool, 0.02, "B", "C")
    request = asyncio.create_task(client.stream("/generate", greedy(ids, TOKENS)))
    await drained(client, flipper)
    chunks = await request
    counts = [len(chunk["output_ids"]) for chunk in chunks]
    assert counts == sorted(counts), "a chunk never says less than the one before"
    assert chunks[-1]["output_ids"] == undisturbed["output_ids"]
    assert chunks[-1]["text"] == undisturbed["text"]
    assert sum(chunk["meta_info"]["finish_reason"] is not None for chunk in chunks) == 1
    assert len(chunks[-1]["meta_info"]["prorsa"]["segments"]) == 2


async def test_a_text_prompt_resumes_too(client: Client, pool: Pool, flipper: Flipper) -> None:
    body = {"text": "the quick brown fox" * 3, "sampling_params": greedy([], TOKENS)["sampling_params"]}
    undisturbed = await client.generate(body)
    slow(pool, 0.02, "B", "C")
    request = asyncio.create_task(client.generate(body))
    await drained(client, flipper)
    answer = await request
    assert len(answer["meta_info"]["prorsa"]["segments"]) == 2
    assert answer["output_ids"] == undisturbed["output_ids"]
    assert answer["text"] == undisturbed["text"]


async def test_what_cannot_resume_is_left_to_finish(client: Client, pool: Pool, flipper: Flipper) -> None:
    slow(pool, 0.02, "B", "C")
    request = asyncio.create_task(client.generate(greedy(prompt(30, 60), 100, params={"stop": ["\x00never\x00"]})))
    await drained(client, flipper)
    answer = await request
    assert len(answer["output_ids"]) == 100
    assert "prorsa" not in answer["meta_info"]


async def test_chat_runs_again_when_it_would_take_too_long(client: Client, pool: Pool, flipper: Flipper) -> None:
    chat = {"model": "tiny", "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    chat["messages"] = [{"role": "user", "content": "hi"}]
    _, undisturbed = await client.post("/v1/chat/completions", chat)
    slow(pool, 0.1, "B", "C")
    request = asyncio.create_task(client.post("/v1/chat/completions", chat))
    worker = await decoding_worker(client)
    row = await client.row(worker)
    await asyncio.sleep(0.5)
    assert (await flipper.step("fence", worker, "decode", row["epoch"] + 1)).ok
    result = await flipper.step("drain", worker, "decode", row["epoch"] + 1, deadline_s=3)
    assert (result.ok, result.requests_resumed) == (True, 1)
    slow(pool, None, "B", "C")
    status, answer = await request
    assert status == 200
    assert answer["choices"][0]["message"] == undisturbed["choices"][0]["message"]


async def test_a_stream_that_cannot_resume_fails_the_drain_and_not_the_client(
    client: Client, pool: Pool, flipper: Flipper
) -> None:
    chat = {"model": "tiny", "max_tokens": 150, "ignore_eos": True, "messages": [{"role": "user", "content": "hi"}]}
    slow(pool, 0.04, "B", "C")
    request = asyncio.create_task(client.stream("/v1/chat/completions", chat))
    worker = await decoding_worker(client)
    row = await client.row(worker)
    await asyncio.sleep(0.5)
    assert (await flipper.step("fence", worker, "decode", row["epoch"] + 1)).ok
    result = await flipper.step("drain", worker, "decode", row["epoch"] + 1, deadline_s=1.5)
    assert not result.ok
    assert (await flipper.step("admit", worker, "decode", row["epoch"] + 1)).ok
    chunks = await request
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_under_rerun_a_request_begins_again(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, pool: Pool
) -> None:
    client = Client(http, start_router(resume_policy="rerun").url)
    flipper = Flipper(client, http)
    undisturbed = await client.generate(greedy(prompt(40, 60), 40))
    slow(pool, 0.1, "B", "C")
    request = asyncio.create_task(client.generate(greedy(prompt(40, 60), 40)))
    worker = await decoding_worker(client)
    row = await client.row(worker)
    await asyncio.sleep(0.8)
    assert (await flipper.step("fence", worker, "decode", row["epoch"] + 1)).ok
    assert (await flipper.step("drain", worker, "decode", row["epoch"] + 1, deadline_s=2)).ok
    slow(pool, None, "B", "C")
    answer = await request
    assert "prorsa" not in answer["meta_info"]
    assert answer["output_ids"] == undisturbed["output_ids"]


async def test_other_weights_start_a_request_again(client: Client, pool: Pool, flipper: Flipper) -> None:
    slow(pool, 0.06, "B", "C")  # it must still run when all have heard of the weights
    request = asyncio.create_task(client.generate(greedy(prompt(50, 60), 100)))
    worker = await decoding_worker(client)
    await asyncio.sleep(0.8)
    for other in pool.workers:
        if other.name != worker:
            other.post("/update_weight_version", {"new_version": "9", "abort_all_requests": False})
    await client.until(lambda table: sum(row["weight_version"] == "9" for row in table["workers"]) == 3, 10)
    row = await client.row(worker)
    for action in ("fence", "drain"):
        assert (await flipper.step(action, worker, "decode", row["epoch"] + 1)).ok
    pool[worker].post("/update_weight_version", {"new_version": "9", "abort_all_requests": False})
    answer = await request
    for other in pool.workers:
        other.post("/update_weight_version", {"new_version": "default", "abort_all_requests": False})
    assert len(answer["output_ids"]) == 100
    assert {span["version"] for span in answer["meta_info"]["weight_versions"]} == {"9"}
    assert "prorsa" not in answer["meta_info"]
