"""Proving pairs: before a pair of workers serves, a canary has to pass from one to the other."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from prorsa.cluster.router.fleet import Fleet
from prorsa.cluster.router.table import Entry, PairKey, pair_key
from prorsa.errors import RefusedError

AT_ONCE: Final = 4
"""Canaries under way at a time."""
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
"""A pair that fails is tried again after this long at the latest; the wait doubles from the first one."""

log = structlog.get_logger(__name__)


class Prover:
    """Sends canaries through the pairs that are not proven yet, again and again until they pass.

    Args:
        fleet: the workers.
        next_rid: ids for canaries.
        proven: called when a pair has passed.
    """

    def __init__(self, fleet: Fleet, next_rid: Callable[[], str], proven: Callable[[], None]) -> None:
        self._fleet = fleet
        self._next_rid = next_rid
        self._proven = proven
        self._waits: dict[PairKey, tuple[float, float]] = {}
        self._running: set[PairKey] = set()
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """The table has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Prove pairs for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                for prefill, decode in self._due():
                    self._running.add(pair_key(prefill, decode))
                    group.create_task(self._try(prefill, decode))
                # Not wait_for: that keeps a cancellation to itself which comes with the wake.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FIRST_WAIT_S):
                        await self._wake.wait()

    async def prove(self, prefill: Entry, decode: Entry) -> None:
        """Send one canary now.

        Raises:
            RefusedError: if it does not pass.
        """
        await self._fleet.canary(prefill, decode, self._next_rid())
        self._waits.pop(pair_key(prefill, decode), None)
        self._proven()

    def _due(self) -> list[tuple[Entry, Entry]]:
        if self._fleet.paused:
            return []
        now = time.monotonic()
        due = [
            (prefill, decode)
            for prefill, decode in self._fleet.table.unproven()
            if (key := pair_key(prefill, decode)) not in self._running and self._waits.get(key, (0.0, 0.0))[0] <= now
        ]
        return due[: AT_ONCE - len(self._running)] if len(self._running) < AT_ONCE else []

    async def _try(self, prefill: Entry, decode: Entry) -> None:
        key = pair_key(prefill, decode)
        try:
            await self.prove(prefill, decode)
        except (RefusedError, KeyError) as error:
            wait_s = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * self._waits.get(key, (0.0, 0.0))[1]))
            self._waits[key] = (time.monotonic() + wait_s, wait_s)
            log.warning("pair not proven", error=str(error), again_in_s=wait_s)
        except Exception:
            log.exception("a canary failed in an unforeseen way", pair=key)
            self._waits[key] = (time.monotonic() + LONGEST_WAIT_S, LONGEST_WAIT_S)
        finally:
            self._running.discard(key)
            self._wake.set()
