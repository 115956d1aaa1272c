"""What goes wrong with live workers, and what the router and the backend make of it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from prorsa.cluster.live import LiveBackend
from prorsa.cluster.router.client import RouterClient
from testbed import client as direct
from testbed.pool import Pool
from tests.live.router.running import Client, Flipper, RunningRouter, fresh_name, greedy, idle_within, prompt, slow


async def test_a_decode_worker_that_dies_costs_time_and_no_answer(client: Client, pool: Pool) -> None:
    undisturbed = await client.generate(greedy(prompt(1, 60), 80))
    slow(pool, 0.05, "B", "C")
    requests = [asyncio.create_task(client.generate(greedy(prompt(1, 60), 80))) for _ in range(4)]
    await client.running("B", 2)
    pool.kill(pool["B"])
    answers = await asyncio.gather(*requests)
    assert all(answer["output_ids"] == undisturbed["output_ids"] for answer in answers)
    await client.until(lambda table: _state(table, "B") == "dead")
    pool.restart(pool["B"])
    await client.until(lambda table: _state(table, "B") == "serving")
    assert (await client.row("B"))["life"] == 1, "a new process is a new life"


async def test_a_prefill_worker_that_dies_costs_time_and_no_answer(client: Client, pool: Pool) -> None:
    slow(pool, 1.5, "A", "D")
    requests = [asyncio.create_task(client.generate(greedy(prompt(seed, 300), 4))) for seed in range(6)]
    await client.until(lambda table: _load(table, "A")["prefilling"] >= 2)
    pool.kill(pool["A"])
    answers = await asyncio.gather(*requests)
    assert [len(answer["output_ids"]) for answer in answers] == [4] * 6
    pool.restart(pool["A"])
    await client.until(lambda table: _state(table, "A") == "serving")
    slow(pool, None, "A", "D")
    # The restarted worker has another port under its old bootstrap address: it has to be found all the same.
    pool.kill(pool["D"])
    await client.until(lambda table: _state(table, "D") == "dead" and any(pair[0] == "A" for pair in table["pairs"]))
    began = time.monotonic()
    assert len((await client.generate(greedy(prompt(9, 60), 4)))["output_ids"]) == 4
    assert time.monotonic() - began < 5.0


async def test_with_no_worker_left_a_request_waits_for_one(client: Client, pool: Pool) -> None:
    for name in ("B", "C"):
        pool.kill(pool[name])
    await client.until(lambda table: _state(table, "B") == _state(table, "C") == "dead")
    async with client.session.get(client.url + "/ready") as reply:
        assert reply.status == 503
    request = asyncio.create_task(client.generate(greedy(prompt(2, 40), 4)))
    await client.until(lambda table: table["queued"] == 1)
    pool.restart(pool["B"])
    assert len((await request)["output_ids"]) == 4


async def test_aborting_one_leg_leaves_the_other_and_the_router_aborts_both(client: Client, pool: Pool) -> None:
    # The hazard itself: decode waits for a prefill that was aborted, until its time-out.
    slow(pool, 3.0, "A")
    blocker = asyncio.create_task(asyncio.to_thread(_quiet, pool, "A", "C", prompt(3, 40)))
    await asyncio.sleep(0.5)
    body = {
        **greedy(prompt(4, 40), 50),
        "rid": "lonely",
        "bootstrap_host": fresh_name(),
        "bootstrap_room": direct.room(),
    }
    body["bootstrap_port"] = pool["A"].bootstrap_port
    lonely = asyncio.create_task(asyncio.to_thread(_post, pool, "B", body))
    await asyncio.sleep(0.3)
    assert not await idle_within(pool["B"], 1.5), "nobody has told decode"
    pool["B"].post("/abort_request", {"rid": "lonely"})
    await lonely
    assert await idle_within(pool["B"], 3.0)
    slow(pool, None, "A")
    await blocker
    # Through the router, a client that goes while its prompt waits for prefill frees both.
    slow(pool, 2.0, "A", "D")
    request = asyncio.create_task(client.generate(greedy(prompt(5, 60), 50)))
    table = await client.until(lambda table: any(row["load"]["prefilling"] for row in table["workers"]))
    busy = [row["worker_id"] for row in table["workers"] if row["load"]["prefilling"] or row["load"]["decoding"]]
    request.cancel()
    slow(pool, None, "A", "D")
    assert len(busy) == 2
    for name in busy:
        assert await idle_within(pool[name], 5.0)


async def test_a_returned_prefill_is_reached_at_once_under_its_new_spelling(
    client: Client, pool: Pool, flipper: Flipper
) -> None:
    await client.generate(greedy(prompt(6, 40), 2))
    host = fresh_name()
    await asyncio.to_thread(_quiet, pool, "A", "B", prompt(7, 40), host=host)
    await flipper.flip("A")
    await flipper.flip("A")
    assert (await client.row("A"))["life"] == 2
    pool.kill(pool["D"])
    await client.until(lambda table: _state(table, "D") == "dead" and any(pair[0] == "A" for pair in table["pairs"]))
    began = time.monotonic()
    answers = await asyncio.gather(*(client.generate(greedy(prompt(seed, 40), 8)) for seed in range(8)))
    assert time.monotonic() - began < 4.0
    assert all(len(answer["output_ids"]) == 8 for answer in answers)
    # Without the new spelling the same pair hangs, until SGLang's own time-out.
    with pytest.raises((direct.HttpError, OSError)):
        await asyncio.to_thread(_quiet, pool, "A", "B", prompt(8, 40), host=host)


async def test_a_paused_worker_is_not_flipped(client: Client, pool: Pool, flipper: Flipper) -> None:
    # Paused through the router: the router knows.
    await client.post("/pause_generation", {"mode": "retract"})
    refused = await flipper.step("fence", "B", "decode", 1)
    assert (refused.ok, "paused" in (refused.detail or "")) == (False, True)
    await client.post("/continue_generation", {})
    # Paused behind its back: the engine looks idle, and does not answer.
    assert (await flipper.step("fence", "B", "decode", 2)).ok
    assert (await flipper.step("drain", "B", "decode", 2)).ok
    pool["B"].post("/pause_generation", {"mode": "retract"})
    settled = await flipper.step("settle", "B", "decode", 2, deadline_s=4)
    assert not settled.ok
    assert "does not generate" in (settled.detail or "")
    pool["B"].post("/continue_generation")
    assert (await flipper.step("admit", "B", "decode", 2)).ok


async def test_a_worker_that_is_not_idle_is_not_switched(client: Client, pool: Pool, flipper: Flipper) -> None:
    slow(pool, 0.05, "B")
    stranger = asyncio.create_task(asyncio.to_thread(_quiet, pool, "A", "B", prompt(10, 40), 100))
    await asyncio.sleep(0.5)
    assert (await flipper.step("fence", "B", "decode", 1)).ok
    assert (await flipper.step("drain", "B", "decode", 1)).ok, "the router has nothing there"
    settled = await flipper.step("settle", "B", "decode", 1, deadline_s=1.5)
    assert not settled.ok
    switched = await flipper.step("switch", "B", "prefill", 1, deadline_s=1.0)
    assert not switched.ok
    assert pool["B"].live_role() == "decode"
    slow(pool, None, "B")
    await stranger
    assert (await flipper.step("settle", "B", "decode", 1)).ok


async def test_a_worker_that_dies_in_its_flip_comes_back_in_its_launch_role(
    client: Client, pool: Pool, flipper: Flipper
) -> None:
    await flipper.flip("A", until="switch")
    pool.kill(pool["A"])
    warmed = await flipper.step("warm", "A", "decode", 1, deadline_s=5)
    assert not warmed.ok
    pool.restart(pool["A"])
    await client.until(lambda table: _state(table, "A") == "serving")
    row = await client.row("A")
    assert row["role"] == pool["A"].live_role() == "prefill"
    assert row["epoch"] >= 1


async def test_a_registration_counts_for_less_than_the_live_role(client: Client, pool: Pool, flipper: Flipper) -> None:
    await flipper.flip("A")
    body = {"url": pool["A"].url, "worker_type": "prefill", "bootstrap_port": pool["A"].bootstrap_port}
    status, answer = await client.post("/workers", body)
    assert (status, answer["id"], answer["worker_type"]) == (200, "A", "decode")
    assert [len((await client.generate(greedy(prompt(s, 30), 4)))["output_ids"]) for s in range(3)] == [4, 4, 4]


async def test_workers_come_and_go(client: Client, pool: Pool) -> None:
    async with client.session.delete(f"{client.url}/workers/{pool['D'].url}") as reply:
        assert reply.status == 200
    assert {row["id"] for row in (await client.get("/workers"))["workers"]} == {"A", "B", "C"}
    status, answer = await client.post("/workers", {"url": pool["D"].url, "worker_type": "prefill"})
    assert (status, answer["id"]) == (200, pool["D"].url.removeprefix("http://"))
    status, answer = await client.post("/workers", {"url": "http://127.0.0.1:9"})
    assert (status, answer["status"]) == (202, "expected")


async def test_a_second_controller_is_fenced(client: Client, http: aiohttp.ClientSession) -> None:
    old, new = (
        LiveBackend(http, [RouterClient(http, client.url)], lease_epoch=lambda epoch=epoch: epoch) for epoch in (3, 4)
    )
    assert (await _fence(new, "A", "new")).ok
    refused = await _fence(old, "B", "old")
    assert not refused.ok
    assert "lost its lease" in (refused.detail or "")
    assert (await client.row("B"))["state"] == "serving"


async def test_a_restarted_router_takes_over(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, pool: Pool
) -> None:
    router = start_router()
    client = Client(http, router.url)
    flipper = Flipper(client, http)
    await flipper.flip("A")
    slow(pool, 0.05, "B", "C", "A")
    request = asyncio.create_task(client.generate(greedy(prompt(11, 60), 800)))
    table = await client.until(lambda table: any(row["load"]["decoding"] for row in table["workers"]))
    busy = next(row["worker_id"] for row in table["workers"] if row["load"]["decoding"])
    await asyncio.sleep(0.5)
    router.kill()
    with pytest.raises(aiohttp.ClientError):
        await request
    router.start()
    assert await idle_within(pool[busy], 3.0), "what the killed router had sent is aborted"
    rows = {row["worker_id"]: row for row in (await client.get("/prorsa/table"))["workers"]}
    assert (rows["A"]["role"], rows["A"]["epoch"], rows["A"]["life"]) == ("decode", 1, 1)
    slow(pool, None, "B", "C", "A")
    assert len((await client.generate(greedy(prompt(12, 30), 4)))["output_ids"]) == 4


async def _fence(backend: LiveBackend, worker_id: str, effect_id: str) -> Any:
    from prorsa.cluster.effects import Effect

    return await backend.perform(
        Effect(effect_id=effect_id, worker_id=worker_id, action="fence", role="prefill", epoch=1, deadline_s=5)
    )


def _state(table: dict[str, Any], worker_id: str) -> str:
    return next(row["state"] for row in table["workers"] if row["worker_id"] == worker_id)


def _load(table: dict[str, Any], worker_id: str) -> dict[str, int]:
    return next(row["load"] for row in table["workers"] if row["worker_id"] == worker_id)


def _quiet(pool: Pool, prefill: str, decode: str, ids: list[int], tokens: int = 2, host: str | None = None) -> None:
    """A request past the router."""
    direct.generate(pool[prefill], pool[decode], ids, tokens, bootstrap_host=host or fresh_name())


def _post(pool: Pool, name: str, body: dict[str, Any]) -> None:
    try:
        pool[name].post("/generate", body)
    except direct.HttpError:
        return
