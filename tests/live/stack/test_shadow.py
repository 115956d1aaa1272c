"""A policy on the live pool, in shadow and then active, and a worker that is taken out and comes back."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp

from prorsa.events import Decision, LlmSubmit, Override, ShadowDecision, Stamped
from prorsa.rollout import Advice, Tracker
from testbed.pool import CONTEXT_TOKENS, KV_TOKENS
from tests.live.router.running import Client, Trajectory
from tests.live.stack.running import Stack, client_of, references, replay, roll_out

TOKENS = 32
DECISIONS = 6
RECORD_S = 40.0
BUSY, QUIET = 14, 5
"""Trajectories in flight in the recording, and where the policy decides: within what it has seen."""
UNLIKE: dict[int, list[list[int]]] = {seed: [] for seed in range(10_000)}
"""Trajectories of which hardly two share a prompt, so that a later run is like an earlier one; outputs unknown."""
KV_BYTES = 1024
"""KV of a token of the test bed's model."""


@asynccontextmanager
async def rolling_out(
    stack: Stack, client: Client, known: dict[int, list[list[int]]], concurrency: int = 6
) -> AsyncIterator[list[tuple[int, Trajectory]]]:
    """A rollout for as long as the block goes on; what has ended is in the list after it."""
    going, ended = True, []
    with Tracker(stack.endpoints.ingest, run_id=stack.run.run_id) as tracker:
        rollout = asyncio.create_task(roll_out(client, tracker, known, TOKENS, lambda: going, concurrency=concurrency))
        try:
            yield ended
        finally:
            going = False
            ended += await rollout
    assert len(ended) >= 6


async def ask(stack: Stack, *words: str) -> None:
    """A command on the command line, which must be accepted."""
    done = await asyncio.to_thread(stack.cli, *words, "--reason", "exercise")
    assert done.returncode == 0, done.stderr


def decided_by(stack: Stack, policy: str) -> list[Decision]:
    events = [stamped.event for stamped in stack.events("decision")]
    return [event for event in events if isinstance(event, Decision) and event.policy == policy]


Said = TypeVar("Said", Decision, ShadowDecision)


def by_itself(said: Sequence[Said]) -> list[Said]:
    """Those in which the policy did not hand over."""
    return [one for one in said if one.handed_over is None]


def in_shadow(stack: Stack, policy: str) -> list[ShadowDecision]:
    events = [stamped.event for stamped in stack.events("shadow")]
    return [event for event in events if isinstance(event, ShadowDecision) and event.policy == policy]


def train(recording: Path, home: Path) -> tuple[Path, str]:
    """What the command line makes of a recording of the pool: a profile, and a policy trained for seconds."""
    profile, out = home / "bed.toml", home / "policy"
    sizes = (
        "--kv-bytes-per-token",
        str(KV_BYTES),
        "--kv-tokens",
        str(KV_TOKENS),
        "--model-context",
        str(CONTEXT_TOKENS),
    )
    prorsa("profile", "fit", "--from", str(recording), "--output", str(profile), *sizes)
    little = ("--shown", "400", "--rounds", "2", "--validations", "1", "--minutes", "1.0", "--environments", "1")
    prorsa("train", "--from", str(recording), "--profile", str(profile), "--out", str(out), *little)
    return profile, f"learned:{out / 'learned.safetensors'}"


def prorsa(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "prorsa", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_policy_trained_from_a_recording_decides_in_shadow_and_then_acts(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """The whole way: record the pool, fit its profile, train on what it did, shadow, take over; the journal has it.

    What was trained for seconds has seen little, and leaves most decisions to `analytic`: it must say so.
    """
    (tmp_path / "before").mkdir()
    (tmp_path / "then").mkdir()
    with Stack(tmp_path / "before") as stack:
        async with rolling_out(stack, await client_of(stack, http), UNLIKE, concurrency=BUSY):
            await asyncio.sleep(RECORD_S)
    profile, learned = await asyncio.to_thread(train, stack.run.path, tmp_path)

    with Stack(tmp_path / "then", profile=profile) as stack:
        client = await client_of(stack, http)
        async with rolling_out(stack, client, UNLIKE, concurrency=QUIET):
            await ask(stack, "shadow", learned)
            await stack.until(lambda: len(in_shadow(stack, learned)) >= 2 * DECISIONS)
            assert stack.status()["policy"] == "static:2:2"
            assert stack.status()["shadow"]["policy"] == learned
            await ask(stack, "policy", learned)
            await stack.until(lambda: len(decided_by(stack, learned)) >= DECISIONS)
            await stack.until(lambda: len(in_shadow(stack, "static:2:2")) >= DECISIONS)
            with Advice(stack.run.path) as advice:
                await stack.until(lambda: advice.admission is not None)
        beside = in_shadow(stack, learned)
        by_number = {decision.decision_id: decision for decision in decided_by(stack, "static:2:2")}
        assert all(by_number[said.decision_id].tick_ns == said.tick_ns for said in beside)
        assert all(said.chosen is not None for said in beside)
        for said in (*beside, *decided_by(stack, learned)):
            assert f"decides for {learned}" in said.reason if said.handed_over else "practised" in said.reason
        assert stack.status()["shadow"]["failed"] == 0
        replayed = await asyncio.to_thread(replay, stack)
        assert replayed["equal"] == replayed["decisions"] > 2 * DECISIONS
        assert replayed["shadow_equal"] == replayed["shadow_decisions"] >= 2 * DECISIONS
        active = decided_by(stack, learned)
        print(Counter(one.handed_over for one in (*beside, *active) if one.handed_over).most_common(5))
        print(
            f"by itself {len(by_itself(beside))} of {len(beside)} in shadow, {len(by_itself(active))} of {len(active)}"
        )


async def test_a_worker_is_drained_under_load_and_readmitted(stack: Stack, http: aiohttp.ClientSession) -> None:
    client = await client_of(stack, http)
    (worker,) = [worker for worker in stack.pool.workers if worker.name == "C"]
    known = await references(client, TOKENS, 8)
    async with rolling_out(stack, client, known) as ended:
        await stack.until(lambda: _sent_to(stack, "C"))
        await ask(stack, "drain", "C")
        await stack.until(lambda: _states(stack, "drain")[-1:] == ["effective"])
        out_seq = stack.events("override")[-1].hub_seq
        await asyncio.to_thread(worker.wait_idle)
        await stack.until(lambda: stack.roles().keys() == {"A", "B", "D"})  # views come twice a second
        await asyncio.sleep(3.0)
        await ask(stack, "readmit", "C")
        await stack.until(lambda: stack.roles().get("C") == "decode")
        back_seq = stack.events("override")[-1].hub_seq
        await stack.until(lambda: any(stamped.hub_seq > back_seq for stamped in _sent_to(stack, "C")))
    assert all(trajectory.outputs == known[seed] for seed, trajectory in ended)
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
