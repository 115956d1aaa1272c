"""Sends what an operator asks for to the controller, through the hub's acknowledged command channel."""

import uuid
from typing import Final, Protocol

from prorsa.bus.commands import CommandClient
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.console.forms import Ask
from prorsa.events import Command

ANSWER_WITHIN_S: Final = 10.0


class Commander(Protocol):
    """Turns requests into commands and gets them answered."""

    def prepare(self, ask: Ask, *, dry_run: bool = False) -> Command:
        """The command for a request, with an id of its own; nothing is sent yet. ``dry_run``: only to be told."""

    async def send(self, command: Command) -> Command:
        """Send a command and return it as it was answered, ``accepted`` or ``rejected`` with a detail.

        Sending the same command again is safe.

        Raises:
            UnavailableError: if nobody answers in time; whether it took effect is then unknown.
            ProrsaError: if the bus itself refuses the command.
        """


class BusCommander:
    """Sends over the bus, in the name of ``owner``, as one client for as long as the console lives."""

    def __init__(
        self, endpoints: Endpoints, *, owner: str, keys: Keys | None = None, timeout_s: float = ANSWER_WITHIN_S
    ) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._owner = owner
        self._timeout_s = timeout_s
        self._client = f"console-{uuid.uuid4().hex[:12]}"

    def prepare(self, ask: Ask, *, dry_run: bool = False) -> Command:
        """The command for a request, with an id of its own; nothing is sent yet. ``dry_run``: only to be told."""
        return Command(
            client=self._client,
            request_id=uuid.uuid4().hex,
            verb=ask.verb,
            state="requested",
            owner=self._owner,
            reason=ask.reason,
            target=ask.target,
            value=ask.value,
            for_s=ask.for_s,
            dry_run=dry_run,
        )

    async def send(self, command: Command) -> Command:
        """Send a command and wait for the controller's word; see :class:`Commander`."""
        async with CommandClient(self._endpoints, self._keys) as client:
            return await client.request(command, self._timeout_s)
