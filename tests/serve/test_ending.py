"""The controller's process ends when it is told to, whatever arrives in that moment."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.control.config import ControlConfig
from prorsa.events import RunBegin, Stamped
from prorsa.serve.controller import ControllerService


class OneMore:
    """A subscriber with one more event, once that has come."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.clock = SimpleNamespace(now_ns=lambda: 0, speed=1.0)

    async def __anext__(self) -> Stamped:
        await self.has_come.wait()
        self.has_come.clear()
        return Stamped(1, 0, "test", 1, 0, RunBegin())

    def take(self) -> list[Stamped]:
        return []


async def test_an_event_that_comes_with_the_end_does_not_keep_the_controller(tmp_path: Path) -> None:
    async def connect(_: object) -> Any:
        raise AssertionError("no effect is carried out here")

    service = ControllerService(Endpoints.ipc(tmp_path), ControlConfig(), "run", connect)
    service._next_tick_ns = nanoseconds(60.0)
    subscriber: Any = OneMore()
    lease: Any = SimpleNamespace(held=True)
    task = asyncio.create_task(service._live(subscriber, lease))
    await asyncio.sleep(0.01)
    subscriber.has_come.set()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=30.0)
    lease.held = False
    assert task in done
    assert task.cancelled()
