"""The ready queue: requests that wait for room on a pair of workers, in order, bounded."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from prorsa.cluster.router.choose import Pair, Pool, Wish, choose, exists

SCAN: Final = 64
"""Waiting requests that are looked at for each change of the pool. What the first ones cannot use, others may."""


class Dropped(Exception):  # noqa: N818 - not a failure: the client has taken its request back
    """The request was aborted while it waited."""


@dataclass(eq=False, slots=True)
class Waiting:
    """One request in the queue."""

    wish: Wish
    placed: asyncio.Future[Pair | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ReadyQueue:
    """Holds requests until there is room for them.

    Args:
        pool: what there is to choose from.
        limit: requests that wait at most.
        reserve: called with a pair and a wish the moment a request is placed, so that the next one sees the load.
        release: undoes it, for a client that has gone at that very moment.
    """

    def __init__(
        self, pool: Pool, limit: int, reserve: Callable[[Pair, Wish], None], release: Callable[[Pair, Wish], None]
    ) -> None:
        self._pool = pool
        self._limit = limit
        self._reserve = reserve
        self._release = release
        self._waiting: deque[Waiting] = deque()
        self.closed_because: str | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a new request would be turned away."""
        return len(self._waiting) >= self._limit

    def enter(self, wish: Wish, *, again: bool) -> Waiting:
        """Join the queue; with ``again`` (it has run before) at its front. Callers ask :attr:`full` for new ones."""
        entry = Waiting(wish)
        if again:
            self._waiting.appendleft(entry)
        else:
            self._waiting.append(entry)
        self.pump()
        return entry

    async def placed(self, entry: Waiting) -> Pair | None:
        """Wait for a pair, reserved; None means that no worker has the weights that the request must go on with.

        Raises:
            Dropped: if it was dropped while it waited.
        """
        try:
            return await asyncio.shield(entry.placed)
        except asyncio.CancelledError:
            if entry.placed.done() and entry.placed.exception() is None and (pair := entry.placed.result()) is not None:
                self._release(pair, entry.wish)
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def pump(self) -> None:
        """Place what can be placed; called whenever the pool has changed."""
        if self.closed_because is not None:
            return
        for entry in list(islice(self._waiting, SCAN)):
            if entry.placed.done():
                continue
            if self._outdated(entry.wish):
                self._settle(entry, None)
            elif (pair := choose(self._pool, entry.wish)) is not None:
                self._reserve(pair, entry.wish)
                self._settle(entry, pair)

    def drop(self, entry: Waiting) -> None:
        """Take a request out that its client no longer wants."""
        if not entry.placed.done():
            self._waiting.remove(entry)
            entry.placed.set_exception(Dropped())

    def why_not(self) -> str | None:
        """Why nothing can be placed at all, or None."""
        if self.closed_because is not None:
            return self.closed_because
        return None if exists(self._pool) else "no prefill and decode worker that are proven to work together"

    def close(self, because: str) -> None:
        """Place nothing more for now; requests go on waiting."""
        self.closed_because = because

    def open(self) -> None:
        """Place again."""
        self.closed_because = None
        self.pump()

    def _settle(self, entry: Waiting, pair: Pair | None) -> None:
        self._waiting.remove(entry)
        entry.placed.set_result(pair)

    def _outdated(self, wish: Wish) -> bool:
        version = wish.version
        return version is not None and all(
            entry.weight_version != version for entry in self._pool.table if entry.state != "dead"
        )
