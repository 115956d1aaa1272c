"""With keys the hub lets in whom it knows, each to what its role allows; without keys it stays on this machine."""

import asyncio
import contextlib
import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from prorsa import events
from prorsa.bus import wire
from prorsa.bus.commands import CommandClient, LeaseKeeper
from prorsa.bus.control import ControlClient
from prorsa.bus.hub import Hub, HubConfig, main
from prorsa.bus.keys import KEYS_VARIABLE, HubKeys, Keys, make_keys, write_keys
from prorsa.bus.publisher import Publisher
from prorsa.bus.sockets import configure, is_local
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints
from prorsa.errors import ConfigError, RefusedError, UnavailableError
from prorsa.events import Batch, Command
from tests.bus.conftest import HubThread, numbers, token, wait_until

PIN = Command(
    client="c", request_id="r1", verb="pin", state="requested", owner="ada", reason="test", target="w", value="decode"
)
TIMEOUT_S = 1.5


class Keyed:
    """A hub with keys on TCP, and the keys of its clients."""

    def __init__(self, folder: Path) -> None:
        make_keys(folder / "keys")
        self.folder = folder / "keys"
        self.publisher, self.operator, self.viewer = (
            Keys.load(self.folder / f"{role}.key") for role in ("publisher", "operator", "viewer")
        )
        make_keys(folder / "others")
        self.stranger = Keys.load(folder / "others" / "operator.key")
        # Knows the hub, but the hub does not know it.
        self.unlisted = msgspec.structs.replace(self.stranger, hub=self.operator.hub)
        self.thread = HubThread(folder / "run", tcp=True, keys=HubKeys.load(self.folder))
        self.endpoints = self.thread.start().endpoints


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    hub = Keyed(tmp_path)
    yield hub
    with contextlib.suppress(AttributeError):
        hub.thread.stop()


# --- files ----------------------------------------------------------------------------------------------------------


def test_key_files_are_for_their_owner_and_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    files = make_keys(folder)
    assert sorted(file.name for file in files) == ["hub.key", "operator.key", "publisher.key", "viewer.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = [file.read_bytes() for file in files]
    with pytest.raises(RefusedError, match=r"already holds hub\.key.*name another directory"):
        make_keys(folder)
    (folder / "hub.key").unlink()
    with pytest.raises(RefusedError, match="already holds publisher"):
        make_keys(folder)
    assert not (folder / "hub.key").exists()
    assert [file.read_bytes() for file in files[1:]] == before[1:]


def test_each_file_says_what_its_holder_needs(tmp_path: Path) -> None:
    text = write_keys(tmp_path / "keys")
    assert all(name in text for name in ("hub.key", "publisher.key", "operator.key", "viewer.key"))
    hub = HubKeys.load(tmp_path / "keys")
    clients = [Keys.load(tmp_path / "keys" / f"{role}.key") for role in ("publisher", "operator", "viewer")]
    assert hub.roles() == {keys.public: keys.role for keys in clients}
    assert {keys.hub for keys in clients} == {hub.public}
    assert len({hub.secret, *(keys.secret for keys in clients)}) == 4
    assert Keys.load(tmp_path / "keys").role == "operator"
    for keys in (hub, *clients):
        assert keys.secret not in repr(keys)


def test_keys_are_found_by_path_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    make_keys(tmp_path)
    assert Keys.find(None) is None
    keys = Keys.find(tmp_path / "viewer.key")
    assert keys is not None
    assert Keys.find(keys) is keys
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "publisher.key"))
    assert Keys.find(None) == Keys.load(tmp_path / "publisher.key")


