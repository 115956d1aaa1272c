"""A policy on the live pool, in shadow and then active, and a worker that is taken out and comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from prorsa.events import Decision, LlmSubmit, Override, ShadowDecision, Stamped
from prorsa.rollout import Advice, Tracker
from tests.live.router.running import Client, Trajectory
from tests.live.stack.running import Stack, client_of, references, replay, roll_out

TOKENS = 32
DECISIONS = 6


@asynccontextmanager
async def rolling_out(stack: Stack, client: Client) -> AsyncIterator[list[tuple[int, Trajectory]]]:
    """A rollout for as long as the block goes on; what has ended is checked and in the list after it."""
    known = await references(client, TOKENS, 8)
    going, ended = True, []
    with Tracker(stack.endpoints.ingest, run_id=stack.run.run_id) as tracker:
        rollout = asyncio.create_task(roll_out(client, tracker, known, TOKENS, lambda: going, concurrency=6))
        try:
            yield ended
        finally:
            going = False
            ended += await rollout
    assert len(ended) >= 6
    assert all(trajectory.outputs == known[seed] for seed, trajectory in ended)


async def ask(stack: Stack, *words: str) -> None:
    """A command on the command line, which must be accepted."""
    done = await asyncio.to_thread(stack.cli, *words, "--reason", "exercise")
    assert done.returncode == 0, done.stderr


def decided_by(stack: Stack, policy: str) -> list[Decision]:
    events = [stamped.event for stamped in stack.events("decision")]
    return [event for event in events if isinstance(event, Decision) and event.policy == policy]


def in_shadow(stack: Stack, policy: str) -> list[ShadowDecision]:
    events = [stamped.event for stamped in stack.events("shadow")]
    return [event for event in events if isinstance(event, ShadowDecision) and event.policy == policy]


async def test_a_learned_policy_decides_in_shadow_and_then_acts(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with Stack(tmp_path, policy="analytic") as stack:
        client = await client_of(stack, http)
        async with rolling_out(stack, client):
            await ask(stack, "shadow", "learned")
            await stack.until(lambda: len(in_shadow(stack, "learned")) >= DECISIONS)
            assert stack.status()["policy"] == "analytic"
            assert stack.status()["shadow"]["policy"] == "learned"
            await ask(stack, "policy", "learned")
            await stack.until(lambda: len(decided_by(stack, "learned")) >= DECISIONS)
            await stack.until(lambda: len(in_shadow(stack, "analytic")) >= DECISIONS)
            with Advice(stack.run.path) as advice:
                await stack.until(lambda: advice.admission is not None)
        beside = in_shadow(stack, "learned")
        by_number = {decision.decision_id: decision for decision in decided_by(stack, "analytic")}
        assert all(by_number[said.decision_id].tick_ns == said.tick_ns for said in beside)
        assert all(said.chosen is not None and said.reason for said in beside)
        assert stack.status()["shadow"]["failed"] == 0
        replayed = await asyncio.to_thread(replay, stack)
        assert replayed["equal"] == replayed["decisions"] > 2 * DECISIONS
        assert replayed["shadow_equal"] == replayed["shadow_decisions"] >= 2 * DECISIONS
        away = [said for said in (*beside, *decided_by(stack, "learned")) if said.handed_over]
        print(f"learned: {len(beside)} in shadow, {len(decided_by(stack, 'learned'))} active, handed over {len(away)}")


async def test_a_worker_is_drained_under_load_and_readmitted(stack: Stack, http: aiohttp.ClientSession) -> None:
    client = await client_of(stack, http)
    (worker,) = [worker for worker in stack.pool.workers if worker.name == "C"]
    async with rolling_out(stack, client):
        await stack.until(lambda: _sent_to(stack, "C"))
        await ask(stack, "drain", "C")
        await stack.until(lambda: _states(stack, "drain")[-1:] == ["effective"])
        out_seq = stack.events("override")[-1].hub_seq
        await asyncio.to_thread(worker.wait_idle)
        assert stack.roles().keys() == {"A", "B", "D"}
        await asyncio.sleep(3.0)
        await ask(stack, "readmit", "C")
        await stack.until(lambda: stack.roles().get("C") == "decode")
        back_seq = stack.events("override")[-1].hub_seq
        await stack.until(lambda: any(stamped.hub_seq > back_seq for stamped in _sent_to(stack, "C")))
    assert _states(stack, "drain") == ["accepted", "draining", "effective", "released"]
    meanwhile = [stamped for stamped in stack.events("llm.submit") if out_seq < stamped.hub_seq < back_seq]
    assert len(meanwhile) > 3
    assert not [stamped for stamped in _sent_to(stack, "C") if out_seq < stamped.hub_seq < back_seq]
    replayed = await asyncio.to_thread(replay, stack)
    assert replayed["equal"] == replayed["decisions"] > 0


def _sent_to(stack: Stack, worker_id: str) -> list[Stamped]:
    """Requests that the router sent to a decode worker."""
    events = stack.events("llm.submit")
    return [one for one in events if isinstance(one.event, LlmSubmit) and one.event.decode_worker == worker_id]


def _states(stack: Stack, kind: str) -> list[str]:
    events = [stamped.event for stamped in stack.events("override")]
    return [event.state for event in events if isinstance(event, Override) and event.kind == kind]
