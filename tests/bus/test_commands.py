"""Commands are durable before they are answered and done once; the lease has one holder."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa import events
from prorsa.bus import wire
from prorsa.bus.commands import CommandClient, LeaseKeeper
from prorsa.bus.control import ControlClient
from prorsa.bus.publisher import Publisher
from prorsa.bus.state import LeaseTable
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints, LeaseRequest
from prorsa.errors import EventError, RefusedError, UnavailableError
from prorsa.events import Command
from tests.bus.conftest import HubThread, token


def pin(request_id: str = "r1", target: str = "w0") -> Command:
    return Command(
        client="cli-1",
        request_id=request_id,
        verb="pin",
        state="requested",
        owner="ada",
        reason="debugging",
        target=target,
        value="decode",
    )


@contextlib.asynccontextmanager
async def controller(endpoints: Endpoints) -> AsyncIterator[list[Command]]:
    """Answers each request that it reads, as the controller does; gives what it has been asked."""
    asked: list[Command] = []

    async def answer(subscriber: Subscriber, publisher: Publisher) -> None:
        async for stamped in subscriber:
            command = stamped.event
            if isinstance(command, Command) and command.state == "requested":
                asked.append(command)
                state = "rejected" if command.target == "unknown" else "accepted"
                publisher.publish(msgspec.structs.replace(command, state=state, detail=f"answer {len(asked)}"))

    async with Subscriber(endpoints, ["command"]) as subscriber:
        with Publisher(endpoints.ingest, "controller") as publisher:
            task = asyncio.create_task(answer(subscriber, publisher))
            yield asked
            task.cancel()
            await asyncio.wait([task])


async def test_a_command_is_answered_by_the_controller(hub_thread: HubThread) -> None:
    async with controller(hub_thread.endpoints), CommandClient(hub_thread.endpoints) as client:
        answer = await client.request(pin(), 10)
        assert answer == msgspec.structs.replace(pin(), state="accepted", detail="answer 1")
        assert (await client.request(pin("r2", "unknown"), 10)).state == "rejected"
    hub_thread.stop()
    journalled = [s for s in hub_thread.journalled() if isinstance(s.event, Command)]
    assert [(s.source.partition("#")[0], s.event.request_id, s.event.state) for s in journalled] == [  # type: ignore[union-attr]
        ("hub", "r1", "requested"),
        ("controller", "r1", "accepted"),
        ("hub", "r2", "requested"),
        ("controller", "r2", "rejected"),
    ]


async def test_repeats_are_done_once_also_at_a_restarted_hub(hub_thread: HubThread) -> None:
    endpoints = hub_thread.endpoints
    async with controller(endpoints) as asked, CommandClient(endpoints) as client, CommandClient(endpoints) as other:
        answers = await asyncio.gather(*(c.request(pin(), 10) for c in (client, other, client)))
        assert len({answer.detail for answer in answers}) == 1
        hub_thread.stop()
        hub_thread.start()
        assert await client.request(pin(), 10) == answers[0]
        assert len(asked) == 1


async def test_a_command_waits_for_a_controller_over_a_restart_of_the_hub(hub_thread: HubThread) -> None:
    async with CommandClient(hub_thread.endpoints) as client:
        with pytest.raises(UnavailableError, match=r"no controller answers .* the hub has journalled the command"):
            await client.request(pin(), 0.5)
        waiting = asyncio.create_task(client.request(pin(), 20))
        hub_thread.stop()
        assert [s.event for s in hub_thread.journalled()] == [pin()]
        hub_thread.start()
        with Publisher(hub_thread.endpoints.ingest, "controller") as publisher:
            publisher.publish(msgspec.structs.replace(pin(), state="accepted"))
            assert (await waiting).state == "accepted"


async def test_no_hub_is_told_from_no_controller(hub_thread: HubThread) -> None:
    hub_thread.stop()
    async with CommandClient(hub_thread.endpoints) as client:
        with pytest.raises(UnavailableError, match="no hub answers"):
            await client.request(pin(), 0.3)
    hub_thread.start()


async def test_a_request_id_serves_one_request(hub_thread: HubThread) -> None:
    async with controller(hub_thread.endpoints) as asked, CommandClient(hub_thread.endpoints) as client:
        await client.request(pin(), 10)
        with pytest.raises(RefusedError, match="take a new id"):
            await client.request(pin(target="w1"), 10)
        assert len(asked) == 1


async def test_wrong_requests_are_told_what_is_wrong(hub_thread: HubThread) -> None:
    async with CommandClient(hub_thread.endpoints) as client, ControlClient(hub_thread.endpoints.control) as control:
        with pytest.raises(EventError, match="in state `requested`"):
            await client.request(msgspec.structs.replace(pin(), state="accepted"), 5)
        with pytest.raises(EventError, match=r"docs/bus\.md"):
            await control.ask(b"dance", b"", 5)
        with pytest.raises(EventError, match="request_id"):
            await control.ask(wire.COMMAND, events.encode({"type": "command", "client": "c"}), 5)
        with pytest.raises(EventError, match="limit"):
            await control.ask(wire.REPLAY, events.encode({"after_seq": 0, "limit": "all"}), 5)


async def test_status_and_snapshot(hub_thread: HubThread) -> None:
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        publisher.publish_all([token(1), events.WorkerRole(worker_id="w0", role="decode", epoch=3)])
        assert await asyncio.to_thread(publisher.flush, 10)
        async with CommandClient(hub_thread.endpoints) as client:
            status = await client.status()
            assert (status.run_id, status.head_seq) == ("run-1", 2)
            assert status.heads == {"llm.first_token": 1, "worker.role": 1}
            assert status.counters == wire.Counters(received=2, journalled=2)
            assert [s.hub_seq for s in await client.snapshot()] == [2]
            assert [s.hub_seq for s in await client.snapshot(["worker."])] == [2]
            assert await client.snapshot(["alert"]) == []


# --- the lease ------------------------------------------------------------------------------------------------------


async def test_one_holder_at_a_time(hub_thread: HubThread) -> None:
    async with LeaseKeeper(hub_thread.endpoints, "controller-b") as second:
        async with LeaseKeeper(hub_thread.endpoints, "controller-a") as first:
            assert await first.acquire(5) == 1
            assert first.held
            with pytest.raises(UnavailableError, match="controller-a holds the controller lease"):
                await second.acquire(0.2)
            assert not second.held
            async with CommandClient(hub_thread.endpoints) as client:
                status = await client.status()
                assert (status.lease_holder, status.lease_epoch) == ("controller-a", 1)
        assert await second.acquire(5) == 2
    hub_thread.stop()
    leases = [s.event for s in hub_thread.journalled() if isinstance(s.event, events.Lease)]
    assert [(lease.holder, lease.epoch, lease.state) for lease in leases] == [
        ("controller-a", 1, "granted"),
        ("controller-a", 1, "released"),
        ("controller-b", 2, "granted"),
        ("controller-b", 2, "released"),
    ]


async def test_a_lease_is_renewed_without_journalling_it(
    hub_thread: HubThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_the_lease(monkeypatch)
    async with LeaseKeeper(hub_thread.endpoints, "controller") as keeper:
        await keeper.acquire(5)
        for _ in range(20):
            await asyncio.sleep(0.1)
            assert keeper.held
        assert hub_thread.hub.status().head_seq == 1


async def test_a_lease_ends_when_its_holder_is_gone(hub_thread: HubThread, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_the_lease(monkeypatch)
    keeper = LeaseKeeper(hub_thread.endpoints, "controller-a")
    await keeper.__aenter__()
    await keeper.acquire(5)
    await keeper._stop_renewing()  # as if the process had died
    async with LeaseKeeper(hub_thread.endpoints, "controller-b") as second:
        assert await second.acquire(5) == 2
        assert not keeper.held
        assert not (await keeper._ask("renew", 1)).granted
    await keeper.__aexit__(None, None, None)
    hub_thread.stop()
    states = [s.event.state for s in hub_thread.journalled() if isinstance(s.event, events.Lease)]
    assert states == ["granted", "expired", "granted", "released"]


async def test_a_lease_survives_a_restart_of_the_hub(hub_thread: HubThread) -> None:
    async with LeaseKeeper(hub_thread.endpoints, "controller") as keeper:
        await keeper.acquire(5)
        hub_thread.stop()
        hub_thread.start()
        assert (await keeper._ask("renew", 5)).granted
        async with LeaseKeeper(hub_thread.endpoints, "other") as other:
            with pytest.raises(UnavailableError, match="holds the controller lease"):
                await other.acquire(0.2)
        assert await keeper.acquire(5) == 1


async def test_a_new_start_of_the_holder_shuts_the_old_one_out(hub_thread: HubThread) -> None:
    async with LeaseKeeper(hub_thread.endpoints, "controller") as old:
        await old.acquire(5)
        async with LeaseKeeper(hub_thread.endpoints, "controller") as new:
            assert await new.acquire(5) == 2
            assert not (await old._ask("renew", 5)).granted
            assert not old.held
            assert new.held


def shorten_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prorsa.bus.state.LEASE_S", 1.0)
    monkeypatch.setattr("prorsa.bus.wire.LEASE_S", 1.0)
    monkeypatch.setattr("prorsa.bus.commands.RENEW_S", 0.2)
    monkeypatch.setattr("prorsa.bus.commands.LEASE_MARGIN_S", 0.1)
    monkeypatch.setattr("prorsa.bus.commands.ACQUIRE_PAUSE_S", 0.1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acquire", "renew", "release"]),
            st.sampled_from(["a", "b"]),
            st.sampled_from(["s1", "s2"]),
            st.sampled_from([0.0, 1.0, 6.0]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_no_two_sessions_hold_the_lease_and_epochs_only_grow(plan: list[tuple[str, str, str, float, bool]]) -> None:
    """Whatever is asked in whatever order, also over restarts of the hub."""
    table, now_s = LeaseTable(), 0.0
    held: dict[tuple[str, str], tuple[int, float]] = {}
    journalled: list[events.Lease] = []
    for action, holder, session, pause_s, restart in plan:
        now_s += pause_s
        if restart and journalled:
            table = LeaseTable()
            table.recover(journalled[-1], now_s)
        epoch = held.get((holder, session), (0, 0.0))[0]
        request = LeaseRequest(action, holder, session, epoch)  # type: ignore[arg-type]
        change = table.request(request, now_s, 0, 0)
        journalled += change.events
        held.pop((holder, session), None)
        if change.reply.granted:
            assert action != "release"
            held[holder, session] = (change.reply.epoch, now_s + wire.LEASE_S)
        current = [key for key, (epoch, until_s) in held.items() if until_s > now_s and epoch == table.epoch]
        assert len(current) <= 1
    granted = [lease.epoch for lease in journalled if lease.state == "granted"]
    assert granted == list(range(1, len(granted) + 1))
