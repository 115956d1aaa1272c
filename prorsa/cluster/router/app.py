"""The router put together: an aiohttp application and what runs beside it."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import structlog
from aiohttp import web
from msgspec import structs

from prorsa.cluster.router.admin import AdminApi
from prorsa.cluster.router.api import GenerationApi
from prorsa.cluster.router.attempt import aborts_sent
from prorsa.cluster.router.config import RouterConfig, WorkerSpec, read_secret
from prorsa.cluster.router.control import ControlApi
from prorsa.cluster.router.dispatch import Dispatcher
from prorsa.cluster.router.emit import Emitter
from prorsa.cluster.router.fleet import Fleet
from prorsa.cluster.router.metrics import Metrics
from prorsa.cluster.router.noting import Notes
from prorsa.cluster.router.pairs import Prover
from prorsa.cluster.router.sessions import Sessions
from prorsa.cluster.router.state import Saved, State
from prorsa.cluster.router.table import Table
from prorsa.cluster.router.web import bearer_check, errors
from prorsa.cluster.sglang.client import session_for_workers
from prorsa.events import make_rid

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Largest request body: long batches of token ids, and images."""
_CANARIES_END_S = 2.0
"""How long canaries under way may take to end when the router stops, while it can still reach the workers."""

log = structlog.get_logger(__name__)


def make_app(config: RouterConfig) -> web.Application:
    """The router as an application; it starts and stops with it.

    Run it with ``handler_cancellation=True``, so that a client's going away reaches its request.

    Raises:
        ConfigError: if a secret or the state file cannot be read.
    """
    app = web.Application(
        middlewares=[errors, bearer_check(read_secret(config.token_file, "token_file"))], client_max_size=MAX_BODY_BYTES
    )
    router = Router(config)
    app[ROUTER] = router
    app.add_routes([*router.api.routes(), *router.control.routes(), *router.admin.routes()])
    app.cleanup_ctx.append(router.lifetime)
    return app


class Router:
    """All parts of one router."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.state = State(config.state_file)
        saved = self.state.load()
        self.emit = Emitter(config.hub, config.name, config.run_id)
        self.metrics = Metrics()
        sessions = Sessions(config.sessions_limit)
        self.fleet = Fleet(config, _table(saved, config), self.emit, changed=self._changed, lost=self._lost)
        self.fleet.paused = set(saved.paused) if saved is not None else set()
        instance = secrets.token_hex(4)
        notes = Notes(self.emit, self.metrics, sessions)
        self.dispatcher = Dispatcher(config, self.fleet, sessions, notes, self.state, self.metrics, instance)
        self.prover = Prover(self.fleet, lambda: make_rid(self.dispatcher.next_id(), 0), self._changed)
        self.api = GenerationApi(self.dispatcher)
        self.control = ControlApi(self.dispatcher, self.fleet, self.metrics)
        self.admin = AdminApi(self.dispatcher, self.fleet, self.prover)
        self._unsaved = False

    async def lifetime(self, _: web.Application) -> AsyncIterator[None]:
        """Connect to the workers while the application runs."""
        async with session_for_workers() as session:
            self.fleet.session = session
            self._take_over()
            prover = asyncio.create_task(self.prover.run(), name="prover")
            yield
            prover.cancel()
            await asyncio.wait({prover}, timeout=_CANARIES_END_S)
            await self.fleet.stop()
            await aborts_sent(2.0)
        self._save()
        self.state.close()
        self.emit.close()

    def _take_over(self) -> None:
        """Go on where a predecessor was: its workers, its table; what it left running is aborted."""
        for rid, workers in self.state.left_behind().items():
            for worker_id in workers:
                self.fleet.leftovers.setdefault(worker_id, set()).add(rid)
        if self.fleet.paused:
            self.dispatcher.queue.close(", ".join(sorted(self.fleet.paused)))
        specs = [
            WorkerSpec(url=entry.url, worker_id=entry.worker_id, bootstrap_host=entry.bootstrap_host)
            for entry in self.fleet.table
        ]
        known = {spec.url for spec in specs}
        for spec in [*specs, *(spec for spec in self.config.workers if spec.url.rstrip("/") not in known)]:
            self.fleet.expect(spec)

    def _changed(self) -> None:
        self.dispatcher.queue.pump()
        self.prover.wake()
        if not self._unsaved:
            self._unsaved = True
            asyncio.get_running_loop().call_soon(self._save)

    def _save(self) -> None:
        self._unsaved = False
        self.state.save(Saved(table=self.fleet.table, run_id=self.config.run_id, paused=sorted(self.fleet.paused)))

    def _lost(self, worker_id: str) -> None:
        held = self.dispatcher.worker_lost(worker_id)
        if held:
            log.info("cache lost", worker=worker_id, tokens=held)


ROUTER = web.AppKey("router", Router)


def _table(saved: Saved | None, config: RouterConfig) -> Table:
    if saved is None:
        return Table.empty()
    table = saved.table
    for entry in list(table):
        # A flip that a controller has under way goes on; without a controller nobody would ever end it.
        flipping = table.lease_epoch > 0 and entry.state in ("fenced", "draining", "warming", "quarantined")
        # A new run knows none of the workers: they are announced as if they had just started.
        boot = entry.boot if saved.run_id == config.run_id else None
        table.put(structs.replace(entry, boot=boot, state=entry.state if flipping else "unmet"))
    return table
