"""Frames and endpoints as other programs see them."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.bus import wire
from prorsa.bus.wire import Endpoints
from prorsa.errors import ConfigError, EventError, UnavailableError


@given(st.binary(max_size=30), st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_frames_round_trip(topic: bytes, sequence: int, payload: bytes) -> None:
    parts = wire.pack(topic, sequence, payload)
    assert len(parts) == 3
    assert len(parts[1]) == 8
    assert wire.unpack(parts) == (topic, sequence, payload)


@pytest.mark.parametrize("parts", [[], [b"events"], [b"events", b"1", b""], [b"", bytes(8), b"", b""]])
def test_what_is_no_message_is_refused_with_the_remedy(parts: list[bytes]) -> None:
    with pytest.raises(EventError, match=r"send \[topic, 8-byte sequence, msgpack\]"):
        wire.unpack(parts)


def test_a_payload_of_another_shape_names_the_field() -> None:
    with pytest.raises(EventError, match=r"ReplayRequest: .*after_seq"):
        wire.decode(wire.ReplayRequest, wire.encode({"topics": None}))


def test_endpoints_are_found_by_whoever_knows_the_run_directory(tmp_path: Path) -> None:
    endpoints = Endpoints.ipc(tmp_path)
    endpoints.save(tmp_path)
    assert Endpoints.load(tmp_path) == endpoints
    assert stat.S_IMODE((tmp_path / "sockets").stat().st_mode) == 0o700


def test_a_run_directory_with_a_long_path_gets_sockets_elsewhere(tmp_path: Path) -> None:
    endpoints = Endpoints.ipc(tmp_path / ("long" * 40))
    path = Path(endpoints.control.removeprefix("ipc://"))
    assert len(str(path).encode()) <= wire.MAX_IPC_PATH_BYTES
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()


def test_a_directory_without_a_hub_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="start a run"):
        Endpoints.load(tmp_path)


def test_damaged_endpoints_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("{")
    with pytest.raises(ConfigError, match="remove the file and restart the hub"):
        Endpoints.load(tmp_path)
