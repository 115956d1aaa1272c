"""The ready queue."""

import asyncio
from typing import Any

import pytest

from prorsa.cluster.router.choose import Pair, Wish
from prorsa.cluster.router.noting import Loads
from prorsa.cluster.router.ready import Dropped, ReadyQueue
from tests.router.build import entry, pool, table, wish


class Bench:
    """A queue over one prefill and one decode worker that runs ``room`` requests."""

    def __init__(self, *, room: int = 1, limit: int = 10, **fields: Any) -> None:
        self.pool = pool(table(entry("p", "prefill", **fields), entry("d", "decode", max_running=room, **fields)))
        self.loads = Loads()
        self.loads.by_worker = self.pool.loads
        self.queue = ReadyQueue(self.pool, limit, self.loads.placed, self.release)

    def release(self, pair: Pair, asked: Wish) -> None:
        self.loads.finished(pair, asked, prefilled=False)
        self.queue.pump()


async def test_requests_are_placed_in_order_as_room_comes() -> None:
    bench = Bench()
    asked = [wish(10) for _ in range(3)]
    entries = [bench.queue.enter(one, again=False) for one in asked]
    assert [one.placed.done() for one in entries] == [True, False, False]
    bench.release(entries[0].placed.result(), asked[0])
    assert [one.placed.done() for one in entries] == [True, True, False]
    assert len(bench.queue) == 1


async def test_a_resumed_request_goes_first_and_past_the_limit() -> None:
    bench = Bench(limit=1)
    asked = wish(10)
    running = bench.queue.enter(asked, again=False)
    waiting = bench.queue.enter(wish(10), again=False)
    assert bench.queue.full, "a new request would be turned away"
    resumed = bench.queue.enter(wish(10), again=True)
    bench.release(running.placed.result(), asked)
    assert resumed.placed.done()
    assert not waiting.placed.done()


async def test_a_small_request_passes_one_that_does_not_fit() -> None:
    bench = Bench(room=4, kv_capacity=200)
    bench.queue.enter(wish(50), again=False)
    large = bench.queue.enter(wish(150), again=False)
    small = bench.queue.enter(wish(10, kv_tokens=20), again=False)
    assert not large.placed.done()
    assert small.placed.done()


async def test_a_client_that_goes_frees_its_place() -> None:
    bench = Bench()
    asked = wish(10)
    running = bench.queue.enter(asked, again=False)
    waiting = asyncio.ensure_future(bench.queue.placed(bench.queue.enter(wish(10), again=False)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(bench.queue) == 0
    bench.release(running.placed.result(), asked)
    assert not bench.loads.busy("d")


async def test_a_client_that_goes_the_moment_it_is_placed_leaves_nothing_reserved() -> None:
    bench = Bench()
    asked = wish(10)
    running = bench.queue.enter(asked, again=False)
    waiting = asyncio.ensure_future(bench.queue.placed(bench.queue.enter(wish(10), again=False)))
    await asyncio.sleep(0)
    bench.release(running.placed.result(), asked)  # places the waiting one
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not bench.loads.busy("d")
    assert not bench.loads.busy("p")


async def test_a_dropped_request_is_told() -> None:
    bench = Bench()
    bench.queue.enter(wish(10), again=False)
    entry_ = bench.queue.enter(wish(10), again=False)
    bench.queue.drop(entry_)
    with pytest.raises(Dropped):
        await bench.queue.placed(entry_)
    assert len(bench.queue) == 0


async def test_nothing_is_placed_while_the_workers_are_paused() -> None:
    bench = Bench()
    bench.queue.close("paused")
    entry_ = bench.queue.enter(wish(10), again=False)
    assert bench.queue.why_not() == "paused"
    assert not entry_.placed.done()
    bench.queue.open()
    assert entry_.placed.done()


async def test_a_request_whose_weights_are_gone_is_told_so() -> None:
    bench = Bench(weight_version="1")
    bench.queue.enter(wish(10), again=False)
    old = bench.queue.enter(wish(10, version="1"), again=True)
    assert not old.placed.done(), "there is no room, but there are its weights"
    for worker in ("p", "d"):
        bench.pool.table.update(worker, weight_version="2")
    bench.queue.pump()
    assert await bench.queue.placed(old) is None
