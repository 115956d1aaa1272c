"""The hub: order, durability, recovery, and what it does with bad input."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import msgspec
import pytest
import zmq

from prorsa import events
from prorsa.bus import wire
from prorsa.bus.hub import Hub, HubConfig
from prorsa.bus.publisher import Publisher
from prorsa.bus.wire import Endpoints
from prorsa.errors import ConfigError, RefusedError
from prorsa.events import Batch, Stamped
from tests.bus.conftest import HubProcess, HubThread, numbers, token, wait_until


class RawPublisher:
    """A client of another make, that sends whatever it is told."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 5000)
        self.socket.connect(endpoints.ingest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self._context.term()

    def send(self, first_seq: int, *what: bytes | events.Event, run_id: str | None = None) -> tuple[bytes, int]:
        items = [(1, msgspec.Raw(e if isinstance(e, bytes) else events.encode(e))) for e in what]
        batch = events.encode(Batch("raw#1", run_id, items))
        self.socket.send_multipart(wire.pack(wire.EVENTS_TOPIC, first_seq, batch))
        frame = wire.unpack(self.socket.recv_multipart())
        assert frame.payload == wire.encode("raw#1")
        return frame.topic, frame.sequence


def alerts(journalled: list[Stamped]) -> list[events.Alert]:
    return [s.event for s in journalled if isinstance(s.event, events.Alert)]


def test_repeats_are_acknowledged_and_not_journalled_twice(hub_thread: HubThread) -> None:
    with RawPublisher(hub_thread.endpoints) as raw:
        assert raw.send(1, token(1), token(2)) == (wire.ACK_TOPIC, 2)
        assert raw.send(1, token(1), token(2)) == (wire.ACK_TOPIC, 2)
        assert raw.send(2, token(2), token(3)) == (wire.ACK_TOPIC, 3)
        assert raw.send(5, token(5)) == (wire.RESEND_TOPIC, 4)
        assert raw.send(4, token(4), token(5)) == (wire.ACK_TOPIC, 5)
    counters = hub_thread.hub.status().counters
    assert counters == wire.Counters(received=9, journalled=5, gaps=1, repaired=1, rejected=0)
    hub_thread.stop()
    assert numbers(hub_thread.journalled()) == [1, 2, 3, 4, 5]


def test_repeats_are_known_after_a_restart(hub_thread: HubThread) -> None:
    with RawPublisher(hub_thread.endpoints) as raw:
        raw.send(1, token(1), token(2))
    hub_thread.stop()
    hub_thread.start()
    with RawPublisher(hub_thread.endpoints) as raw:
        assert raw.send(1, token(1), token(2), token(3)) == (wire.ACK_TOPIC, 3)
    hub_thread.stop()
    journalled = hub_thread.journalled()
    assert numbers(journalled) == [1, 2, 3]
    assert [s.hub_seq for s in journalled] == [1, 2, 3]


def test_a_bad_event_is_announced_once_and_its_batch_goes_on(hub_thread: HubThread) -> None:
    bad = events.encode(
        {"type": "llm.end", "request_id": "r", "attempt": 0, "output_tokens": -3, "finish_reason": "stop"}
    )
    unknown = events.encode({"type": "llm.dance"})
    with RawPublisher(hub_thread.endpoints) as raw:
        assert raw.send(1, token(1), bad, token(3)) == (wire.ACK_TOPIC, 3)
        assert raw.send(4, bad, unknown, unknown, token(7)) == (wire.ACK_TOPIC, 7)
    assert hub_thread.hub.status().counters.rejected == 4
    hub_thread.stop()
    journalled = hub_thread.journalled()
    assert numbers(journalled) == [1, 3, 7]
    first, second = alerts(journalled)
    assert first.code == "bus.rejected"
    assert "raw#1: llm.end" in first.text
    assert "output_tokens" in first.text
    assert "llm.dance" in second.text


def test_refused_events_at_the_end_are_settled_over_a_restart(hub_thread: HubThread) -> None:
    with RawPublisher(hub_thread.endpoints) as raw:
        assert raw.send(1, token(1), b"\xc0") == (wire.ACK_TOPIC, 2)
    hub_thread.stop()
    hub_thread.start()
    with RawPublisher(hub_thread.endpoints) as raw:
        assert raw.send(3, token(3)) == (wire.ACK_TOPIC, 3)
    assert hub_thread.hub.status().counters.gaps == 0


def test_events_of_another_run_are_refused(hub_thread: HubThread) -> None:
    with RawPublisher(hub_thread.endpoints) as raw:
        raw.send(1, token(1), run_id="run-0")
        raw.send(2, token(2), run_id="run-1")
    hub_thread.stop()
    journalled = hub_thread.journalled()
    assert numbers(journalled) == [2]
    assert "run-0" in alerts(journalled)[0].text


def test_garbage_on_the_ingest_socket_is_counted_and_survived(hub_thread: HubThread) -> None:
    with RawPublisher(hub_thread.endpoints) as raw:
        raw.socket.send_multipart([b"hello"])
        raw.socket.send_multipart(wire.pack(wire.EVENTS_TOPIC, 1, b"\xc1"))
        refusal = wire.unpack(raw.socket.recv_multipart())
        assert (refusal.topic, refusal.sequence) == (wire.REJECTED_TOPIC, 1)
        assert wire.decode(str, refusal.payload).startswith("Batch: ")
        assert raw.send(1, token(1)) == (wire.ACK_TOPIC, 1)
    assert hub_thread.hub.status().counters.rejected == 2
    hub_thread.stop()
    assert len(alerts(hub_thread.journalled())) == 1


def test_a_second_hub_on_the_directory_is_refused(hub_thread: HubThread) -> None:
    with pytest.raises(RefusedError, match="being written by process"):
        HubThread(hub_thread.run_dir).start()
    with Publisher(hub_thread.endpoints.ingest, "me") as publisher:
        publisher.publish(token(1))
        assert publisher.flush(10)


def test_an_endpoint_that_is_taken_says_so(tmp_path: Path) -> None:
    taken = zmq.Context()
    socket = taken.socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    endpoints = Endpoints("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", f"tcp://127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=f"cannot bind tcp://127.0.0.1:{port}"):
        Hub(HubConfig(tmp_path / "journal", endpoints))
    socket.close()
    taken.term()
    hub = Hub(HubConfig(tmp_path / "journal", Endpoints(*["tcp://127.0.0.1:*"] * 3)))
    stop = threading.Event()
    stop.set()
    hub.run(stop)
    assert "*" not in hub.endpoints.ingest


def test_run_time_goes_on_while_no_hub_runs(tmp_path: Path) -> None:
    hub = HubThread(tmp_path, speed=50.0)
    hub.start()
    with Publisher(hub.endpoints.ingest, "me") as publisher:
        publisher.publish(token(1))
        assert publisher.flush(10)
        hub.stop()
        time.sleep(0.2)
        hub.start()
        publisher.publish(token(2))
        assert publisher.flush(10)
    hub.stop()
    first, second = hub.journalled()
    assert second.t_ns - first.t_ns >= 0.2 * 50 * 1e9


def test_sigkill_under_load_loses_and_repeats_nothing_acknowledged(hub_process: HubProcess) -> None:
    """Killed three times while publishers send all the time; everything is there once, in order of its source."""
    endpoints = hub_process.start()
    publishers = [Publisher(endpoints.ingest, f"source-{n}") for n in range(3)]
    stop = threading.Event()
    counts = [0, 0, 0]

    def load(at: int) -> None:
        while not stop.is_set():
            publishers[at].publish_all([token(counts[at] + n) for n in range(20)])
            counts[at] += 20
            time.sleep(0.002)

    threads = [threading.Thread(target=load, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for killed in range(3):
        wait_until(lambda at=killed: all(p.stats().acknowledged > 300 * at for p in publishers), 20)
        time.sleep(0.1)
        acknowledged = [p.stats().acknowledged for p in publishers]
        hub_process.kill()
        per_source: dict[str, int] = {}
        for stamped in hub_process.journalled():
            per_source[stamped.source] = per_source.get(stamped.source, 0) + 1
        assert all(per_source[p.source] >= count for p, count in zip(publishers, acknowledged, strict=True))
        hub_process.start()
    stop.set()
    for thread in threads:
        thread.join()
    assert all(p.close(30) for p in publishers)
    hub_process.stop()
    journalled = hub_process.journalled()
    assert [s.hub_seq for s in journalled] == list(range(1, sum(counts) + 1))
    assert [s.t_ns for s in journalled] == sorted(s.t_ns for s in journalled)
    for publisher, count in zip(publishers, counts, strict=True):
        mine = [s for s in journalled if s.source == publisher.source]
        assert numbers(mine) == list(range(count))


def test_the_process_says_in_one_line_why_it_does_not_start(hub_thread: HubThread) -> None:
    command = [sys.executable, "-m", "prorsa.bus.hub", "--run-dir", str(hub_thread.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == RefusedError.exit_code
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("prorsa hub: journal ")
