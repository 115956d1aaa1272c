"""A rollout through the whole of Prorsa while its controller flips the workers."""

import asyncio
import statistics
import time

import aiohttp

from prorsa.events import Flip
from prorsa.rollout import Tracker
from tests.live.stack.running import Stack, client_of, holes, references, roll_out

FLIPS = 20
LONGEST_REQUEST_S = 30.0
TOKENS = 32


async def test_the_controller_flips_under_load_and_nothing_is_lost(stack: Stack, http: aiohttp.ClientSession) -> None:
    client = await client_of(stack, http)
    known = await references(client, TOKENS, 8)
    for worker in stack.pool.workers:
        worker.post("/slow_down", {"forward_sleep_time": 0.01})
    flips: list[tuple[int, Flip]] = []

    async def command() -> None:
        """Hold one split after the other until the controller has made enough flips."""
        splits = ["1:3", "3:1"]
        turn = 0
        while len(flips) < FLIPS:
            split = splits[turn % 2]
            turn += 1
            done = await asyncio.to_thread(stack.cli, "override", split, "--reason", "exercise", "--for", "2h")
            assert done.returncode == 0, done.stderr
            wanted = {"prefill": int(split[0]), "decode": int(split[2])}
            await stack.until(lambda wanted=wanted: wanted.items() <= stack.status()["split"].items(), 60.0)  # type: ignore[misc]
            flips[:] = [
                (stamped.t_ns, stamped.event)
                for stamped in stack.events("flip")
                if isinstance(stamped.event, Flip) and stamped.event.state == "serving"
            ]

    commanding = asyncio.create_task(command())
    began = time.monotonic()
    with Tracker(stack.endpoints.ingest, run_id=stack.run.run_id) as tracker:
        ended = await roll_out(client, tracker, known, TOKENS, lambda: not commanding.done(), concurrency=6)
    await commanding
    took_s = time.monotonic() - began

    assert len(flips) >= FLIPS
    assert len(ended) >= 6
    assert all(trajectory.outputs == known[seed] for seed, trajectory in ended)
    assert max(trajectory.slowest_s for _, trajectory in ended) < LONGEST_REQUEST_S
    await stack.until(lambda: stack.status()["split"]["switching"] == 0)
    live = {worker.name: worker.live_role() for worker in stack.pool.workers}
    assert stack.roles() == live
    times = [flip.elapsed_s or 0.0 for _, flip in flips]
    print(
        f"{len(flips)} flips in {took_s:.0f} s: median {statistics.median(times):.2f} s, "
        f"longest {max(times):.2f} s; {len(ended)} trajectories"
    )
    assert statistics.median(times) < 5.0
    assert holes(stack.events()) == {}
