"""Sends what an operator asks for to the controller, through the hub's acknowledged command channel."""

import uuid
from typing import Protocol

from prorsa.console.forms import Ask
from prorsa.events import Command


class Commander(Protocol):
    """Turns requests into commands and gets them answered."""

    def prepare(self, ask: Ask) -> Command:
        """The command for a request, with an id of its own; nothing is sent yet."""

    async def send(self, command: Command) -> Command:
        """Send a command and return it as it was answered, ``accepted`` or ``rejected`` with a detail.

        Sending the same command again is safe.

        Raises:
            UnavailableError: if nobody answers in time; whether it took effect is then unknown.
        """


def prepare(ask: Ask, *, client: str, owner: str) -> Command:
    """A command with a fresh request id."""
    return Command(
        client=client,
        request_id=uuid.uuid4().hex,
        verb=ask.verb,
        state="requested",
        owner=owner,
        reason=ask.reason,
        target=ask.target,
        value=ask.value,
        for_s=ask.for_s,
    )
