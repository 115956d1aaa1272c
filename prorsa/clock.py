"""Clocks that the shell injects; the core is handed times and reads none of these.

The *run clock* counts nanoseconds since the run began. It goes on over restarts of the hub, and in a demo it runs
``speed`` times as fast as the wall.
"""

import time
from collections.abc import Callable

NS_PER_S = 1_000_000_000


def seconds(t_ns: int) -> float:
    """Nanoseconds as seconds."""
    return t_ns / NS_PER_S


def nanoseconds(t_s: float) -> int:
    """Seconds as nanoseconds, rounded to the nearest."""
    return round(t_s * NS_PER_S)


class RunClock:
    """Maps a monotonic clock to run time: ``t = base + (monotonic - anchor) * speed``.

    Args:
        speed: run seconds in one second of the monotonic clock.
        base_ns: run time at the moment of construction.
        monotonic_ns: the clock to read; replaced in tests.
    """

    def __init__(
        self, speed: float = 1.0, base_ns: int = 0, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.speed = speed
        self._monotonic_ns = monotonic_ns
        self._base_ns = base_ns
        self._anchor_ns = monotonic_ns()

    def now_ns(self) -> int:
        """Run time now, in nanoseconds; never decreases between calls of :meth:`steer`."""
        return self._base_ns + round((self._monotonic_ns() - self._anchor_ns) * self.speed)

    def steer(self, t_ns: int, speed: float | None = None) -> None:
        """Set the run time of this moment to ``t_ns``, as a subscriber does at each heartbeat of the hub."""
        self._anchor_ns = self._monotonic_ns()
        self._base_ns = t_ns
        if speed is not None:
            self.speed = speed
