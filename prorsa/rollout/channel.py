"""The way from a rollout to the hub. Whatever goes wrong on it is counted and logged once, and goes no further."""

import atexit
import logging
import math
import operator
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import util
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeVar, get_args

from prorsa.bus.keys import Keys
from prorsa.bus.publisher import Publisher, PublisherStats
from prorsa.bus.wire import Endpoints
from prorsa.errors import ProrsaError
from prorsa.events import EndStatus, Event

HUB_VARIABLE: Final = "PRORSA_HUB"
"""Environment variable with the hub's ingest endpoint or its run directory."""
RUN_ID_VARIABLE: Final = "PRORSA_RUN_ID"
EXIT_S: Final = 1.0
"""How long a process that ends waits at most for what it has tracked to be journalled."""
MAX_TEXT: Final = 256
"""Longer names are cut."""

_END_STATUSES: Final = get_args(EndStatus)
_log = logging.getLogger("prorsa.rollout")
_T = TypeVar("_T")


class Channel:
    """Publishes a tracker's events, or does nothing if it is not configured.

    Attributes:
        active: whether events go anywhere.
        lock: held by who changes a trajectory and publishes the change, so that events leave in the order of the
            changes whatever threads make them. May be taken again by its holder: values are cleaned under it, and what
            code of theirs that runs is not known.
        generation: counts forks; a child knows by it what its parent has begun.
    """

    def __init__(
        self,
        endpoint: str | os.PathLike[str] | None,
        source: str,
        run_id: str | None,
        keys: Keys | str | os.PathLike[str] | None,
    ) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        self.problems: dict[str, int] = {}
        self._publisher = self._open(endpoint or os.environ.get(HUB_VARIABLE), source, run_id, keys)
        self.active = self._publisher is not None
        if self.active:
            _channels.add(self)
        # Forked children of multiprocessing end without running what atexit has.
        util.register_after_fork(self, lambda channel: util.Finalize(channel, channel.close, exitpriority=0))

    def emit(self, event: Event) -> None:
        """Publish an event; the caller holds the lock if the event belongs to a trajectory."""
        if self._publisher is not None:
            self._publisher.publish(event)

    def problem(self, kind: str, text: str) -> None:
        """Count something that was dropped; the first of a kind is logged."""
        known = self.problems.get(kind, 0)
        self.problems[kind] = known + 1
        if not known:
            _log.warning("%s (logged once; the rollout goes on)", text)

    def stats(self) -> PublisherStats | None:
        """What the publisher has done; None if there is none."""
        return None if self._publisher is None else self._publisher.stats()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is journalled; False if that takes longer than ``timeout_s``."""
        return self._publisher is None or self._publisher.flush(timeout_s)

    def close(self, timeout_s: float = EXIT_S) -> bool:
        """Publish nothing more; wait for the rest to be journalled. Returns whether it was."""
        self.active = False
        _channels.discard(self)
        return self._publisher is None or self._publisher.close(timeout_s)

    # --- values as events want them ---------------------------------------------------------------------------------

    def text(self, name: str, value: object) -> str | None:
        """A name or an id, at most :data:`MAX_TEXT` characters."""
        return self._clean(name, value, _text)

    def count(self, name: str, value: object) -> int | None:
        """A number of things, of whatever type of integer."""
        return self._clean(name, value, _count)

    def seconds(self, name: str, value: object) -> float | None:
        """A time in seconds, or a timedelta."""
        return self._clean(name, value, _seconds)

    def flag(self, name: str, value: object) -> bool | None:
        """Yes or no."""
        return self._clean(name, value, bool)

    def one_of(self, name: str, value: object, choices: tuple[_T, ...]) -> _T | None:
        """One of some words; enumerations go by their value, and case does not matter."""
        return self._clean(name, value, lambda given: _one_of(given, choices))

    def end_status(self, value: object) -> EndStatus:
        """How a trajectory ended, ``completed`` unless said otherwise."""
        return self.one_of("status", value, _END_STATUSES) or "completed"

    def _clean(self, name: str, value: object, convert: Callable[[Any], _T]) -> _T | None:
        if value is None:
            return None
        try:
            return convert(value)
        except Exception as error:  # noqa: BLE001 - objects of any program come in here, and nothing may get out
            self.problem("value", f"{name}={_shown(value)} is left out: {type(error).__name__}: {error}")
            return None

    def _open(
        self,
        endpoint: str | os.PathLike[str] | None,
        source: str,
        run_id: str | None,
        keys: Keys | str | os.PathLike[str] | None,
    ) -> Publisher | None:
        if not endpoint:
            return None
        run_id = run_id or os.environ.get(RUN_ID_VARIABLE) or None
        try:
            return _publisher(os.fspath(endpoint), source, run_id, Keys.find(keys))
        except (ProrsaError, TypeError) as error:
            self.problem("configuration", f"trajectories are not tracked: {error}")
            return None


def _publisher(hub: str, source: str, run_id: str | None, keys: Keys | None) -> Publisher:
    """A publisher to a hub that is given by its ingest endpoint or its run directory."""
    if "://" not in hub:
        endpoints = Endpoints.load(Path(hub))
        hub, keys = endpoints.ingest, endpoints.fitting(keys)
    return Publisher(hub, source, run_id=run_id, keys=keys)


def _text(value: object) -> str:
    text = str(value)[:MAX_TEXT]
    if not text:
        raise ValueError("it is empty")
    return text


def _count(value: SupportsIndex | float) -> int:
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("it is not whole")
        value = int(value)
    number = operator.index(value)
    if not 0 <= number < 2**63:
        raise ValueError("a count is not negative and has 63 bits")
    return number


def _seconds(value: timedelta | float) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= number < math.inf:
        raise ValueError("a time is finite and not negative")
    return number


def _one_of(value: object, choices: tuple[_T, ...]) -> _T:
    word = str(getattr(value, "value", value)).lower()
    for choice in choices:
        if choice == word:
            return choice
    raise ValueError(f"it is none of {', '.join(map(str, choices))}")


def _shown(value: object) -> str:
    # repr of a foreign object may be long, or raise.
    return f"{value!r:.40}" if isinstance(value, str | int | float) else f"<{type(value).__name__}>"


_channels: set[Channel] = set()
"""Those that are not closed, also if their tracker is gone: what they hold leaves at the end of the process."""


def _after_fork() -> None:
    for channel in _channels:
        channel.lock = threading.RLock()  # another thread of the parent may have held it
        channel.generation += 1


def _at_exit() -> None:
    for channel in list(_channels):
        channel.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
