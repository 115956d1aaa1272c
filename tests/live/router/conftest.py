"""Two prefill and two decode workers for all tests here, a fresh router for each."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.pool import PYTHON, Pool
from tests.live.router.running import Client, Flipper, RunningRouter, idle_within

WAITING_TIMEOUT_S = 6
DEFERRED_RELEASE_S = 8
"""So long a decode worker keeps the KV of an aborted transfer whose prefill worker cannot say that it has stopped."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/live/router" in str(item.path):
            item.add_marker(pytest.mark.live)
            if not PYTHON.exists():
                item.add_marker(pytest.mark.skip(reason="no workers' environment: run `make sglang-env`"))


@pytest.fixture(scope="package")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    env = {
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(WAITING_TIMEOUT_S),
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT": str(DEFERRED_RELEASE_S),
    }
    roles: Any = ["prefill", "decode", "decode", "prefill"]
    with Pool(roles, env=env, home=tmp_path_factory.mktemp("bed")) as running:
        yield running


@pytest.fixture
async def pool(bed: Pool) -> AsyncIterator[Pool]:
    """All workers alive, idle, empty and in their launch roles."""
    yield bed
    for worker in bed.workers:
        if worker.pid is None:
            bed.restart(worker)
        worker.post("/continue_generation")
        worker.post("/slow_down", {"forward_sleep_time": None})
        worker.post("/abort_request", {"abort_all": True})
    for worker in bed.workers:
        assert await idle_within(worker, WAITING_TIMEOUT_S + DEFERRED_RELEASE_S + 10)
        if worker.live_role() != worker.role:
            worker.switch(worker.role)
        worker.post("/flush_cache?timeout=5")


@pytest.fixture
def start_router(pool: Pool, tmp_path: Path) -> Iterator[Callable[..., RunningRouter]]:
    """Starts routers with options of their own."""
    started = []

    def start(**options: Any) -> RunningRouter:
        home = tmp_path / f"router{len(started)}"
        home.mkdir()
        running = RunningRouter(home, pool.workers, options)
        started.append(running)
        return running.start()

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def router(start_router: Callable[..., RunningRouter]) -> RunningRouter:
    return start_router()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest.fixture
def client(http: aiohttp.ClientSession, router: RunningRouter) -> Client:
    return Client(http, router.url)


@pytest.fixture
def flipper(http: aiohttp.ClientSession, client: Client) -> Flipper:
    return Flipper(client, http)
