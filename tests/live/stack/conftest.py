"""Everything at once: `prorsa serve` over four workers with the plugin, and rollouts tracked by the SDK."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from testbed.pool import PYTHON
from tests.live.stack.running import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/live/stack" in str(item.path):
            item.add_marker(pytest.mark.live)
            if not PYTHON.exists():
                item.add_marker(pytest.mark.skip(reason="no workers' environment: run `make sglang-env`"))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session
