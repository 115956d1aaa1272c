"""How the plugin is configured: by environment variables, since SGLang passes nothing to its plugins."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from prorsa.bus.keys import KEYS_VARIABLE, Keys
from prorsa.errors import ConfigError

CHECKED_VERSIONS: Final = ("0.5.23",)
"""SGLang releases whose hooks have been checked by the live tests."""

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    Attributes:
        hub: ``PRORSA_HUB``, the hub's ingest endpoint.
        worker_id: ``PRORSA_WORKER_ID``; None takes ``host:port`` of the server.
        run_id: ``PRORSA_RUN_ID``; None is whichever run the hub serves.
        retain_cache: ``PRORSA_RETAIN_CACHE``: a flip keeps the prefix cache; None is on for checked versions.
        keys: from the file that ``PRORSA_KEYS`` names, for a hub that asks for keys.
        watch_peers: ``PRORSA_WATCH_PEERS``: decode forgets the address of a prefill worker that has left it; None is
            on for checked versions.
    """

    hub: str
    worker_id: str | None = None
    run_id: str | None = None
    retain_cache: bool | None = None
    watch_peers: bool | None = None
    keys: Keys | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Read the settings; None if the plugin is not asked for.

        Raises:
            ConfigError: if a variable has a value that it cannot have.
        """
        hub = environment.get("PRORSA_HUB")
        if not hub:
            return None
        if not hub.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"PRORSA_HUB={hub!r} is not an endpoint: give tcp://HOST:PORT or ipc://PATH")
        return cls(
            hub=hub,
            worker_id=environment.get("PRORSA_WORKER_ID") or None,
            run_id=environment.get("PRORSA_RUN_ID") or None,
            retain_cache=_switch(environment, "PRORSA_RETAIN_CACHE"),
            watch_peers=_switch(environment, "PRORSA_WATCH_PEERS"),
            keys=Keys.load(keys) if (keys := environment.get(KEYS_VARIABLE)) else None,
        )


def _switch(environment: Mapping[str, str], name: str) -> bool | None:
    value = environment.get(name, "").lower()
    if value not in (*_ON, *_OFF, ""):
        raise ConfigError(f"{name}={value!r} is neither on nor off: give 1 or 0, or leave it out")
    return None if not value else value in _ON
