"""Decode forgets the address of a prefill worker that has gone, also when the worker comes back.

A decode worker caches where each prefill worker listens. A worker that leaves the prefill role and returns listens on a
new port, while its bootstrap server, which decode asks for liveness, answers all along: without this the next request
goes to the old port and hangs until ``SGLANG_DISAGGREGATION_WAITING_TIMEOUT``.

Decode holds a connection to that port, and the prefill worker closes it when it leaves its role. So each connection is
watched, and before a request uses a cached address whose connection has been closed since, the address is forgotten and
SGLang asks for it again. The check is local and takes microseconds.
"""

import itertools
import logging
from collections.abc import Iterable
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from prorsa.cluster.plugin.hooks import Feature, Hook

logger = logging.getLogger(__name__)

_numbers = itertools.count()
_RECEIVER: Final = "disaggregation.common.conn.CommonKVReceiver"


class _Watch:
    """The monitor of one connection."""

    def __init__(self, connection: "zmq.Socket[bytes]") -> None:
        self.connection = connection
        address = f"inproc://prorsa-watch-{next(_numbers)}"
        connection.monitor(address, zmq.EVENT_DISCONNECTED)
        self._events = connection.context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.connect(address)

    def closed(self) -> bool:
        """Whether the peer has closed the connection, or we have."""
        if self.connection.closed:
            return True
        while self._events.poll(0):
            if recv_monitor_message(self._events)["event"] == zmq.EVENT_DISCONNECTED:
                return True
        return False

    def close(self) -> None:
        if not self.connection.closed:
            self.connection.disable_monitor()
        self._events.close()


class PeerWatch:
    """Watches the connections of a decode worker to its prefill workers. Used in the scheduler's thread alone."""

    def __init__(self) -> None:
        self.forgotten = 0
        """Addresses forgotten so far."""
        self._watches: dict[str, _Watch] = {}

    def connected(self, result: Any, _receiver: Any, endpoint: str, *_: Any, **__: Any) -> None:
        """SGLang has looked up, or made, its connection to ``endpoint``."""
        connection, lock = result
        watch = self._watches.get(endpoint)
        if watch is None or watch.connection is not connection:
            self._unwatch(endpoint)
            with lock:
                self._watches[endpoint] = _Watch(connection)

    def before_use(self, receiver: Any) -> None:
        """A request is about to use what is known of its prefill worker."""
        manager = receiver.kv_mgr
        prefix = f"{receiver.bootstrap_addr}_"
        with manager.connection_lock:
            cached = {key: infos for key, infos in manager.connection_pool.items() if key.startswith(prefix)}
        for key, infos in cached.items():
            gone = [endpoint for endpoint in endpoints(infos) if self._is_closed(endpoint)]
            if gone:
                with manager.connection_lock:
                    manager.connection_pool.pop(key, None)
                for endpoint in gone:
                    self._unwatch(endpoint)
                    receiver.disconnect_endpoint(endpoint)
                self.forgotten += 1
                logger.info("Prorsa forgot the address of prefill worker %s, which has left it", key)

    def close(self) -> None:
        """Watch nothing any more."""
        for endpoint in list(self._watches):
            self._unwatch(endpoint)

    def feature(self) -> Feature:
        """The hooks that it needs."""
        return Feature(
            "safe peers",
            (
                Hook("after", f"{_RECEIVER}._connect", self.connected),
                Hook("before", f"{_RECEIVER}._setup_bootstrap_infos", self.before_use),
            ),
        )

    def _is_closed(self, endpoint: str) -> bool:
        watch = self._watches.get(endpoint)
        return watch is not None and watch.closed()

    def _unwatch(self, endpoint: str) -> None:
        watch = self._watches.pop(endpoint, None)
        if watch is not None:
            watch.close()


def endpoints(infos: Iterable[dict[str, Any]]) -> list[str]:
    """The ZeroMQ endpoints of the ranks of a prefill worker, as SGLang spells them."""
    from sglang.srt.utils.network import NetworkAddress

    return [NetworkAddress(info["rank_ip"], int(info["rank_port"])).to_tcp() for info in infos]
