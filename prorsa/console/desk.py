"""Asks for what the views do not carry: the live trajectories one by one. Of a controller, or of a recording."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Final, Protocol

from prorsa.bus.commands import CommandClient
from prorsa.bus.journal import JournalReader
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.console.playback import JournalFeed
from prorsa.events import EVENT_TYPES, Command, Stamped, TrajectoryView
from prorsa.forecast.predictor import Predictor
from prorsa.forecast.standing import longest_standing

ANSWER_WITHIN_S: Final = 4.0
_LIFECYCLE: Final = ("run.", "sandbox.", "trajectory.", "llm.", "tool.", "reward.", "weights.")
_TYPES: Final = tuple(name for name in EVENT_TYPES if name.startswith(_LIFECYCLE))
_BURST_EVENTS: Final = 2000


class Desk(Protocol):
    """Answers for trajectories."""

    async def trajectories(self) -> tuple[tuple[TrajectoryView, ...] | None, int] | None:
        """Those that stand out and the run time at which they did; None where the answer comes over the bus.

        Raises:
            ProrsaError: if nobody answers.
        """


class BusDesk:
    """Asks the controller of a run; the answer is an event of the run like any other. Viewers may ask too."""

    def __init__(self, endpoints: Endpoints, *, owner: str, keys: Keys | None = None) -> None:
        self._endpoints = endpoints
        self._owner = owner
        self._keys = keys
        self._client = f"console-{uuid.uuid4().hex[:12]}"

    async def trajectories(self) -> None:
        """Ask, and wait until it is answered."""
        question = Command(
            client=self._client,
            request_id=uuid.uuid4().hex,
            verb="details",
            state="requested",
            owner=self._owner,
            reason="",
        )
        async with CommandClient(self._endpoints, self._keys) as client:
            await client.request(question, ANSWER_WITHIN_S)


class JournalDesk:
    """Follows the trajectories of a recording up to where it stands, as the controller did then."""

    def __init__(self, feed: JournalFeed) -> None:
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
