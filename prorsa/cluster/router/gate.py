"""The gate before the router: holds the first turns of new sessions while as many are live as the caches hold.

Turns of a session that is live never wait here, or it could not end and make room. Sessions are let in in the order in
which they came, so that each gets its turn and a group's members follow one another. A session is live until the
framework finishes it; one that nobody finishes is taken for over after ``idle_s`` without a request.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

IDLE_S: Final = 600.0
"""Longer than tools and rewards take; what is let in too much after it is one session."""


@dataclass(eq=False, slots=True)
class _Held:
    key: str
    let_in: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Gate:
    """Sessions that are live, and those that wait to be.

    Args:
        now_s: a monotonic clock.
        idle_s: silence after which a live session counts as over.

    Attributes:
        limit: live sessions at a time; None for no limit.
    """

    def __init__(self, now_s: Callable[[], float], *, idle_s: float = IDLE_S) -> None:
        self.limit: int | None = None
        self._now_s = now_s
        self._idle_s = idle_s
        self._live: OrderedDict[str, float] = OrderedDict()  # when each was seen last, the longest silent first
        self._held: deque[_Held] = deque()

    @property
    def live(self) -> int:
        """Sessions that are live."""
        return len(self._live)

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def set_limit(self, limit: int | None) -> None:
        """From now on so many may be live; those that are go on in any case."""
        self.limit = limit
        self._pump()

    async def enter(self, key: str) -> bool:
        """Wait until the session of ``key`` may send, at once if it is live; False if it was dropped meanwhile."""
        self._forget_silent()
        if key not in self._live and (self._held or not self._has_room()) and not await self._wait(key):
            return False
        self._seen(key)
        return True

    def drop(self, key: str) -> None:
        """What the session has waiting here is no longer wanted."""
        for held in [held for held in self._held if held.key == key]:
            self._held.remove(held)
            held.let_in.set_result(False)

    def leave(self, key: str) -> None:
        """The session is over."""
        self._live.pop(key, None)
        self._pump()

    async def _wait(self, key: str) -> bool:
        held = _Held(key)
        self._held.append(held)
        self._pump()
        try:
            return await held.let_in
        except asyncio.CancelledError:
            if held in self._held:
                self._held.remove(held)
            elif held.let_in.done() and not held.let_in.cancelled():
                self.leave(key)
            raise

    def _pump(self) -> None:
        self._forget_silent()
        while self._held and (self._has_room() or self._held[0].key in self._live):
            held = self._held.popleft()
            if not held.let_in.done():
                self._seen(held.key)
                held.let_in.set_result(True)

    def _has_room(self) -> bool:
        return self.limit is None or len(self._live) < self.limit

    def _seen(self, key: str) -> None:
        self._live[key] = self._now_s()
        self._live.move_to_end(key)

    def _forget_silent(self) -> None:
        before_s = self._now_s() - self._idle_s
        while self._live and next(iter(self._live.values())) < before_s:
            self._live.popitem(last=False)