def test_bad_key_files_say_what_to_do(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with pytest.raises(ConfigError, match=r"`prorsa keys DIRECTORY` makes them"):
        Keys.load(tmp_path / "missing.key")
    with pytest.raises(ConfigError, match=r"is not a client's key file .* give publisher\.key"):
        Keys.load(tmp_path / "hub.key")
    with pytest.raises(ConfigError, match=r"is not the hub's key file .* give hub\.key"):
        HubKeys.load(tmp_path / "operator.key")
    (tmp_path / "viewer.key").chmod(0o604)
    with pytest.raises(ConfigError, match="open to other users: chmod 600"):
        Keys.load(tmp_path / "viewer.key")
    content = json.loads((tmp_path / "publisher.key").read_bytes())
    (tmp_path / "publisher.key").write_text(json.dumps(content | {"secret": "~" * 40}))
    with pytest.raises(ConfigError, match="not a client's key file"):
        Keys.load(tmp_path / "publisher.key")
    other = zmq.curve_keypair()[1].decode()
    (tmp_path / "publisher.key").write_text(json.dumps(content | {"secret": other}))
    with pytest.raises(ConfigError, match="does not belong to its secret key"):
        Keys.load(tmp_path / "publisher.key")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no keys in"):
        Keys.load(tmp_path / "empty")


# --- without keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("ipc:///tmp/x", True),
        ("tcp://127.0.0.1:*", True),
        ("tcp://127.8.9.1:5", True),
        ("tcp://[::1]:5", True),
        ("tcp://localhost:5", True),
        ("tcp://lo:5", True),
        ("tcp://*:5", False),
        ("tcp://0.0.0.0:*", False),
        ("tcp://[::]:5", False),
        ("tcp://eth0:5", False),
        ("tcp://10.0.0.4:5", False),
        ("tcp://localhost.example.org:5", False),
        ("udp://127.0.0.1:5", False),
    ],
)
def test_what_the_network_can_reach_is_known(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local


@pytest.mark.parametrize("place", [0, 1, 2])
def test_without_keys_no_socket_is_open_to_the_network(tmp_path: Path, place: int) -> None:
    addresses = ["tcp://127.0.0.1:*"] * 3
    addresses[place] = "tcp://0.0.0.0:*"
    with pytest.raises(ConfigError, match=r"anyone there could command workers: make keys \(`prorsa keys`\)"):
        Hub(HubConfig(tmp_path / "journal", Endpoints(*addresses)))
    hub = Hub(HubConfig(tmp_path / "journal", Endpoints(*["tcp://127.0.0.1:*"] * 3)))
    hub._close()


def test_with_keys_the_network_may_reach_it(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    keys = HubKeys.load(tmp_path / "keys")
    hub = Hub(HubConfig(tmp_path / "journal", Endpoints(*["tcp://0.0.0.0:*"] * 3), keys=keys))
    assert hub.endpoints.hub_key == keys.public
    hub._close()


def test_endpoints_are_saved_with_the_public_key_and_no_secret(keyed: Keyed) -> None:
    keyed.endpoints.save(keyed.thread.run_dir)
    assert Endpoints.load(keyed.thread.run_dir) == keyed.endpoints
    text = (keyed.thread.run_dir / "endpoints.json").read_text()
    hub = HubKeys.load(keyed.folder)
    assert hub.public in text
    for keys in (hub, keyed.publisher, keyed.operator, keyed.viewer):
        assert keys.secret not in text
    Endpoints("ipc://a", "ipc://b", "ipc://c").save(keyed.thread.run_dir)
    assert "hub_key" not in (keyed.thread.run_dir / "endpoints.json").read_text()


def test_the_hub_of_the_command_line_takes_a_key_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_keys(tmp_path / "keys")
    code = main(["--run-dir", str(tmp_path / "run"), "--keys", str(tmp_path / "keys" / "viewer.key")])
    assert code == ConfigError.exit_code
    assert "give hub.key" in capsys.readouterr().err


# --- with keys ------------------------------------------------------------------------------------------------------


async def test_each_role_does_what_it_may(keyed: Keyed) -> None:
    with Publisher(keyed.endpoints.ingest, "me", keys=keyed.publisher) as publisher:
        publisher.publish_all([token(n) for n in range(2000)])
        assert await asyncio.to_thread(publisher.flush, 10)
    for keys in (keyed.operator, keyed.viewer):
        async with Subscriber(keyed.endpoints, after_seq=0, keys=keys) as subscriber:
            found = [(await anext(subscriber)).hub_seq for _ in range(2000)]
            assert found == list(range(1, 2001))
        async with CommandClient(keyed.endpoints, keys) as client:
            assert (await client.status()).head_seq == 2000
            assert await client.snapshot() == []
    with Publisher(keyed.endpoints.ingest, "controller", keys=keyed.operator) as controller:
        async with CommandClient(keyed.endpoints, keyed.operator) as client:
            asked = asyncio.create_task(client.request(PIN, 10))
            async with Subscriber(keyed.endpoints, ["command"], 0, keys=keyed.viewer) as subscriber:
                assert (await anext(subscriber)).event == PIN
            controller.publish(msgspec.structs.replace(PIN, state="accepted"))
            assert (await asked).state == "accepted"
    async with LeaseKeeper(keyed.endpoints, "controller", keyed.operator) as keeper:
        assert await keeper.acquire(5) == 1


async def test_a_viewer_may_not_command_nor_lead(keyed: Keyed) -> None:
    async with CommandClient(keyed.endpoints, keyed.viewer) as client:
        with pytest.raises(RefusedError, match="this key may look and not act: `command` takes an operator's key"):
            await client.request(PIN, 5)
    async with LeaseKeeper(keyed.endpoints, "controller", keyed.viewer) as keeper:
        with pytest.raises(RefusedError, match="`lease` takes an operator's key"):
            await keeper.acquire(5)
    assert keyed.thread.hub.status().head_seq == 0


def test_the_hub_checks_frames_and_not_clients(keyed: Keyed) -> None:
    """A hand-made client with a viewer's key is answered with an error, whatever it puts into its frames."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    configure(socket, 10, keyed.viewer)
    socket.setsockopt(zmq.RCVTIMEO, 5000)
    socket.setsockopt(zmq.ROUTING_ID, keyed.operator.public.encode())  # a name is no identity
    socket.connect(keyed.endpoints.control)
    for sequence, (topic, payload, answered) in enumerate(
        [
            (wire.COMMAND, events.encode(PIN), wire.ERROR),
            (wire.LEASE, wire.encode(wire.LeaseRequest("acquire", "me", "s")), wire.ERROR),
            (wire.COMMAND, b"\xc1", wire.ERROR),
            (wire.STATUS, b"", wire.STATUS),
            (wire.REPLAY, wire.encode(wire.ReplayRequest(0)), wire.REPLAY),
        ]
    ):
        socket.send_multipart(wire.pack(topic, sequence, payload))
        frame = wire.unpack(socket.recv_multipart())
        assert (frame.topic, frame.sequence) == (answered, sequence)
    socket.close()
    context.term()
    keyed.thread.stop()
    assert keyed.thread.journalled() == []


@pytest.mark.parametrize("role", ["viewer", "unlisted"])
def test_who_may_not_publish_is_not_heard(keyed: Keyed, role: str) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    configure(socket, 10, getattr(keyed, role))
    socket.connect(keyed.endpoints.ingest)
    batch = events.encode(Batch("x#1", None, [(1, msgspec.Raw(events.encode(token(1))))]))
    socket.send_multipart(wire.pack(wire.EVENTS_TOPIC, 1, batch))
    assert not socket.poll(400)
    socket.close()
    context.term()
    keyed.thread.stop()
    assert keyed.thread.journalled() == []


@pytest.mark.parametrize("role", ["publisher", "unlisted", "stranger"])
async def test_who_may_not_ask_or_subscribe_is_told_about_keys(keyed: Keyed, role: str) -> None:
    endpoints = msgspec.structs.replace(keyed.endpoints, hub_key=None)  # as where only addresses are known
    keys: Keys = getattr(keyed, role)
    async with ControlClient(endpoints.control, keys) as client:
        with pytest.raises(UnavailableError, match="it is there and does not let us in: the keys are another hub's"):
            await client.ask(wire.STATUS, b"", TIMEOUT_S)
    with pytest.raises(UnavailableError, match="it is there and does not let us in"):
        async with Subscriber(endpoints, connect_timeout_s=TIMEOUT_S, keys=keys):
            pass


async def test_no_keys_against_a_hub_with_keys(keyed: Keyed) -> None:
    for call in (CommandClient, Subscriber):
        with pytest.raises(ConfigError, match=r"asks for keys: name a key file \(--keys, or PRORSA_KEYS\)"):
            call(keyed.endpoints)
    async with ControlClient(keyed.endpoints.control) as client:
        with pytest.raises(UnavailableError, match="it asks for keys, and there are none"):
            await client.ask(wire.STATUS, b"", TIMEOUT_S)


def test_keys_of_another_hub_are_noticed_before_anything_is_sent(keyed: Keyed) -> None:
    with pytest.raises(ConfigError, match=r"for another hub .* take the operator\.key that was made together"):
        CommandClient(keyed.endpoints, keyed.stranger)


async def test_keys_against_a_hub_without(hub_thread: HubThread, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    async with CommandClient(hub_thread.endpoints, Keys.load(tmp_path / "keys")) as client:
        with pytest.raises(UnavailableError, match="or it runs without keys"):
            await client.status(TIMEOUT_S)


def test_a_publisher_that_is_not_let_in_says_so_once_and_holds_its_events(
    keyed: Keyed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorsa.bus.publisher.RESEND_S", 0.2)
    with caplog.at_level(logging.WARNING, logger="prorsa.bus.publisher"):
        for keys in (None, keyed.unlisted, keyed.stranger):
            caplog.clear()
            publisher = Publisher(keyed.endpoints.ingest, "me", keys=keys)
            publisher.publish(token(1))
            wait_until(lambda p=publisher: bool(caplog.records) and p.stats().refused)  # type: ignore[misc]
            assert not publisher.flush(0.5)
            assert publisher.stats().held == 1
            publisher.close(0.0)
            (record,) = caplog.records
            assert "takes no events" in record.getMessage()
            assert "key" in record.getMessage()


def test_a_viewer_is_told_at_once_that_it_may_not_publish(keyed: Keyed) -> None:
    with pytest.raises(ConfigError, match=r"give publisher\.key"):
        Publisher(keyed.endpoints.ingest, "me", keys=keyed.viewer)


def test_a_publisher_gets_in_once_the_hub_knows_it(
    keyed: Keyed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys may be added to a hub that is started again; who was refused before needs no restart."""
    monkeypatch.setattr("prorsa.bus.publisher.RESEND_S", 0.2)
    monkeypatch.setattr("prorsa.bus.publisher.RESEND_MAX_S", 0.2)
    with Publisher(keyed.endpoints.ingest, "me", keys=keyed.unlisted) as publisher:
        publisher.publish(token(1))
        wait_until(lambda: publisher.stats().refused)
        keyed.thread.stop()
        known = HubKeys.load(keyed.folder)
        more = known.clients | {"publisher": (*known.clients["publisher"], keyed.unlisted.public)}
        keyed.thread.change(keyed.endpoints, msgspec.structs.replace(known, clients=more))
        keyed.thread.start()
        assert publisher.flush(60)
        assert not publisher.stats().refused
    keyed.thread.stop()
    assert numbers(keyed.thread.journalled()) == [1]


def test_a_publishers_key_cannot_speak_for_the_controller(keyed: Keyed) -> None:
    """Else whoever runs a rollout could command workers by publishing commands."""
    forged = [
        PIN,
        events.Lease(holder="me", epoch=99, state="granted", expires_ns=0),
        events.Override(override_id="o", kind="freeze", state="effective", owner="me", reason="mine"),
        events.EffectResult(effect_id="e", worker_id="w", action="switch", ok=True),
    ]
    with Publisher(keyed.endpoints.ingest, "me", keys=keyed.publisher) as publisher:
        for event in (*forged, token(1)):
            publisher.publish(event)
        assert publisher.flush(60)
    with Publisher(keyed.endpoints.ingest, "controller", keys=keyed.operator) as controller:
        for event in forged:
            controller.publish(event)
        assert controller.flush(60)
    assert keyed.thread.hub.status().counters.rejected == 5
    keyed.thread.stop()
    journalled = [s for s in keyed.thread.journalled() if not isinstance(s.event, events.Alert)]
    assert numbers(journalled) == [1]
    assert [s.event for s in journalled if s.source == publisher.source] == [token(1)]
    assert [s.event for s in journalled if s.source == controller.source] == [forged[0], *forged[2:]]


async def test_all_go_on_over_a_restart_of_the_hub(keyed: Keyed) -> None:
    with Publisher(keyed.endpoints.ingest, "me", keys=keyed.publisher) as publisher:
        async with (
            Subscriber(keyed.endpoints, ["llm."], after_seq=0, keys=keyed.viewer) as subscriber,
            CommandClient(keyed.endpoints, keyed.operator) as client,
        ):
            publisher.publish(token(1))
            assert (await anext(subscriber)).event == token(1)
            keyed.thread.stop()
            publisher.publish(token(2))
            keyed.thread.change(keyed.endpoints)
            keyed.thread.start()
            assert (await anext(subscriber)).event == token(2)
            assert (await client.status()).head_seq == 2
    keyed.thread.stop()
    assert numbers(keyed.thread.journalled()) == [1, 2]
