"""What clients get through the router is what the workers would have said."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.client import generate
from testbed.pool import Pool
from tests.live.router.running import Client, RunningRouter, fresh_name, greedy, idle_within, prompt, slow


async def test_an_answer_equals_that_of_a_pair_asked_directly(client: Client, pool: Pool) -> None:
    ids = prompt(1, 60)
    direct = await asyncio.to_thread(generate, pool["A"], pool["B"], ids, 12, bootstrap_host=fresh_name())
    answer = await client.generate(greedy(ids, 12, rid="mine"))
    assert answer["output_ids"] == direct.output_ids
    assert answer["meta_info"]["id"] == "mine"
    assert answer["meta_info"]["finish_reason"]["type"] == "length"
    assert answer["meta_info"]["prompt_tokens"] == 60
    assert "prorsa" not in answer["meta_info"]


async def test_a_stream_ends_with_the_whole_answer(client: Client) -> None:
    body = greedy(prompt(2, 40), 10)
    whole = await client.generate(body)
    chunks = await client.stream("/generate", body)
    counts = [len(chunk["output_ids"]) for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert chunks[-1]["text"] == whole["text"]
    assert len({chunk["meta_info"]["id"] for chunk in chunks}) == 1


async def test_a_batch_is_answered_in_order(client: Client) -> None:
    prompts = [prompt(seed, 20 + seed) for seed in range(4)]
    alone = [(await client.generate(greedy(ids, 6)))["output_ids"] for ids in prompts]
    together = await client.generate({"input_ids": prompts, "sampling_params": greedy([], 6)["sampling_params"]})
    assert [answer["output_ids"] for answer in together] == alone
    chunks = await client.stream(
        "/generate", {"input_ids": prompts, "sampling_params": greedy([], 6)["sampling_params"]}
    )
    last = {chunk["index"]: chunk["output_ids"] for chunk in chunks}
    assert [last[index] for index in range(4)] == alone


async def test_logprobs_of_the_prompt_come_from_prefill(client: Client) -> None:
    answer = await client.generate(
        greedy(prompt(3, 30), 5, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    )
    meta = answer["meta_info"]
    assert [item[1] for item in meta["input_token_logprobs"]] == prompt(3, 30)
    assert [item[1] for item in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 5


async def test_the_next_turn_finds_its_prefix(client: Client) -> None:
    first = prompt(4, 160)
    answer = await client.generate(greedy(first, 16), session="t")
    second = [*first, *answer["output_ids"], *prompt(5, 20)]
    again = await client.generate(greedy(second, 4), session="t")
    assert again["meta_info"]["cached_tokens"] >= 144


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_and_completions(client: Client, stream: bool) -> None:
    base = {"model": "tiny", "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    chat = {**base, "messages": [{"role": "user", "content": "hi"}], "n": 2}
    completion = {**base, "prompt": ["one", "two"]}
    if stream:
        chunks = await client.stream("/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}})
        indices = {choice["index"] for chunk in chunks for choice in chunk["choices"]}
        assert indices == {0, 1}
        assert chunks[-1]["usage"]["completion_tokens"] == 12
        texts = await client.stream("/v1/completions", completion)
        assert all(chunk["choices"] for chunk in texts), "usage was not asked for"
        return
    status, answer = await client.post("/v1/chat/completions", chat)
    assert (status, len(answer["choices"])) == (200, 2)
    assert answer["usage"]["completion_tokens"] == 12
    status, answer = await client.post("/v1/completions", completion)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]


async def test_what_the_workers_refuse_is_passed_on(client: Client) -> None:
    status, answer = await client.post("/generate", greedy(prompt(6, 3000), 4))
    assert status == 400
    assert "longer than the model's context" in answer["error"]["message"]
    status, answer = await client.post("/generate", {"sampling_params": {}})
    assert (status, answer["error"]["type"]) == (400, "InputError")


async def test_models_health_and_metrics(client: Client) -> None:
    assert (await client.get("/v1/models"))["data"][0]["id"] == "tiny"
    assert (await client.get("/health"))["status"] == "ok"
    await client.generate(greedy(prompt(7, 10), 2))
    async with client.session.get(client.url + "/metrics") as reply:
        text = await reply.text()
    assert 'prorsa_router_requests_total{end="length",kind="generate"} 1.0' in text
    assert 'prorsa_router_workers{role="prefill",state="serving"} 2.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_takes_both_legs_with_it(client: Client, pool: Pool, stream: bool) -> None:
    slow(pool, 0.05, "B", "C")
    request = asyncio.create_task(client.post("/generate", greedy(prompt(8, 60), 800, stream=stream)))
    table = await client.until(lambda table: any(row["load"]["decoding"] for row in table["workers"]))
    busy = next(row["worker_id"] for row in table["workers"] if row["load"]["decoding"])
    await asyncio.sleep(0.5)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    assert await idle_within(pool[busy], 3.0)
    await client.until(lambda table: not any(row["load"]["decoding"] for row in table["workers"]), 3.0)


async def test_a_client_takes_a_request_back_and_gets_what_there_is(client: Client, pool: Pool) -> None:
    slow(pool, 0.05, "B", "C")
    request = asyncio.create_task(client.post("/generate", greedy(prompt(9, 60), 800, rid="take-me-back")))
    await client.until(lambda table: any(row["load"]["decoding"] for row in table["workers"]))
    await asyncio.sleep(0.6)
    assert (await client.post("/abort_request", {"rid": "take-me"}))[1] == {"aborted": 1}
    status, answer = await request
    assert status == 200
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < 800


async def test_past_its_limit_the_queue_turns_requests_away(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, pool: Pool
) -> None:
    client = Client(http, start_router(queue_limit=4, kv_fill=0.1).url)
    slow(pool, 0.05, "B", "C")
    asked = [client.session.post(client.url + "/generate", json=greedy(prompt(seed, 100), 20)) for seed in range(30)]
    replies = await asyncio.gather(*asked)
    statuses = [reply.status for reply in replies]
    turned_away = [reply for reply in replies if reply.status == 503]
    assert set(statuses) == {200, 503}
    assert all(reply.headers["Retry-After"] == "1" for reply in turned_away)
    bodies = [await reply.json() for reply in replies]
    assert all(body["error"]["retryable"] for body in bodies if "error" in body)
    assert all(len(body["output_ids"]) == 20 for body in bodies if "error" not in body)


async def test_a_token_is_asked_for(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret\n")
    url = start_router(token_file=str(tmp_path / "token")).url
    status, answer = await Client(http, url).post("/generate", greedy([5], 1))
    assert (status, answer["error"]["type"]) == (401, "unauthorized")
    assert len((await Client(http, url, "secret").generate(greedy([5], 1)))["output_ids"]) == 1
    assert (await Client(http, url).get("/health"))["status"] == "ok"


async def test_paused_workers_get_nothing_until_they_continue(client: Client) -> None:
    status, answer = await client.post("/pause_generation", {"mode": "in_place"})
    assert (status, answer["success"]) == (200, True)
    request = asyncio.create_task(client.generate(greedy(prompt(10, 20), 4)))
    await client.until(lambda table: table["queued"] == 1 and table["paused"] == ["paused"])
    await client.post("/continue_generation", {})
    assert len((await request)["output_ids"]) == 4


async def test_a_weight_update_empties_the_prefix_index_and_moves_the_version(client: Client) -> None:
    first = prompt(11, 100)
    await client.generate(greedy(first, 4), session="w")
    await client.post("/pause_generation", {"mode": "abort"})
    status, _ = await client.post("/update_weight_version", {"new_version": "7", "abort_all_requests": False})
    assert status == 200
    await client.post("/continue_generation", {})
    table = await client.until(lambda table: bool(table["pairs"]))
    assert {row["weight_version"] for row in table["workers"]} == {"7"}
    answer: dict[str, Any] = await client.generate(greedy(first, 4), session="w")
    assert answer["meta_info"]["weight_version"] == "7"
    await client.post("/update_weight_version", {"new_version": "default", "abort_all_requests": False})
