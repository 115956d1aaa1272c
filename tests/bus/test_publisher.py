"""Publishers never get in their caller's way, and lose nothing without saying so."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from prorsa import events
from prorsa.bus.publisher import Publisher
from prorsa.bus.wire import Endpoints
from prorsa.errors import ConfigError
from tests.bus.conftest import HubThread, numbers, token


def test_publishing_without_a_hub_does_not_wait(tmp_path: Path) -> None:
    publisher = Publisher(Endpoints.ipc(tmp_path).ingest, "me")
    began_s = time.monotonic()
    assert all(publisher.publish(token(n)) for n in range(2000))
    assert time.monotonic() - began_s < 1.0
    assert not publisher.flush(0.05)
    assert publisher.stats().held == 2000
    assert not publisher.close(0.05)
    assert not publisher.publish(token(1))


def test_a_hub_that_comes_later_gets_everything(tmp_path: Path) -> None:
    hub = HubThread(tmp_path)
    with Publisher(hub.endpoints.ingest, "me") as publisher:
        for n in range(2000):
            publisher.publish(token(n))
        hub.start()
        assert publisher.flush(60)
        assert publisher.stats().acknowledged == 2000
    hub.stop()
    journalled = hub.journalled()
    assert numbers(journalled) == list(range(2000))
    assert [s.seq for s in journalled] == list(range(1, 2001))
    assert {s.source for s in journalled} == {publisher.source}
    assert publisher.source.startswith("me#")


def test_overflow_is_dropped_counted_and_announced(tmp_path: Path) -> None:
    hub = HubThread(tmp_path)
    with Publisher(hub.endpoints.ingest, "me", capacity=100) as publisher:
        taken = [publisher.publish(token(n)) for n in range(150)]
        assert taken == [True] * 100 + [False] * 50
        assert publisher.stats().lost == 50
        hub.start()
        assert publisher.flush(60)
        assert publisher.publish(token(200))
        assert publisher.flush(60)
    hub.stop()
    journalled = hub.journalled()
    assert numbers(journalled) == [*range(100), 200]
    assert [(s.seq, s.event) for s in journalled if isinstance(s.event, events.BusOverflow)] == [
        (151, events.BusOverflow(lost=50, first_seq=101))
    ]
    assert journalled[-1].seq == 152


def test_a_batch_that_never_fits_is_announced_too(hub_thread: HubThread) -> None:
    with Publisher(hub_thread.endpoints.ingest, "me", capacity=10) as publisher:
        assert not publisher.publish_all([token(n) for n in range(11)])
        assert publisher.publish(token(99))
        assert publisher.flush(60)
    hub_thread.stop()
    assert [s.event for s in hub_thread.journalled()] == [events.BusOverflow(lost=11, first_seq=1), token(99)]


def test_publish_all_is_one_batch(hub_thread: HubThread) -> None:
    """Other threads' events never come between the events of one call."""
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:

        def publish(worker: int) -> None:
            for call in range(50):
                publisher.publish_all([token(worker * 10_000 + call * 10 + n) for n in range(10)])
                publisher.publish(token(90_000))

        threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush(60)
    hub_thread.stop()
    journalled = hub_thread.journalled()
    found = numbers(journalled)
    assert len(found) == 4 * 50 * 11
    for at in (i for i, number in enumerate(found) if number % 10 == 0 and number < 90_000):
        assert found[at : at + 10] == list(range(found[at], found[at] + 10))
        assert len({s.t_ns for s in journalled[at : at + 10]}) == 1


def test_what_msgpack_cannot_hold_is_refused_quietly(hub_thread: HubThread) -> None:
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        assert not publisher.publish(events.LlmFirstToken(rid=object()))  # type: ignore[arg-type]
        assert not publisher.publish(
            events.LlmEnd(request_id="r", attempt=0, output_tokens=2**70, finish_reason="stop")
        )
        assert publisher.publish(token(1))
        assert publisher.flush(60)
        assert publisher.stats().unencodable == 2
    hub_thread.stop()
    assert numbers(hub_thread.journalled()) == [1]


def test_an_idle_publisher_is_flushed_and_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with Publisher(Endpoints.ipc(tmp_path).ingest, "me") as publisher:
        assert publisher.flush(0.0)
        assert publisher.publish_all([])
        assert threading.active_count() <= before + 1
    assert publisher.close()


