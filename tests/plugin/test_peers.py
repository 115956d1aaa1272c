"""The watch on connections, on real sockets."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from prorsa.cluster.plugin import peers
from prorsa.cluster.plugin.peers import PeerWatch

Context = zmq.Context["zmq.Socket[bytes]"]


@pytest.fixture
def context() -> Iterator[Context]:
    running: Context = zmq.Context()
    yield running
    running.destroy(linger=0)


@pytest.fixture(autouse=True)
def spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "endpoints", lambda infos: [f"tcp://{i['rank_ip']}:{i['rank_port']}" for i in infos])


class Prefill:
    """A prefill worker's rank: it listens, and closes when it leaves its role."""

    def __init__(self, context: Context) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.info = {"rank_ip": "127.0.0.1", "rank_port": self.port}
        self.endpoint = f"tcp://127.0.0.1:{self.port}"


class Decode:
    """A decode worker's side: the cached addresses, and connections as SGLang keeps them."""

    def __init__(self, context: Context) -> None:
        self.watch = PeerWatch()
        self.kv_mgr = SimpleNamespace(connection_lock=threading.Lock(), connection_pool={})
        self.bootstrap_addr = "127.0.0.1:8998"
        self.sockets: dict[str, Any] = {}
        self._context = context

    def connect(self, endpoint: str) -> Any:
        if endpoint not in self.sockets:
            socket = self._context.socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(endpoint)
            self.sockets[endpoint] = socket
        self.watch.connected((self.sockets[endpoint], threading.Lock()), None, endpoint)
        return self.sockets[endpoint]

    def disconnect_endpoint(self, endpoint: str) -> None:
        self.sockets.pop(endpoint).close()

    def learn(self, *ranks: Prefill, key: str = "127.0.0.1:8998_0_0_0") -> None:
        for rank in ranks:
            self.connect(rank.endpoint).send(b"hello")
            assert rank.socket.recv() == b"hello"
        self.kv_mgr.connection_pool[key] = [rank.info for rank in ranks]

    def knows(self, key: str = "127.0.0.1:8998_0_0_0") -> bool:
        self.watch.before_use(self)
        return key in self.kv_mgr.connection_pool

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()


@pytest.fixture
def decode(context: Context) -> Iterator[Decode]:
    worker = Decode(context)
    yield worker
    worker.watch.close()
    worker.close()


def forgets(decode: Decode, timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while decode.knows():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_an_address_stays_known_while_the_peer_stays(context: Context, decode: Decode) -> None:
    rank = Prefill(context)
    decode.learn(rank)
    time.sleep(0.1)
    assert decode.knows()
    rank.socket.close()


def test_an_address_is_forgotten_when_the_peer_has_left(context: Context, decode: Decode) -> None:
    rank = Prefill(context)
    decode.learn(rank)
    rank.socket.close()
    assert forgets(decode)
    assert rank.endpoint not in decode.sockets
    assert decode.watch.forgotten == 1


def test_the_peer_may_come_back_and_leave_again(context: Context, decode: Decode) -> None:
    for _ in range(3):
        rank = Prefill(context)
        decode.learn(rank)
        assert decode.knows()
        rank.socket.close()
        assert forgets(decode)


def test_one_rank_that_left_takes_the_worker_with_it(context: Context, decode: Decode) -> None:
    ranks = [Prefill(context), Prefill(context)]
    decode.learn(*ranks)
    ranks[1].socket.close()
    assert forgets(decode)
    assert ranks[0].endpoint in decode.sockets, "the other connection is fine"
    ranks[0].socket.close()


def test_other_workers_are_not_forgotten(context: Context, decode: Decode) -> None:
    gone, other = Prefill(context), Prefill(context)
    decode.learn(gone)
    decode.learn(other, key="127.0.0.1:89980_0_0_0")
    gone.socket.close()
    assert forgets(decode)
    assert "127.0.0.1:89980_0_0_0" in decode.kv_mgr.connection_pool
    other.socket.close()


def test_connections_that_sglang_closed_itself_are_forgotten(context: Context, decode: Decode) -> None:
    rank = Prefill(context)
    decode.learn(rank)
    decode.sockets[rank.endpoint].close()  # as it does with all of them when it leaves the decode role
    decode.knows()
    decode.sockets.pop(rank.endpoint, None)
    decode.learn(rank)
    assert decode.knows()
    rank.socket.close()
