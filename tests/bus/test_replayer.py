"""A journal plays at any pace, and over the sockets it looks like a live run."""

import asyncio
import math
import time
from pathlib import Path

import pytest

from prorsa import events
from prorsa.bus.commands import CommandClient
from prorsa.bus.journal import JournalReader, JournalWriter, row_of
from prorsa.bus.replayer import JournalPlayer, serve_journal
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints
from prorsa.clock import NS_PER_S
from prorsa.errors import InputError, RefusedError
from prorsa.events import Command, Stamped
from tests.bus.conftest import numbers, token

COUNT = 600
STEP_NS = NS_PER_S // 10


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A minute of run time, ten events a second; every tenth says how a worker is loaded."""
    stamped = [
        Stamped(n, n * STEP_NS, "me#1", n, n, events.WorkerLoad(worker_id="w", queued=n) if n % 10 == 0 else token(n))
        for n in range(1, COUNT + 1)
    ]
    with JournalWriter(tmp_path / "recording", run_id="run-7", segment_rows=250) as writer:
        for first in range(0, COUNT, 50):
            writer.append([row_of(s) for s in stamped[first : first + 50]])
    return tmp_path / "recording"


async def test_everything_at_once(recording: Path) -> None:
    with JournalReader(recording) as reader:
        played = [stamped async for stamped in JournalPlayer(reader, speed=math.inf)]
        assert played == list(reader.read())


async def test_events_come_when_their_time_has_come(recording: Path) -> None:
    with JournalReader(recording) as reader:
        began_s = time.monotonic()
        player = JournalPlayer(reader, speed=100.0)
        async for stamped in player:
            wall_ns = (time.monotonic() - began_s) * NS_PER_S
            assert stamped.t_ns - STEP_NS <= wall_ns * 100 + 1e6
            assert player.position_ns >= stamped.t_ns
        assert 0.55 < time.monotonic() - began_s < 5.0
        assert player.ended
        assert player.position_ns == player.end_ns == COUNT * STEP_NS


async def test_pause_step_and_resume(recording: Path) -> None:
    with JournalReader(recording) as reader:
        player = JournalPlayer(reader, speed=1000.0)
        assert numbers([await anext(player) for _ in range(3)]) == [1, 2, 3]
        player.pause()
        at_ns = player.position_ns
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(player), 0.05)
        assert player.position_ns == at_ns
        player.step(2)
        assert [(await anext(player)).hub_seq, (await anext(player)).hub_seq] == [4, 5]
        assert player.paused
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(player), 0.05)
        player.resume()
        assert [stamped.hub_seq async for stamped in player] == list(range(6, COUNT + 1))


async def test_seek_both_ways_with_the_past_at_hand(recording: Path) -> None:
    with JournalReader(recording) as reader:
        player = JournalPlayer(reader, speed=math.inf, hold=True)
        player.seek(300 * STEP_NS)
        assert (await anext(player)).hub_seq == 300
        player.seek(41 * STEP_NS - 5)
        assert [s.hub_seq for s in player.past()] == list(range(1, 41))
        assert (await anext(player)).hub_seq == 41
        player.seek(10**18)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(player), 0.05)
        player.seek(0)
        assert (await anext(player)).hub_seq == 1


async def test_the_speed_changes_while_playing(recording: Path) -> None:
    with JournalReader(recording) as reader:
        player = JournalPlayer(reader, speed=0.001)
        waiting = asyncio.ensure_future(anext(player))
        await waiting  # the first event's time is where the player begins
        waiting = asyncio.ensure_future(anext(player))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        player.speed = 10_000.0
        assert (await asyncio.wait_for(waiting, 30)).hub_seq == 2
        with pytest.raises(InputError, match="above 0"):
            player.speed = 0.0


async def test_an_empty_journal_ends_at_once(tmp_path: Path) -> None:
    JournalWriter(tmp_path, run_id="run-1").close()
    with JournalReader(tmp_path) as reader:
        assert [stamped async for stamped in JournalPlayer(reader)] == []


async def test_subscribers_attach_to_a_replay_as_to_a_hub(recording: Path, tmp_path: Path) -> None:
    endpoints = Endpoints.ipc(tmp_path)
    with JournalReader(recording) as reader:
        whole = list(reader.read())
        player = JournalPlayer(reader, speed=100.0, after_seq=100)
        serving = asyncio.create_task(serve_journal(player, endpoints))
        async with Subscriber(endpoints, after_seq=0) as everything, Subscriber(endpoints, ["worker."]) as loads:
            async with asyncio.timeout(60):
                received = [await anext(everything) for _ in range(COUNT)]
                seen = [await anext(loads)]
                while seen[-1].hub_seq < COUNT:
                    seen.append(await anext(loads))
            assert everything.run_id == "run-7"
            assert everything.link.state == "live"
        async with CommandClient(endpoints) as client:
            assert (await client.status()).head_seq == COUNT
            command = Command(
                client="c", request_id="1", verb="freeze", state="requested", owner="me", reason="because"
            )
            with pytest.raises(RefusedError, match="a replay of a journal"):
                await client.request(command, 5)
        serving.cancel()
        await asyncio.wait([serving])
    assert received == whole
    assert seen == whole[seen[0].hub_seq - 1 :: 10]