def test_a_forked_child_is_a_source_of_its_own(hub_thread: HubThread) -> None:
    publisher = Publisher(hub_thread.endpoints.ingest, "me")
    publisher.publish(token(1))
    assert publisher.flush(60)
    child = os.fork()
    if child == 0:
        ok = publisher.publish(token(2)) and publisher.flush(60) and publisher.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(token(3))
    assert publisher.close(10)
    hub_thread.stop()
    journalled = hub_thread.journalled()
    assert sorted(numbers(journalled)) == [1, 2, 3]
    sources = {number: s.source for number, s in zip(numbers(journalled), journalled, strict=True)}
    assert sources[1] == sources[3] != sources[2]


def test_the_publisher_needs_only_msgspec_and_zmq() -> None:
    """It is imported inside workers and rollouts, where nothing else of ours is installed."""
    check = (
        "import sys; import prorsa.bus.publisher, prorsa.bus.wire; "
        "print(sorted({'numpy', 'structlog', 'sqlite3', 'asyncio', 'textual'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_killed_hub_took_along_is_sent_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after the time for a hub that is silent."""
    monkeypatch.setattr("prorsa.bus.publisher.RESEND_S", 60.0)
    first = SilentHub(tmp_path)
    with Publisher(first.endpoint, "me") as publisher:
        publisher.publish_all([token(n) for n in range(10)])
        first.receive()
        assert publisher.stats().held == 10
        first.close()
        hub = HubThread(tmp_path)
        hub.start()
        back_s = time.monotonic()
        assert publisher.flush(60)
        assert time.monotonic() - back_s < 3.0
        stats = publisher.stats()
        assert (stats.resent, stats.reconnects, stats.acknowledged) == (10, 0, 10)
    hub.stop()
    assert numbers(hub.journalled()) == list(range(10))


class SilentHub:
    """Takes what comes and acknowledges nothing, like one that is killed in between."""

    def __init__(self, run_dir: Path) -> None:
        self.endpoint = Endpoints.ipc(run_dir).ingest
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        self.socket.bind(self.endpoint)

    def receive(self) -> list[bytes]:
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close()
        self._context.term()


def test_a_batch_that_the_hub_does_not_understand_blocks_nobody(
    hub_thread: HubThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped and counted, the hub has it in its journal as an alert, and what comes after it arrives."""
    broken = msgspec.Raw(b"\xc1")  # a byte that msgpack never uses
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        publisher.publish(token(1))
        assert publisher.flush(60)
        monkeypatch.setattr("prorsa.bus.publisher.encode", lambda _: broken)
        publisher.publish_all([token(2), token(3)])
        monkeypatch.undo()
        assert publisher.flush(60)
        publisher.publish(token(4))
        assert publisher.flush(60)
        monkeypatch.setattr("prorsa.bus.publisher.encode", lambda _: broken)
        publisher.publish_all([token(5)])
        monkeypatch.undo()
        publisher.publish_all([token(6), token(7)])
        assert publisher.flush(60)
        stats = publisher.stats()
        assert (stats.published, stats.acknowledged, stats.rejected, stats.held) == (7, 4, 3, 0)
    assert hub_thread.hub.status().counters.rejected == 2
    hub_thread.stop()
    journalled = hub_thread.journalled()
    assert numbers(journalled) == [1, 4, 6, 7]
    assert [s.seq for s in journalled if s.source == publisher.source] == [1, 4, 6, 7]
    (alert,) = (s.event for s in journalled if isinstance(s.event, events.Alert))
    assert alert.code == "bus.rejected"


@pytest.mark.parametrize("endpoint", ["localhost:5", "/run/hub", "inproc://x", ""])
def test_what_is_no_endpoint_is_refused_at_once(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="give tcp://HOST:PORT or ipc://PATH"):
        Publisher(endpoint, "me")


def test_a_source_has_a_name() -> None:
    with pytest.raises(ConfigError, match="give it a name"):
        Publisher("tcp://127.0.0.1:1", "")
    with pytest.raises(ConfigError, match="give it a name"):
        Publisher("tcp://127.0.0.1:1", "x" * 250)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("prorsa.bus.publisher.threading.Thread.start", RuntimeError("can't start new thread")),
        ("prorsa.bus.publisher.socket.socketpair", OSError(24, "Too many open files")),
    ],
)
def test_without_threads_or_descriptors_events_wait(
    hub_thread: HubThread, monkeypatch: pytest.MonkeyPatch, target: str, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        monkeypatch.setattr(target, fail)
        assert publisher.publish(token(1))
        monkeypatch.undo()
        assert publisher.publish(token(2))
        assert publisher.flush(60)
    hub_thread.stop()
    assert numbers(hub_thread.journalled()) == [1, 2]
