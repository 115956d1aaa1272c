"""CURVE keys: who may do what on the bus, and the files that say so. Needs only msgspec and pyzmq.

A hub with keys encrypts all its sockets and knows each client by its public key:

=============  ==================================================================================================
role           may
=============  ==================================================================================================
``publisher``  publish events, but none of those by which a controller speaks (:data:`CONTROLLER_TYPES`)
``operator``   publish any event but the hub's own; subscribe, ask, command, hold the lease: controllers and people
``viewer``     subscribe, and ask for status, snapshot and replay
=============  ==================================================================================================
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
import zmq
from msgspec import Meta, Struct

from prorsa.errors import ConfigError, RefusedError

KEYS_VARIABLE: Final = "PRORSA_KEYS"
"""Environment variable with a client's key file."""
HUB_FILE: Final = "hub.key"
"""The hub's key file in a directory of keys."""

ClientRole = Literal["publisher", "operator", "viewer"]
Domain = Literal["ingest", "fanout", "control"]

ACCESS: Final[Mapping[Domain, frozenset[ClientRole]]] = {
    "ingest": frozenset({"publisher", "operator"}),
    "fanout": frozenset({"operator", "viewer"}),
    "control": frozenset({"operator", "viewer"}),
}
"""Who may connect to which of the hub's sockets."""
HUB_TYPES: Final = frozenset({"lease"})
"""Event types that only the hub itself makes."""
CONTROLLER_TYPES: Final = frozenset(
    {"admission", "command", "decision", "effect.result", "flip", "forecast", "lease", "override", "shadow", "view"}
)
"""Event types that a publisher's key may not send: who forges one of these steers workers."""

_ROLES: Final = get_args(ClientRole)
_Key = Annotated[str, Meta(min_length=40, max_length=40, description="Z85")]
_T = TypeVar("_T", "Keys", "HubKeys")


class Keys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client needs: its own pair, and the public key by which it knows the hub. All are Z85, as in ZeroMQ."""

    role: ClientRole
    hub: _Key
    public: _Key
    secret: _Key

    def __repr__(self) -> str:
        return f"Keys(role={self.role!r}, public={self.public!r})"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Keys":
        """Read a client's key file; of a directory of keys the one that may do most.

        Raises:
            ConfigError: if it is missing, open to others, or no client's key file; says the remedy.
        """
        file = Path(path)
        if file.is_dir():
            names = [f"{role}.key" for role in ("operator", "viewer", "publisher")]
            found = [file / name for name in names if (file / name).exists()]
            if not found:
                raise ConfigError(f"no keys in {file}: `prorsa keys {file}` makes {', '.join(names)}")
            file = found[0]
        return _read(file, cls)

    @classmethod
    def find(cls, given: "Keys | str | os.PathLike[str] | None") -> "Keys | None":
        """Keys, or a path to them, or by default what ``PRORSA_KEYS`` names; None if there is nothing of all this.

        Raises:
            ConfigError: like :meth:`load`.
        """
        if isinstance(given, Keys):
            return given
        path = given or os.environ.get(KEYS_VARIABLE)
        return cls.load(path) if path else None

    def secure(self, socket: "zmq.Socket[Any]") -> None:
        """Have a socket, not yet connected, use these keys."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.hub.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())


class HubKeys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a hub needs: its own pair, and the public keys of the clients that it lets in, by role."""

    role: Literal["hub"] = "hub"
    public: _Key
    secret: _Key
    clients: dict[ClientRole, tuple[_Key, ...]]

    def __repr__(self) -> str:
        return f"HubKeys(public={self.public!r})"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HubKeys":
        """Read the hub's key file, or that of a directory of keys.

        Raises:
            ConfigError: if it is missing, open to others, or no hub's key file; says the remedy.
        """
        file = Path(path)
        return _read(file / HUB_FILE if file.is_dir() else file, cls)

    def roles(self) -> dict[str, ClientRole]:
        """The role of each public key."""
        return {key: role for role, keys in self.clients.items() for key in keys}


class Door(Struct, frozen=True):
    """One of the hub's sockets as clients with keys find it."""

    keys: HubKeys
    domain: Domain

    def secure(self, socket: "zmq.Socket[Any]") -> None:
        """Have a socket, not yet bound, let in only whom the hub's authenticator knows."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.keys.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, self.domain.encode())
        # Without an authenticator nobody comes in, instead of everybody.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def make_keys(directory: str | os.PathLike[str]) -> list[Path]:
    """Make a hub's keys and one pair for each role of client; returns the files, readable by their owner alone.

    Raises:
        RefusedError: if there is one of the files already: keys in use are never overwritten.
        ConfigError: if they cannot be written.
    """
    folder = Path(directory)
    hub_public, hub_secret = _pair()
    pairs: dict[ClientRole, tuple[str, str]] = {role: _pair() for role in _ROLES}
    allowed: dict[ClientRole, tuple[str, ...]] = {role: (public,) for role, (public, _) in pairs.items()}
    contents: dict[str, Keys | HubKeys] = {
        HUB_FILE: HubKeys(public=hub_public, secret=hub_secret, clients=allowed),
    }
    for role, (public, secret) in pairs.items():
        contents[f"{role}.key"] = Keys(role=role, hub=hub_public, public=public, secret=secret)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [name for name in contents if (folder / name).exists()]
        if there:
            raise RefusedError(f"{folder} already holds {', '.join(there)}: name another directory, or remove them")
        return [_write(folder / name, content) for name, content in contents.items()]
    except OSError as error:
        raise ConfigError(f"keys in {folder}: {error.strerror}; name a directory that can be written") from error


def write_keys(directory: str | os.PathLike[str]) -> str:
    """Make keys like :func:`make_keys`; returns a text for people on which file goes where."""
    make_keys(directory)
    return "\n".join(
        [
            f"wrote to {os.fspath(directory)}, each readable by you alone:",
            "  hub.key        stays with the hub; lists the public keys that it lets in",
            "  publisher.key  for rollouts, routers and workers (PRORSA_KEYS): may publish events, nothing else",
            "  operator.key   for the controller and for people who may command workers",
            "  viewer.key     for consoles and dashboards that only look",
        ]
    )


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _write(path: Path, content: Keys | HubKeys) -> Path:
    # Exclusive, and with its mode from the start: at no moment can another user read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    return path


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        if path.stat().st_mode & stat.S_IRWXO:
            raise ConfigError(
                f"{path} is open to other users: chmod 600 {path}, and make new keys if they may have read it"
            )
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"keys {path}: {error.strerror}; `prorsa keys DIRECTORY` makes them") from error
    try:
        keys = msgspec.json.decode(content, type=kind)
        matching = zmq.curve_public(keys.secret.encode()).decode() == keys.public
    except (msgspec.DecodeError, zmq.ZMQError) as error:
        wanted = "the hub's" if kind is HubKeys else "a client's"
        other = "publisher.key, operator.key or viewer.key" if kind is Keys else HUB_FILE
        raise ConfigError(f"{path} is not {wanted} key file ({error}): give {other}") from error
    if not matching:
        raise ConfigError(f"{path}: its public key does not belong to its secret key: `prorsa keys` makes new ones")
    return keys
