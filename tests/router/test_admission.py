"""The gate over HTTP: on a router without workers, where whatever is let in waits in the ready queue."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from prorsa.cluster.router.app import make_app
from prorsa.cluster.router.client import RouterClient
from prorsa.cluster.router.config import RouterConfig
from prorsa.errors import RefusedError


@pytest.fixture
async def url() -> AsyncIterator[str]:
    runner = web.AppRunner(make_app(RouterConfig()), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def ask(http: aiohttp.ClientSession, url: str, session_id: str | None) -> "asyncio.Task[dict[str, Any]]":
    async def call() -> dict[str, Any]:
        body = {"input_ids": [3, 4, 5], "session_id": session_id}
        async with http.post(f"{url}/generate", json=body) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    return asyncio.create_task(call())


async def until(client: RouterClient, **wanted: int) -> None:
    async with asyncio.timeout(60.0):
        while True:
            table = await client.table()
            if {name: table[name] for name in wanted} == wanted:
                return
            await asyncio.sleep(0.02)


async def test_first_turns_past_the_limit_are_held_and_let_in_when_a_session_is_finished(
    url: str, http: aiohttp.ClientSession
) -> None:
    client = RouterClient(http, url)
    await client.put_admission(1, None)
    asked = [ask(http, url, "a")]
    await until(client, queued=1, held=0)
    asked += [ask(http, url, "b"), ask(http, url, None)]
    await until(client, queued=2, held=1)  # what has no session is nobody's first turn
    async with http.post(f"{url}/finish_session", params={"session_id": "a"}):
        await until(client, queued=3, held=0)
    async with http.post(f"{url}/abort_request", json={"abort_all": True}):
        answers = await asyncio.gather(*asked)
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 3


async def test_an_abort_of_all_answers_what_is_held_too(url: str, http: aiohttp.ClientSession) -> None:
    client = RouterClient(http, url)
    await client.put_admission(1, None)
    asked = [ask(http, url, "a"), ask(http, url, "b")]
    await until(client, queued=1, held=1)
    async with http.post(f"{url}/abort_request", json={"abort_all": True}):
        answers = await asyncio.gather(*asked)
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 2
    await until(client, queued=0, held=0)


async def test_a_limit_below_one_is_refused(url: str, http: aiohttp.ClientSession) -> None:
    with pytest.raises(RefusedError):
        await RouterClient(http, url).put_admission(0, None)
