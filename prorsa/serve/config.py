"""``prorsa.toml``: what ``prorsa serve`` is told, checked as a whole."""

import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from prorsa.bus.keys import HubKeys, Keys
from prorsa.bus.sockets import is_local
from prorsa.bus.wire import Endpoints
from prorsa.cluster.profile import load_profile
from prorsa.cluster.router.config import RouterConfig, read_secret
from prorsa.control.config import ControlConfig
from prorsa.control.policies import make_policy
from prorsa.control.shadow import OFF, make_shadow
from prorsa.errors import ConfigError
from prorsa.run import WorkerAccess

_T = TypeVar("_T")
_SECTIONS: Final = ("run", "hub", "control", "workers", "router")


class RunSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[run]``: where the run keeps its journal, sockets, pids and logs; a directory that has a run is continued."""

    dir: str | None = None


class HubSection(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[hub]``: its three sockets; by default Unix sockets in the run directory, for processes of this machine.

    ``keys`` is a directory that ``prorsa keys`` has made; without keys no socket may be reachable from elsewhere.
    """

    ingest: str | None = None
    fanout: str | None = None
    control: str | None = None
    keys: str | None = None


class ServeConfig(Struct, frozen=True, kw_only=True):
    """A checked configuration."""

    run: RunSection
    hub: HubSection
    control: ControlConfig
    workers: WorkerAccess
    routers: tuple[RouterConfig, ...]

    def endpoints(self, run_dir: Path) -> Endpoints:
        """The hub's sockets."""
        hub = self.hub
        if hub.ingest and hub.fanout and hub.control:
            return Endpoints(hub.ingest, hub.fanout, hub.control)
        return Endpoints.ipc(run_dir)


def load_config(path: Path, *, shadow: str | None = None) -> ServeConfig:
    """Read and check a configuration; ``shadow`` goes before the policy in shadow that it names.

    Raises:
        ConfigError: with every fault at once, a line each.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a configuration file (docs/live.md shows one)") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    checker = _Checker(content, shadow)
    config = checker.config()
    if checker.faults:
        raise ConfigError(f"{path}: " + "\n  ".join(["", *checker.faults]).strip())
    assert config is not None
    return config


class _Checker:
    """Converts section by section and collects what is wrong."""

    def __init__(self, content: dict[str, Any], shadow: str | None) -> None:
        self._content = content
        self._shadow = shadow
        self.faults: list[str] = []

    def config(self) -> ServeConfig | None:
        self.faults += [
            f"[{name}]: no such section; there are {', '.join(_SECTIONS)}"
            for name in self._content.keys() - {*_SECTIONS}
        ]
        run = self._section("run", RunSection)
        hub = self._section("hub", HubSection)
        control = self._control()
        workers = self._section("workers", WorkerAccess)
        routers = self._routers()
        self._check_hub(hub)
        self._check_files(workers, routers)
        if run is None or hub is None or control is None or workers is None or self.faults:
            return None
        return ServeConfig(run=run, hub=hub, control=control, workers=workers, routers=routers)

    def _section(self, name: str, kind: type[_T]) -> _T | None:
        return self._convert(name, self._content.get(name, {}), kind)

    def _convert(self, name: str, content: object, kind: type[_T]) -> _T | None:
        try:
            return msgspec.convert(content, kind)
        except (msgspec.ValidationError, ConfigError) as error:
            self.faults.append(f"[{name}]: {error}")
            return None

    def _control(self) -> ControlConfig | None:
        content = dict(self._content.get("control", {}))
        profile = content.pop("profile", None)
        control = self._convert("control", content, ControlConfig)
        if control is None:
            # The policy is looked at all the same, so that its fault is not found only after the others are mended.
            policy = content.get("policy")
            if isinstance(policy, str):
                self._check_policy(policy)
            return None
        shadow = self._shadow or control.shadow
        if shadow == OFF:
            shadow = None
        if not self._check_policy(control.policy):
            return None
        try:
            if shadow is not None:
                make_shadow(shadow, control.policy)
            found = load_profile(profile) if profile else None
            return msgspec.structs.replace(control, profile=found, shadow=shadow)
        except ConfigError as error:
            self.faults.append(f"[control]: {error}")
            return None

    def _check_policy(self, name: str) -> bool:
        try:
            make_policy(name)
        except ConfigError as error:
            self.faults.append(f"[control]: {error}")
            return False
        return True

    def _routers(self) -> tuple[RouterConfig, ...]:
        tables = self._content.get("router", [])
        if not isinstance(tables, list) or not tables:
            self.faults.append("[[router]]: there must be at least one, with a port; write it in double brackets")
            return ()
        routers = [self._convert(f"router {index}", table, RouterConfig) for index, table in enumerate(tables, 1)]
        known = tuple(router for router in routers if router is not None)
        places = [(router.host, router.port) for router in known if router.port]
        for host, port in {place for place in places if places.count(place) > 1}:
            self.faults.append(f"[[router]]: two listen on {host}:{port}; give each its own port")
        return known

    def _check_hub(self, hub: HubSection | None) -> None:
        given = [name for name in ("ingest", "fanout", "control") if hub is not None and getattr(hub, name)]
        if 0 < len(given) < 3:
            self.faults.append(f"[hub]: {', '.join(given)} given: give all of ingest, fanout and control, or none")
        if hub is not None and hub.keys:
            self._check_keys(Path(hub.keys))
        for name in given:
            if hub is not None and not hub.keys and not is_local(getattr(hub, name)):
                self.faults.append(
                    f"[hub]: {name} can be reached from the network: give keys (`prorsa keys DIRECTORY`), or 127.0.0.1"
                )

    def _check_keys(self, folder: Path) -> None:
        try:
            HubKeys.load(folder)
            for role in ("operator", "publisher"):
                Keys.load(folder / f"{role}.key")
        except ConfigError as error:
            self.faults.append(f"[hub]: {error}")

    def _check_files(self, workers: WorkerAccess | None, routers: tuple[RouterConfig, ...]) -> None:
        secrets = [(router.token_file, "token_file") for router in routers]
        if workers is not None:
            secrets += [(workers.key_file, "key_file"), (workers.admin_key_file, "admin_key_file")]
        for path, what in dict.fromkeys(secrets):
            try:
                read_secret(path, what)
            except ConfigError as error:
                self.faults.append(str(error))
