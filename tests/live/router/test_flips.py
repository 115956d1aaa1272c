"""Workers flip under a closed loop of trajectories, and nothing is lost."""

import asyncio
import random
import statistics
from collections.abc import Callable

import aiohttp
import pytest

from prorsa.cluster.router.fleet import BOOT_EVERY
from testbed.pool import Pool
from tests.live.router.running import MARGIN, Client, Flipper, RunningRouter, Trajectory, slow, tools_of

FLIPS = 20
TRAJECTORIES = 8
LONGEST_REQUEST_S = 30.0


@pytest.mark.slow
async def test_flips_under_load_lose_nothing(client: Client, pool: Pool, flipper: Flipper) -> None:
    tokens = 32
    reference: dict[int, list[list[int]]] = {}
    for seed in range(60):
        undisturbed = Trajectory(f"ref{seed}", tools_of(seed))
        if await undisturbed.run(client, tokens, logprobs=True) >= MARGIN:
            reference[seed] = undisturbed.outputs
        if len(reference) == 12:
            break
    assert len(reference) == 12, "too few prompts with clear margins"

    slow(pool, 0.01, *"ABCD")
    flipping = True
    done: list[tuple[int, Trajectory]] = []

    async def one(worker: int) -> None:
        source = random.Random(worker)
        while flipping:
            seed = source.choice(list(reference))
            trajectory = Trajectory(f"run{worker}-{len(done)}", tools_of(seed))
            await trajectory.run(client, tokens)
            done.append((seed, trajectory))

    async with asyncio.TaskGroup() as group:
        for worker in range(TRAJECTORIES):
            group.create_task(one(worker))
        await asyncio.sleep(1)
        times = await _flips(client, flipper)
        flipping = False

    assert len(done) >= TRAJECTORIES
    assert all(trajectory.outputs == reference[seed] for seed, trajectory in done)
    assert max(trajectory.slowest_s for _, trajectory in done) < LONGEST_REQUEST_S
    table = await client.get("/prorsa/table")
    for row in table["workers"]:
        assert row["role"] == pool[row["worker_id"]].live_role()
        assert row["state"] == "serving"
        assert not any(row["load"].values()), "every reservation was given back"
    async with client.session.get(client.url + "/metrics") as reply:
        retries = [line for line in (await reply.text()).splitlines() if "retries_total{" in line]
    assert any('cause="cancelled"' in line for line in retries), "the flips have cancelled something"
    print(f"flips: median {statistics.median(times):.2f} s, longest {max(times):.2f} s; {len(done)} trajectories")
    assert statistics.median(times) < 5.0


async def _flips(client: Client, flipper: Flipper) -> list[float]:
    source = random.Random(1)
    times, there_and_back = [], 0
    last: str | None = None
    while len(times) < FLIPS:
        rows = (await client.get("/prorsa/table"))["workers"]
        prefill = [row["worker_id"] for row in rows if row["role"] == "prefill"]
        decode = [row["worker_id"] for row in rows if row["role"] == "decode"]
        choices = [*(prefill if len(prefill) > 1 else []), *(decode if len(decode) > 1 else [])]
        # Every other flip is of the worker that has just been flipped, so that it returns to where it was.
        worker = last if last in choices and len(times) % 2 else source.choice(choices)
        there_and_back += worker == last
        times.append(await flipper.flip(worker))
        last = worker
    assert there_and_back >= 4
    return times


async def test_a_flip_is_asked_for_twice_and_done_once(client: Client, flipper: Flipper, pool: Pool) -> None:
    await flipper.flip("A")
    again = await flipper.step("switch", "A", "decode", 1)
    assert again.ok
    assert (await client.row("A"))["life"] == 1
    # Another controller that asks for the same effects after a crash finds them done.
    other = Flipper(client, client.session)
    for action in ("switch", "warm", "admit"):
        result = await other.step(action, "A", "decode", 1)
        assert result.ok, result
    assert pool["A"].live_role() == "decode"
    assert (await client.row("A"))["life"] == 1


async def test_looking_at_a_worker_does_not_disturb_its_flip(
    start_router: Callable[..., RunningRouter], http: aiohttp.ClientSession
) -> None:
    client = Client(http, start_router(poll_s=0.05).url)
    flipper = Flipper(client, http)
    await flipper.flip("A", until="switch")
    await asyncio.sleep(0.05 * (BOOT_EVERY + 10))
    for action in ("warm", "admit"):
        result = await flipper.step(action, "A", "decode", 1)
        assert result.ok, result
    row = await client.row("A")
    assert (row["role"], row["epoch"], row["life"]) == ("decode", 1, 1)
