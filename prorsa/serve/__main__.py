"""One process of a run: ``python -m prorsa.serve NAME RUN_DIR``. Started by the supervisor."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from functools import partial
from pathlib import Path

import structlog

from prorsa.bus.commands import LeaseKeeper
from prorsa.bus.hub import run_hub
from prorsa.bus.keys import KEYS_VARIABLE, HubKeys, Keys
from prorsa.bus.wire import Endpoints
from prorsa.run import LivePlan
from prorsa.serve.backend import EmbeddedBackend, cluster_endpoint
from prorsa.serve.rundir import RunDir


def main(name: str, run_dir: RunDir) -> None:
    """Run the named process until it has done its work or is told to stop."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which stops its processes in order
    match name:
        case "hub":
            plan = run_dir.load_plan()
            keys = HubKeys.load(plan.keys) if isinstance(plan, LivePlan) and plan.keys else None
            run_hub(run_dir.path, run_id=plan.run_id, speed=plan.speed, meta=plan.to_meta(), keys=keys)
            raise SystemExit(128 + signal.SIGTERM)  # a hub never has done its work
        case "controller":
            asyncio.run(_until_term(_controller(run_dir)))
        case "cluster":
            from prorsa.serve.cluster import EmbeddedCluster

            asyncio.run(_until_term(EmbeddedCluster(run_dir).run()))
        case _ if name.startswith("router"):
            asyncio.run(_until_term(_router(run_dir, name)))
        case _:
            raise SystemExit(f"prorsa.serve: no process {name!r}; there are hub, controller, cluster, router1, …")


async def _controller(run_dir: RunDir) -> None:
    from prorsa.serve.controller import run_controller

    plan, endpoints = run_dir.load_plan(), Endpoints.load(run_dir.path)
    if isinstance(plan, LivePlan):
        from prorsa.serve.live import connect_live

        keys = Keys.load(Path(plan.keys) / "operator.key") if plan.keys else None
        await run_controller(endpoints, plan.control, plan.run_id, partial(connect_live, plan), keys)
    else:
        await run_controller(endpoints, plan.control, plan.run_id, partial(_connect_embedded, endpoints))


async def _connect_embedded(endpoints: Endpoints, _lease: LeaseKeeper) -> EmbeddedBackend:
    return EmbeddedBackend(cluster_endpoint(endpoints))


async def _router(run_dir: RunDir, name: str) -> None:
    from prorsa.cluster.router.process import serve
    from prorsa.serve.live import router_config

    plan = run_dir.load_plan()
    assert isinstance(plan, LivePlan)
    if plan.keys:
        os.environ[KEYS_VARIABLE] = str(Path(plan.keys) / "publisher.key")
    await serve(router_config(plan, run_dir, name))


async def _until_term(work: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        # Not 0, which means that the work is done: a process that somebody else has ended is started again.
        raise SystemExit(128 + signal.SIGTERM) from None


def _end_with_parent() -> None:
    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], RunDir(Path(sys.argv[2])))
