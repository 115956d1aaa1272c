"""The router's events, as a real hub journals them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from prorsa.events import LlmEnd, LlmFirstToken, LlmRetry, LlmSubmit, TrajectoryReady, WorkerLoad, WorkerUp, type_name
from testbed.hub import RunningHub
from testbed.pool import Pool
from tests.live.router.running import Client, Flipper, RunningRouter, greedy, prompt, slow


async def test_a_trajectory_is_told_from_ready_to_end(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, pool: Pool, tmp_path: Path
) -> None:
    with RunningHub(tmp_path / "hub") as hub:
        client = Client(http, start_router(hub=hub.ingest, run_id=hub.run_id).url)
        first = prompt(1, 100)
        answer = await client.generate(greedy(first, 10), session="traj")
        second = [*first, *answer["output_ids"], *prompt(2, 20)]
        slow(pool, 0.03, "B", "C")
        request = asyncio.create_task(client.stream("/generate", {**greedy(second, 80), "session_id": "traj"}))
        table = await client.until(lambda table: any(row["load"]["decoding"] for row in table["workers"]))
        worker = next(row["worker_id"] for row in table["workers"] if row["load"]["decoding"])
        await asyncio.sleep(1.0)
        flipper = Flipper(client, http)
        for action in ("fence", "drain", "admit"):
            assert (await flipper.step(action, worker, "decode", 1)).ok
        await request
        hub.wait_for(LlmEnd, lambda event: event.output_tokens == 80)
        told = [row.event for row in hub.read() if row.event.trajectory_id == "traj"]
        workers = {row.event.worker_id for row in hub.read(WorkerUp)}
        loads = {row.event.worker_id for row in hub.read(WorkerLoad)}

    names = [type_name(event) for event in told]
    turn = ["trajectory.ready", "llm.submit"]
    assert names[:3] == [*turn, "llm.end"]
    assert names[3:] == [*turn, "llm.first_token", "llm.retry", "llm.submit", "llm.first_token", "llm.end"]
    submits = [event for event in told if isinstance(event, LlmSubmit)]
    assert [event.turn for event in submits] == [0, 1, 1]
    assert [event.attempt for event in submits] == [0, 0, 1]
    assert submits[1].new_tokens is not None
    assert submits[1].new_tokens <= 30, "the prefix index knows the first turn"
    retry = next(event for event in told if isinstance(event, LlmRetry))
    assert retry.tokens_kept is not None
    assert 0 < retry.tokens_kept < 80
    assert (retry.from_decode, retry.to_decode) == (worker, submits[2].decode_worker)
    assert submits[2].prompt_tokens == len(second) + retry.tokens_kept
    ready = [event for event in told if isinstance(event, TrajectoryReady)]
    assert [event.prompt_tokens for event in ready] == [100, len(second)]
    token = [event for event in told if isinstance(event, LlmFirstToken)]
    assert token[0].rid == f"{submits[1].request_id}.00"
    assert workers == loads == {"A", "B", "C", "D"}


async def test_a_hub_that_is_away_changes_nothing(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    client = Client(http, start_router(hub=f"ipc://{tmp_path}/nobody").url)
    assert len((await client.generate(greedy(prompt(3, 20), 4)))["output_ids"]) == 4
