"""Asks for what the views do not carry: the live trajectories one by one."""

import uuid
from typing import Final, Protocol

from prorsa.bus.commands import CommandClient
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.events import Command, TrajectoryView

ANSWER_WITHIN_S: Final = 4.0


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
