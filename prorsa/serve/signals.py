"""Ending a run in order when a signal asks for it."""

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def until_signalled(work: Awaitable[_T]) -> _T | None:
    """Run the work; SIGINT, SIGTERM and SIGHUP cancel it, and it ends in order, without a result."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None
