"""What dies in the middle of a live rollout: workers in every state of a flip, and each of Prorsa's processes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prorsa.bus.subscriber import Subscriber
from prorsa.events import Decision, Flip
from tests.live.router.running import Client, greedy
from tests.live.stack.running import Stack, client_of, references, tools_of

TOKENS = 24
RETRYABLE = {429, 500, 502, 503, 504}
STATES = ("fenced", "draining", "settling", "switching", "warming")


class Lane:
    """A closed loop of turns that tries again what may be tried again, as rollout code does."""

    def __init__(self, client: Client, known: dict[int, list[list[int]]]) -> None:
        self._client = client
        self._known = known
        self.going = True
        self.answered = 0
        self.retried: list[str] = []

    async def run(self, lane: int) -> None:
        source = random.Random(lane)
        while self.going:
            seed = source.choice(list(self._known))
            context: list[int] = []
            for said, expected in zip(tools_of(seed), self._known[seed], strict=True):
                context = [*context, *said]
                output = await self._turn(context, f"lane{lane}-{self.answered}")
                assert output == expected
                context += output
                self.answered += 1

    async def _turn(self, context: list[int], session: str) -> list[int]:
        while True:
            try:
                status, answer = await self._client.post(
                    "/generate", greedy(context, TOKENS), **{"X-Session-ID": session}
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                self.retried.append(type(error).__name__)
            else:
                if status == 200:
                    return answer["output_ids"]
                assert status in RETRYABLE, answer
                assert answer["error"]["message"], "an error says what happened"
                self.retried.append(f"{status}")
            await asyncio.sleep(0.2)


@pytest.fixture
async def lanes(stack: Stack, http: aiohttp.ClientSession) -> AsyncIterator[Lane]:
    """Six closed loops that run through the whole test; every answer is checked."""
    client = await client_of(stack, http)
    running = Lane(client, await references(client, TOKENS, 4))
    for worker in stack.pool.workers:
        worker.post("/slow_down", {"forward_sleep_time": 0.01})
    async with asyncio.TaskGroup() as group:
        for lane in range(6):
            group.create_task(running.run(lane))
        yield running
        running.going = False


async def on_state(stack: Stack, wanted: str, act: Callable[[Flip], None]) -> Flip:
    """Call ``act`` as soon as a flip enters a state."""
    async with Subscriber(stack.endpoints, topics=("flip",)) as subscriber:
        old = {(stamped.event.flip_id, stamped.event.state) for stamped in subscriber.snapshot}  # type: ignore[union-attr]
        async for stamped in subscriber:
            flip = stamped.event
            if isinstance(flip, Flip) and flip.state == wanted and (flip.flip_id, flip.state) not in old:
                act(flip)
                return flip
    raise AssertionError("the subscriber ended")


async def settled(stack: Stack, timeout_s: float = 60.0) -> None:
    """Let go of the split, and wait until two workers serve in each role and Prorsa's roles are the live ones."""
    await asyncio.to_thread(stack.cli, "release", "split", "--reason", "exercise")

    def agree() -> bool:
        roles = stack.roles()
        live = {worker.name: worker.live_role() for worker in stack.pool.workers}
        return sorted(roles.values()) == ["decode", "decode", "prefill", "prefill"] and roles == live

    await stack.until(agree, timeout_s)


async def flip_one(stack: Stack, split: str) -> None:
    """Hold a split that takes one flip from two of each."""
    done = await asyncio.to_thread(stack.cli, "override", split, "--reason", "exercise", "--for", "2h")
    assert done.returncode == 0, done.stderr


async def test_a_worker_killed_in_any_state_of_its_flip_costs_no_answer(stack: Stack, lanes: Lane) -> None:
    for turn, state in enumerate(STATES):
        killing = asyncio.create_task(on_state(stack, state, lambda flip: stack.pool.kill(stack.pool[flip.worker_id])))
        await asyncio.sleep(0.3)
        await flip_one(stack, ("1:3", "3:1")[turn % 2])
        flip = await asyncio.wait_for(killing, 60)
        before = lanes.answered
        await stack.until(lambda flip=flip: _ended(stack, flip))  # type: ignore[misc]
        await asyncio.sleep(2)
        assert lanes.answered > before, "the rest of the pool keeps serving"
        victim = stack.pool[flip.worker_id]
        await asyncio.to_thread(stack.pool.restart, victim)
        victim.post("/slow_down", {"forward_sleep_time": 0.01})
        await settled(stack)
    print(f"{lanes.answered} answers, tried again: {sorted(set(lanes.retried))} ({len(lanes.retried)})")


def _ended(stack: Stack, flip: Flip) -> bool:
    events = [stamped.event for stamped in stack.events("flip") if isinstance(stamped.event, Flip)]
    last = [event.state for event in events if event.flip_id == flip.flip_id][-1]
    return last in ("dead", "restored", "quarantined", "serving")


async def test_hub_controller_and_router_may_die_and_the_run_goes_on(stack: Stack, lanes: Lane) -> None:
    done = await asyncio.to_thread(stack.cli, "pin", "B", "decode", "--reason", "keep", "--for", "2h")
    assert done.returncode == 0, done.stderr
    for name, state in [("controller", "draining"), ("controller", "switching"), ("hub", "switching"), ("hub", None)]:
        if state is None:
            stack.kill(name)
        else:
            killing = asyncio.create_task(on_state(stack, state, lambda _, name=name: stack.kill(name)))  # type: ignore[misc]
            await asyncio.sleep(0.3)
            await flip_one(stack, "1:3")
            await asyncio.wait_for(killing, 60)
        before = lanes.answered
        await asyncio.sleep(2)
        assert lanes.answered > before, f"requests are served while the {name} is away"
        await settled(stack)
        assert _pinned(stack) == "decode"
    assert "ServerDisconnectedError" not in lanes.retried, "so far no client has noticed"
    stack.kill("router1")
    before = lanes.answered
    await asyncio.sleep(4)
    assert lanes.answered > before, "the restarted router serves"
    assert lanes.retried, "its clients got connection errors"
    await settled(stack)
    decisions = [
        stamped.event.decision_id for stamped in stack.events("decision") if isinstance(stamped.event, Decision)
    ]
    assert decisions == list(range(1, len(decisions) + 1))
    assert (stack.run.path / "router1.json").exists()


def _pinned(stack: Stack) -> Any:
    return next(row["pinned"] for row in stack.status()["workers"] if row["worker_id"] == "B")


def test_the_run_directory_is_private(stack: Stack) -> None:
    sockets = Path(stack.endpoints.ingest.removeprefix("ipc://")).parent
    assert sockets.stat().st_mode & 0o077 == 0
