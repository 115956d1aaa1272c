"""Follows the trajectories of a recording, for the details that views do not carry.

Apart from the desk of a live run, since it needs the forecast's state machine, which takes a while to load.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from prorsa.bus.journal import JournalReader
from prorsa.console.status import FeedStatus
from prorsa.events import EVENT_TYPES, Stamped, TrajectoryView
from prorsa.forecast.predictor import Predictor
from prorsa.forecast.standing import longest_standing

_LIFECYCLE: Final = ("run.", "sandbox.", "trajectory.", "llm.", "tool.", "reward.", "weights.")
_TYPES: Final = tuple(name for name in EVENT_TYPES if name.startswith(_LIFECYCLE))
_BURST_EVENTS: Final = 2000


class Recording(Protocol):
    """A recording that stands somewhere; :class:`~prorsa.console.playback.JournalFeed` is one."""

    directory: Path

    @property
    def position_seq(self) -> int:
        """``hub_seq`` of the last event before where it stands."""

    def status(self) -> FeedStatus:
        """Where it stands."""


class JournalDesk:
    """Follows the trajectories of a recording up to where it stands, as the controller did then."""

    def __init__(self, feed: Recording) -> None:
        self._feed = feed
        self._predictor: Predictor | None = None
        self._upto_seq = 0

    async def trajectories(self) -> tuple[tuple[TrajectoryView, ...], int] | None:
        """Fold what is new since the last call, all of it after a jump back; in parts, so that the screen goes on."""
        status = self._feed.status()
        if status.now_ns is None:
            return None
        upto_seq = self._feed.position_seq
        if self._predictor is None or upto_seq < self._upto_seq:
            self._predictor, self._upto_seq = Predictor(), 0
        with JournalReader(self._feed.directory) as reader:
            events = reader.read(self._upto_seq, upto_seq, _TYPES)
            more = True
            while more:
                more = await asyncio.to_thread(self._fold, self._predictor, events)
        self._upto_seq = upto_seq
        return longest_standing(self._predictor.table, status.now_ns / 1e9), status.now_ns

    @staticmethod
    def _fold(predictor: Predictor, events: Iterator[Stamped]) -> bool:
        """Take a burst of events; False at the end."""
        for _ in range(_BURST_EVENTS):
            stamped = next(events, None)
            if stamped is None:
                return False
            predictor.observe(stamped)
        return True
