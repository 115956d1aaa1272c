"""Commands to the controller, questions to the hub, and the lease that makes a controller the only one."""

import asyncio
import time
import uuid
from collections.abc import Collection
from typing import Final, Self

from prorsa.bus import wire
from prorsa.bus.control import ControlClient
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints, HubStatus, LeaseReply
from prorsa.errors import UnavailableError
from prorsa.events import Command, Stamped, decode_stamped, encode

RENEW_S: Final = 1.0
"""How often a lease is renewed."""
ACQUIRE_PAUSE_S: Final = 0.5
"""How often a lease that another holds is asked for."""
LEASE_MARGIN_S: Final = 0.5
"""A holder that cannot renew considers the lease gone so long before the hub does."""


class CommandClient:
    """Sends commands through the hub, and asks it what it knows.

    Use as ``async with CommandClient(endpoints) as client``. A hub that asks for keys takes commands from an operator's
    (:class:`prorsa.errors.RefusedError` for others), and answers questions of a viewer's too.

    Raises:
        ConfigError: if the hub asks for keys and there are none, or they are another hub's.
    """

    def __init__(self, endpoints: Endpoints, keys: Keys | None = None) -> None:
        self._control = ControlClient(endpoints.control, endpoints.fitting(keys))

    async def __aenter__(self) -> Self:
        await self._control.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._control.__aexit__(*details)

    async def request(self, command: Command, timeout_s: float = 10.0) -> Command:
        """Send a command and wait for the controller's word: the same command, ``accepted`` or ``rejected``.

        It is journalled before anything comes of it, and the same ``(client, request_id)`` is done once however often
        it is sent: after an error the call may simply be repeated.

        Raises:
            UnavailableError: if nobody answers in time; says whether the hub or the controller is silent.
            RefusedError: if the request id was used for another command.
            EventError: if the command does not fit the schema.
        """
        answer = await self._control.ask(wire.COMMAND, encode(command), timeout_s)
        return wire.decode(Command, answer)

    async def status(self, timeout_s: float = 10.0) -> HubStatus:
        """What the hub says of itself; raises :class:`UnavailableError` if there is none."""
        return wire.decode(HubStatus, await self._control.ask(wire.STATUS, b"", timeout_s))

    async def snapshot(self, topics: Collection[str] = ("",), timeout_s: float = 10.0) -> list[Stamped]:
        """The last event of each key, in order of ``hub_seq``; topics as for a subscriber.

        Raises:
            UnavailableError: if no hub answers in time.
            InputError: if no event type begins with one of the topics.
        """
        request = wire.SnapshotRequest(wire.resolve_topics(topics))
        answer = await self._control.ask(wire.SNAPSHOT, wire.encode(request), timeout_s)
        return [decode_stamped(bytes(raw)) for raw in wire.decode(wire.Snapshot, answer).events]


class LeaseKeeper:
    """Holds the controller lease: who does not hold it starts no side effect.

    Use as ``async with LeaseKeeper(endpoints, "controller") as keeper``; leaving the block gives the lease back. A new
    start under the same name takes the lease over at once, with a higher epoch, and so shuts its predecessor out.
    """

    def __init__(self, endpoints: Endpoints, holder: str, keys: Keys | None = None) -> None:
        self.holder = holder
        self.epoch = 0
        """The epoch of the lease that is or was held; 0 before the first."""
        self._control = ControlClient(endpoints.control, endpoints.fitting(keys))
        self._session = uuid.uuid4().hex
        self._until_s = 0.0
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._control.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stop_renewing()
        if self.held:
            await self._release()
        await self._control.__aexit__(*details)

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment; turns False by itself when it cannot be renewed."""
        return time.monotonic() < self._until_s

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait until the lease is ours, then keep it; returns its epoch.

        Call it again once :attr:`held` is False: a lease that was lost is never taken back silently.

        Raises:
            UnavailableError: if it is not ours within ``timeout_s``; says who holds it, or that no hub answers.
        """
        await self._stop_renewing()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            reply = await self._ask("acquire", left_s)
            if reply.granted:
                self.epoch = reply.epoch
                self._renewing = asyncio.create_task(self._renew())
                return reply.epoch
            if left_s is not None and left_s < ACQUIRE_PAUSE_S:
                raise UnavailableError(
                    f"{reply.holder} holds the controller lease for {reply.expires_in_s:.1f} s more; stop it first"
                )
            await asyncio.sleep(ACQUIRE_PAUSE_S)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                reply = await self._ask("renew", RENEW_S)
            except UnavailableError:
                continue  # `held` ends by itself; until then the hub may come back
            if not reply.granted:
                return

    async def _ask(self, action: wire.LeaseAction, timeout_s: float | None) -> LeaseReply:
        asked_s = time.monotonic()
        request = wire.LeaseRequest(action, self.holder, self._session, self.epoch)
        answer = await self._control.ask(wire.LEASE, wire.encode(request), timeout_s)
        reply = wire.decode(LeaseReply, answer)
        self._until_s = asked_s + wire.LEASE_S - LEASE_MARGIN_S if reply.granted else 0.0
        return reply

    async def _release(self) -> None:
        try:
            await self._ask("release", RENEW_S)
        except UnavailableError:
            return  # it expires

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            self._renewing = None
