"""A client that may only look cannot act, whatever it sends: the hub refuses it, not the console's good will."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import zmq

from prorsa.bus import wire
from prorsa.bus.commands import CommandClient
from prorsa.bus.journal import JournalReader
from prorsa.bus.keys import HubKeys, Keys, make_keys
from prorsa.bus.publisher import Publisher
from prorsa.bus.wire import Endpoints
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.launch import make_console
from prorsa.errors import ConfigError, EventError, RefusedError
from prorsa.events import Batch, Command, Verb, encode
from tests.console import story
from tests.console.harness import running_hub, shows, until

QUESTIONS = ("details",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> Iterator[Endpoints]:
    with running_hub(folder, keys=HubKeys.load(folder / "keys")) as endpoints:
        yield endpoints


def viewer(folder: Path) -> Keys:
    return Keys.load(folder / "keys" / "viewer.key")


def request(verb: str, **changes: object) -> Command:
    known: dict[str, object] = {"target": "w1", "value": "prefill", "owner": "eve", "reason": "because I can"}
    known |= {"state": "requested", **changes}
    return Command(client="eve", request_id=f"{verb}-{changes}", verb=verb, **known)  # type: ignore[arg-type]


def journalled(folder: Path) -> list[Command]:
    with JournalReader(folder / "journal") as reader:
        events = [stamped.event for stamped in reader.read(types=("command",))]
    return [event for event in events if isinstance(event, Command)]


@pytest.mark.parametrize("verb", [verb for verb in get_args(Verb) if verb not in QUESTIONS])
async def test_no_verb_gets_through(folder: Path, hub: Endpoints, verb: str) -> None:
    async with CommandClient(hub, viewer(folder)) as client:
        with pytest.raises(RefusedError, match="may look and not act"):
            await client.request(request(verb), 5.0)
        assert (await client.status(5.0)).heads.get("command", 0) == 0


async def test_nor_does_one_that_claims_to_be_an_answer_or_a_question(folder: Path, hub: Endpoints) -> None:
    async with CommandClient(hub, viewer(folder)) as client:
        for state in ("accepted", "rejected"):
            with pytest.raises((RefusedError, EventError)):
                await client.request(request("pin", state=state), 5.0)
            with pytest.raises((RefusedError, EventError)):
                await client.request(request("pin", state=state, dry_run=True), 5.0)
        assert (await client.status(5.0)).heads.get("command", 0) == 0


def test_nor_do_raw_frames(folder: Path, hub: Endpoints) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    viewer(folder).secure(socket)
    socket.connect(hub.control)
    try:
        lease = wire.LeaseRequest("acquire", "controller", "session", 99)
        for sequence, (topic, payload) in enumerate(
            [
                (wire.COMMAND, encode(request("freeze"))),
                (wire.COMMAND, encode(request("freeze"))[:-3]),
                (wire.COMMAND, b""),
                (wire.LEASE, wire.encode(lease)),
                (wire.EVENTS_TOPIC, encode(request("freeze"))),
            ],
            1,
        ):
            socket.send_multipart(wire.pack(topic, sequence, payload))
            assert socket.poll(5000), topic
            answer = wire.unpack(socket.recv_multipart())
            assert (answer.topic, answer.sequence) == (wire.ERROR, sequence)
    finally:
        socket.close()
        context.term()
    assert journalled(folder) == []


def test_nor_what_a_viewer_publishes(folder: Path, hub: Endpoints) -> None:
    with pytest.raises(ConfigError, match="may not publish"):
        Publisher(hub.ingest, "eve", keys=viewer(folder))
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    viewer(folder).secure(socket)
    socket.connect(hub.ingest)
    try:
        batch = Batch("eve", "run", [(0, msgspec.Raw(encode(request("freeze"))))])
        socket.send_multipart(wire.pack(wire.EVENTS_TOPIC, 0, encode(batch)))
        assert not socket.poll(1000)  # the hub lets no viewer in here
    finally:
        socket.close()
        context.term()
    assert journalled(folder) == []


async def test_a_viewer_may_ask_and_its_question_is_answered(folder: Path, hub: Endpoints) -> None:
    operator = Keys.load(folder / "keys" / "operator.key")
    with Publisher(hub.ingest, "controller", keys=operator) as publisher:
        publisher.publish(story.view_at(1.0))
        assert publisher.flush(5.0)
        app = make_console(
            run_dir=folder, endpoints=None, replay=None, read_only=False, owner="eve", keys=viewer(folder)
        )
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.model.view is not None)
            await shows(pilot, app, "READ-ONLY")
            await pilot.press("P", "D", "F")
            assert not isinstance(app.screen, ActionDialog)
            await pilot.press("colon")
            app.frame.prompt._field.value = "freeze --reason x"
            await pilot.press("enter", "3")
            await until(pilot, lambda: journalled(folder))
    assert {command.verb for command in journalled(folder)} == {"details"}


async def test_without_keys_there_is_no_way_in(folder: Path, hub: Endpoints) -> None:
    assert hub.hub_key is not None
    with pytest.raises(ConfigError, match="asks for keys"):
        CommandClient(hub, None)
