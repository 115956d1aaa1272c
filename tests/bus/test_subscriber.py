"""Subscribers get every event of their topics once and in order, over restarts, drops and their own slowness."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from prorsa import events
from prorsa.bus.publisher import Publisher
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import REPLAY_PAGE_EVENTS, Endpoints
from prorsa.errors import InputError, RefusedError, UnavailableError
from prorsa.events import Stamped
from tests.bus.conftest import HubProcess, HubThread, numbers, token


async def receive(subscriber: Subscriber, count: int, timeout_s: float = 60.0) -> list[Stamped]:
    """The next ``count`` events."""
    received: list[Stamped] = []
    async with asyncio.timeout(timeout_s):
        async for stamped in subscriber:
            received.append(stamped)
            if len(received) == count:
                break
    return received


async def test_events_arrive_as_journalled(hub_thread: HubThread) -> None:
    async with Subscriber(hub_thread.endpoints) as subscriber:
        with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
            for n in range(3000):
                publisher.publish(token(n))
            received = await receive(subscriber, 3000)
        link = subscriber.link
    hub_thread.stop()
    assert received == hub_thread.journalled()
    assert (link.state, link.gaps) == ("live", 0)


async def test_a_late_subscriber_replays_the_whole_run_and_goes_on(hub_thread: HubThread) -> None:
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        for n in range(2500):
            publisher.publish(token(n))
        assert await asyncio.to_thread(publisher.flush, 10)
        async with Subscriber(hub_thread.endpoints, after_seq=0) as subscriber:
            publisher.publish(token(2500))
            received = await receive(subscriber, 2501)
            assert subscriber.link.gaps == 0
        async with Subscriber(hub_thread.endpoints, after_seq=2490) as subscriber:
            assert numbers(await receive(subscriber, 11)) == list(range(2490, 2501))
    assert numbers(received) == list(range(2501))


async def test_a_late_subscriber_begins_with_the_last_values(hub_thread: HubThread) -> None:
    sent = [
        events.WorkerUp(worker_id="w0", role="prefill", epoch=1),
        events.WorkerUp(worker_id="w1", role="decode", epoch=1),
        token(1),
        events.WorkerLoad(worker_id="w0", queued=1),
        events.WorkerLoad(worker_id="w0", queued=2),
        events.Alert(code="a", severity="warning", text="one"),
        events.Alert(code="b", severity="warning", text="two"),
        events.Alert(code="a", severity="info", text="over"),
        events.Override(override_id="o1", kind="pin", state="requested", owner="me", reason="r"),
        events.Override(override_id="o1", kind="pin", state="accepted", owner="me", reason="r"),
    ]
    kept = [sent[i] for i in (0, 1, 4, 6, 7, 9)]
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        publisher.publish_all(sent)
        assert await asyncio.to_thread(publisher.flush, 10)
        for restart in (False, True):
            if restart:
                hub_thread.stop()
                hub_thread.start()
            async with Subscriber(hub_thread.endpoints) as subscriber:
                publisher.publish(token(2 + restart))
                received = await receive(subscriber, 7)
                assert received[:6] == subscriber.snapshot
                assert [s.event for s in received] == [*kept, token(2 + restart)]
            async with Subscriber(hub_thread.endpoints, ["worker."]) as subscriber:
                assert [s.event for s in subscriber.snapshot] == [sent[0], sent[1], sent[4]]


async def test_every_event_once_over_hub_restarts(hub_process: HubProcess) -> None:
    """The hub is killed twice under load; two subscribers, of all and of some topics, notice nothing."""
    endpoints = hub_process.start()
    total = 6000
    with Publisher(endpoints.ingest, "me") as publisher:

        def load() -> None:
            for n in range(0, total, 10):
                publisher.publish_all([token(n + k) for k in range(9)])
                publisher.publish(events.WorkerLoad(worker_id=f"w{n}"))
                time.sleep(0.002)

        async with Subscriber(endpoints, after_seq=0) as everything, Subscriber(endpoints, ["worker."]) as some:
            thread = threading.Thread(target=load)
            thread.start()
            received = await receive(everything, 1000)
            for upto in (2500, 4000):
                await asyncio.to_thread(hub_process.kill)
                await asyncio.to_thread(hub_process.start)
                received += await receive(everything, upto - len(received))
            received += await receive(everything, total - len(received))
            loads = await receive(some, total // 10)
            await asyncio.to_thread(thread.join)
    assert [s.hub_seq for s in received] == list(range(1, total + 1))
    assert [s.seq for s in received] == list(range(1, total + 1))
    assert loads == [s for s in received if isinstance(s.event, events.WorkerLoad)]


async def test_a_slow_subscriber_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read while the queue is full, the PUB socket drops, and the journal fills the holes in order."""
    monkeypatch.setattr("prorsa.bus.subscriber.SUBSCRIBER_HWM", 50)
    monkeypatch.setattr("prorsa.bus.fanout.FANOUT_HWM", 100)
    hub = HubThread(tmp_path)
    hub.start()
    total = 30_000
    async with (
        Subscriber(hub.endpoints, queue_events=3000) as everything,
        Subscriber(hub.endpoints, ["worker.", "alert"], queue_events=3000) as some,
    ):
        with Publisher(hub.endpoints.ingest, "me") as publisher:
            for n in range(total):
                publisher.publish(token(n) if n % 3 else events.WorkerLoad(worker_id=f"w{n}"))
            assert await asyncio.to_thread(publisher.flush, 20)
            await asyncio.sleep(0.5)
            # The queue, and what a page or a burst may add to it before the subscriber looks again.
            assert 3000 <= everything.pending() < 3000 + 2 * REPLAY_PAGE_EVENTS
            publisher.publish(events.Alert(code="end", severity="info", text="end"))
            received = await receive(everything, total + 1)
            loads = await receive(some, total // 3 + 1)
        assert everything.link.gaps >= 1
        assert everything.link.repaired == everything.link.gaps
    hub.stop()
    assert [s.hub_seq for s in received] == list(range(1, total + 2))
    assert loads == [s for s in received if not isinstance(s.event, events.LlmFirstToken)]


async def test_a_long_batch_is_no_gap(hub_thread: HubThread) -> None:
    async with Subscriber(hub_thread.endpoints, queue_events=3000) as subscriber:
        with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
            publisher.publish_all([token(n) for n in range(5000)])
            assert numbers(await receive(subscriber, 5000)) == list(range(5000))
        assert subscriber.link.gaps == 0


async def test_waiting_events_can_be_taken_at_once(hub_thread: HubThread) -> None:
    async with Subscriber(hub_thread.endpoints) as subscriber:
        assert subscriber.take() == []
        with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
            publisher.publish_all([token(n) for n in range(10)])
            await receive(subscriber, 1)
            assert subscriber.pending() == 9
            assert numbers(subscriber.take(4)) == [1, 2, 3, 4]
            assert numbers(subscriber.take()) == [5, 6, 7, 8, 9]


async def test_the_link_shows_the_hub_going_and_coming(hub_thread: HubThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prorsa.bus.pulse.STALE_S", 0.4)
    monkeypatch.setattr("prorsa.bus.pulse.DISCONNECTED_S", 1.3)
    async with Subscriber(hub_thread.endpoints) as subscriber:
        await wait_for_state(subscriber, "live")
        hub_thread.stop()
        await wait_for_state(subscriber, "stale")
        await wait_for_state(subscriber, "disconnected")
        link = subscriber.link
        assert link.age_s is not None
        assert link.age_s >= 1.3
        assert link.retries >= 1
        hub_thread.start()
        await wait_for_state(subscriber, "live")
        assert subscriber.link.retries == 0


async def wait_for_state(subscriber: Subscriber, state: str) -> None:
    async with asyncio.timeout(60):
        while subscriber.link.state != state:  # noqa: ASYNC110 - the link is a property to look at
            await asyncio.sleep(0.02)


async def test_the_clock_follows_the_hub(tmp_path: Path) -> None:
    hub = HubThread(tmp_path, speed=20.0)
    running = hub.start()
    try:
        async with Subscriber(hub.endpoints) as subscriber:
            await asyncio.sleep(0.3)
            assert subscriber.clock.speed == 20.0
            assert abs(subscriber.clock.now_ns() - running.status().t_ns) < 20 * 0.5e9
    finally:
        hub.stop()


async def test_without_a_hub_entering_gives_up_in_time(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no hub answers .* within 0\.2 s"):
        async with Subscriber(Endpoints.ipc(tmp_path), connect_timeout_s=0.2):
            pass


async def test_a_subscriber_may_wait_for_a_hub_that_comes_later(tmp_path: Path) -> None:
    hub = HubThread(tmp_path)
    subscriber = Subscriber(hub.endpoints, connect_timeout_s=None)
    entering = asyncio.create_task(subscriber.__aenter__())
    await asyncio.sleep(0.1)
    assert subscriber.link.state == "connecting"
    assert subscriber.link.age_s is None
    hub.start()
    await entering
    assert subscriber.run_id == "run-1"
    await subscriber.__aexit__()
    hub.stop()


def test_a_topic_of_no_event_is_refused() -> None:
    with pytest.raises(InputError, match=r"no event type begins with 'llm\.dance'"):
        Subscriber(Endpoints("ipc://a", "ipc://b", "ipc://c"), ["llm.dance"])


async def test_a_run_that_was_replaced_is_noticed(hub_thread: HubThread, tmp_path: Path) -> None:
    async with Subscriber(hub_thread.endpoints) as subscriber:
        hub_thread.stop()
        other = HubThread(tmp_path / "other", run_id="run-2")
        other.endpoints = hub_thread.endpoints
        object.__setattr__(other._config, "endpoints", hub_thread.endpoints)
        other.start()
        try:
            with pytest.raises(RefusedError, match="run run-2 has taken the place of run run-1"):
                await receive(subscriber, 1)
        finally:
            other.stop()
            hub_thread.start()


async def test_a_journal_that_lost_its_past_is_noticed(hub_thread: HubThread) -> None:
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        publisher.publish(token(1))
        assert await asyncio.to_thread(publisher.flush, 10)
    async with Subscriber(hub_thread.endpoints, after_seq=0) as subscriber:
        await receive(subscriber, 1)
        hub_thread.stop()
        for path in (hub_thread.run_dir / "journal").iterdir():
            path.unlink()
        hub_thread.start()
        with pytest.raises(RefusedError, match="it was replaced; attach again"):
            await receive(subscriber, 1)
