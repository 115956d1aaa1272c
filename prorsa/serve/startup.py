"""Waiting for a run's hub to come up."""

import asyncio
import contextlib
import time
from typing import Final

from prorsa.bus.commands import CommandClient
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.errors import UnavailableError
from prorsa.serve.rundir import RunDir

HUB_UP_WITHIN_S: Final = 20.0
HUB_ASK_S: Final = 1.0


async def hub_up(run_dir: RunDir, keys: Keys | None = None) -> None:
    """Wait until the hub answers.

    Raises:
        UnavailableError: if it does not; names its log.
    """
    deadline = time.monotonic() + HUB_UP_WITHIN_S
    while True:
        with contextlib.suppress(UnavailableError):
            async with CommandClient(Endpoints.load(run_dir.path), keys) as client:
                await client.status(HUB_ASK_S)
                return
        if time.monotonic() > deadline:
            raise UnavailableError(f"the hub did not come up in {HUB_UP_WITHIN_S:g} s; see {run_dir.log('hub')}")
        await asyncio.sleep(0.05)
