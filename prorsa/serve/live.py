"""``prorsa serve``: hub, routers and controller for live SGLang workers, each a process that can die and come back."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import msgspec
import structlog

from prorsa.bus.commands import LeaseKeeper
from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.cli.output import narrate
from prorsa.cluster.effects import Effect
from prorsa.cluster.live import LiveBackend
from prorsa.cluster.router.client import RouterClient
from prorsa.cluster.router.config import RouterConfig, read_secret
from prorsa.cluster.sglang import session_for_workers
from prorsa.errors import ConfigError
from prorsa.events import EffectResult
from prorsa.run import LivePlan
from prorsa.serve.config import ServeConfig, load_config
from prorsa.serve.rundir import RunDir, new_run_dir
from prorsa.serve.signals import until_signalled
from prorsa.serve.startup import hub_up
from prorsa.serve.supervisor import Supervisor


def run_serve(config_file: Path, run_dir: Path | None = None, shadow: str | None = None) -> int:
    """Serve until interrupted; a run directory that holds a live run's journal is continued.

    ``shadow`` goes before that of the configuration; see :func:`prorsa.control.shadow.make_shadow`.

    Raises:
        ConfigError: for a faulty configuration, with all its faults.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    config = load_config(config_file, shadow=shadow)
    place = run_dir or (Path(config.run.dir) if config.run.dir else None)
    run = RunDir(place.absolute()) if place else new_run_dir("live")
    run.create(resume=True)
    run.hold()
    run.save_plan(_plan(config, run))
    config.endpoints(run.path).save(run.path)
    asyncio.run(until_signalled(_serve(config, run)))
    return 0


def router_config(plan: LivePlan, run_dir: RunDir, name: str) -> RouterConfig:
    """The configuration of ``router1``, ``router2``, …: with the run's hub and a state file of its own."""
    given = plan.routers[int(name.removeprefix("router")) - 1]
    return msgspec.structs.replace(
        given,
        hub=given.hub or Endpoints.load(run_dir.path).ingest,
        run_id=plan.run_id,
        name=name,
        state_file=given.state_file or str(run_dir.path / f"{name}.json"),
    )


async def connect_live(plan: LivePlan, lease: LeaseKeeper) -> "OwnedBackend":
    """The backend that performs effects on the plan's workers through its routers."""
    access = plan.workers
    session = session_for_workers()
    routers = [
        RouterClient(session, router_url(router), token=read_secret(router.token_file, "token_file"))
        for router in plan.routers
    ]
    backend = LiveBackend(
        session,
        routers,
        lease_epoch=lambda: lease.epoch,
        worker_key=read_secret(access.key_file, "key_file"),
        worker_admin_key=read_secret(access.admin_key_file, "admin_key_file"),
        graph_memory_gb=access.graph_memory_gb,
        cache_kept=access.cache_kept,
        guard_l3=access.guard_l3,
    )
    return OwnedBackend(session, backend)


class OwnedBackend:
    """A live backend with the HTTP session that it uses."""

    def __init__(self, session: aiohttp.ClientSession, backend: LiveBackend) -> None:
        self._session = session
        self._backend = backend

    async def perform(self, effect: Effect) -> EffectResult:
        """Perform an effect on a live worker."""
        return await self._backend.perform(effect)

    async def admit(self, limit: int | None) -> None:
        """Let so many trajectories be live."""
        await self._backend.admit(limit)

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()


def router_url(router: RouterConfig) -> str:
    """Where the controller reaches a router: one that listens everywhere is reached on this machine."""
    host = "127.0.0.1" if router.host in ("0.0.0.0", "::", "") else router.host  # noqa: S104 - it is compared, not bound
    return f"http://[{host}]:{router.port}" if ":" in host else f"http://{host}:{router.port}"


def _plan(config: ServeConfig, run: RunDir) -> LivePlan:
    if any(router.port == 0 for router in config.routers):
        raise ConfigError("[[router]]: port 0 picks a port that nobody knows; give one")
    keys = str(Path(config.hub.keys).absolute()) if config.hub.keys else None
    return LivePlan(
        run_id=run.run_id, control=config.control, routers=config.routers, workers=config.workers, keys=keys
    )


async def _serve(config: ServeConfig, run: RunDir) -> None:
    supervisor = Supervisor(run, on_restart=lambda name: narrate(f"{name} had died; started again"))
    narrate(f"run directory {run.path}")
    try:
        await supervisor.start("hub")
        await hub_up(run, Keys.load(Path(config.hub.keys) / "operator.key") if config.hub.keys else None)
        names = [f"router{index}" for index, _ in enumerate(config.routers, 1)]
        for name, router in zip(names, config.routers, strict=True):
            await supervisor.start(name)
            narrate(f"{name} on {router_url(router)}")
        await supervisor.start("controller")
        narrate(f"workers and rollouts publish to {Endpoints.load(run.path).ingest} (PRORSA_HUB)")
        narrate("prorsa console shows the run; Ctrl-C ends it")
        await supervisor.ended("controller")
    finally:
        await supervisor.stop()
