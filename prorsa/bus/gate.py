"""Lets clients with the right keys into the hub's sockets, and tells what each of them may do there."""

from collections.abc import Mapping
from typing import Any, Final

import structlog
import zmq
from zmq.auth.thread import ThreadAuthenticator

from prorsa.bus import wire
from prorsa.bus.keys import ACCESS, CONTROLLER_TYPES, HUB_TYPES, ClientRole, Domain, Door, HubKeys
from prorsa.errors import RefusedError
from prorsa.events import Command

_OPERATOR_REQUESTS: Final = frozenset({wire.COMMAND, wire.LEASE})

_log = structlog.get_logger(__name__)


class Gate:
    """The authenticator of a hub, in a thread of its own; without keys everyone may do everything.

    Every message of a socket with keys carries the public key of its sender, which the methods here are asked about.
    """

    def __init__(self, context: "zmq.Context[Any]", keys: HubKeys | None) -> None:
        self._keys = keys
        self._roles = keys.roles() if keys is not None else {}
        self._authenticator: ThreadAuthenticator | None = None
        if keys is not None:
            self._authenticator = ThreadAuthenticator(context)
            for domain, allowed in ACCESS.items():
                self._authenticator.configure_curve_callback(domain, _Callers(self._roles, allowed))
            self._authenticator.start()

    @property
    def keyed(self) -> bool:
        """Whether clients need keys."""
        return self._keys is not None

    def door(self, domain: Domain) -> Door | None:
        """What a socket needs to be guarded; None if clients need no keys."""
        return None if self._keys is None else Door(self._keys, domain)

    def refused_types(self, public_key: str) -> frozenset[str]:
        """The event types that a client may not publish."""
        if self._keys is None:
            return frozenset()
        return HUB_TYPES if self._roles.get(public_key) == "operator" else CONTROLLER_TYPES

    def check_request(self, public_key: str, topic: bytes, payload: bytes) -> None:
        """Check a request to the control socket. A command that only asks is for everyone.

        Raises:
            RefusedError: if the client may only look.
            EventError: if it is no command.
        """
        if self._keys is None or topic not in _OPERATOR_REQUESTS or self._roles.get(public_key) == "operator":
            return
        if topic == wire.COMMAND and wire.decode(Command, payload).asks:
            return
        raise RefusedError(f"this key may look and not act: `{topic.decode()}` takes an operator's key (operator.key)")

    def close(self) -> None:
        """Stop the thread; before the context is ended."""
        if self._authenticator is not None:
            self._authenticator.stop()


class _Callers:
    """Whom the authenticator lets into one socket."""

    def __init__(self, roles: Mapping[str, ClientRole], allowed: frozenset[ClientRole]) -> None:
        self._roles = roles
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this public key may connect."""
        role = self._roles.get(key.decode())
        if role not in self._allowed:
            _log.warning("client_refused", socket=domain, public_key=key.decode(), role=role)
        return role in self._allowed
