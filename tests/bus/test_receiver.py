"""The receiving thread: bounded, in order, and quick to stop."""

import contextlib
from pathlib import Path

import pytest
import zmq

from prorsa.bus import receiver as receiver_module
from prorsa.bus.receiver import Receiver
from tests.bus.conftest import wait_until


def test_a_full_queue_holds_the_sender_back_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "QUEUE_BATCHES", 4)
    monkeypatch.setattr(receiver_module, "INGEST_HWM", 4)
    context = zmq.Context()
    receiver = Receiver(context, f"ipc://{tmp_path}/in")
    sender = context.socket(zmq.DEALER)
    sender.set_hwm(4)
    sender.setsockopt(zmq.LINGER, 0)
    sender.setsockopt(zmq.SNDTIMEO, 500)
    sender.connect(receiver.endpoint)
    batch = bytes(100_000)  # larger than what the kernel buffers between the two
    sent = 0
    with contextlib.suppress(zmq.Again):
        while sent < 100:
            sender.send_multipart([sent.to_bytes(8, "big"), batch])
            sent += 1
    assert sent < 100, "the sender was never held back"
    received: list[int] = []

    def take() -> bool:
        while (parts := receiver.take()) is not None:
            received.append(int.from_bytes(parts[2], "big"))
        return len(received) == sent

    wait_until(take)
    assert received == list(range(sent))
    sender.close()
    receiver.close()
    context.term()


def test_it_stops_with_a_full_queue(tmp_path: Path) -> None:
    context = zmq.Context()
    receiver = Receiver(context, f"ipc://{tmp_path}/in")
    sender = context.socket(zmq.DEALER)
    sender.setsockopt(zmq.LINGER, 0)
    sender.connect(receiver.endpoint)
    for _ in range(900):
        sender.send_multipart([b"batch"])
    receiver.close()
    sender.close()
    context.term()
