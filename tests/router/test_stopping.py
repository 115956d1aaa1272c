"""What runs beside the router ends when it is told to, whatever else happens in that moment."""

import asyncio
from types import SimpleNamespace
from typing import Any

from prorsa.cluster.router.config import RouterConfig, WorkerSpec
from prorsa.cluster.router.fleet import Fleet, Member
from prorsa.cluster.router.pairs import Prover
from prorsa.cluster.router.table import Table


async def ends(task: asyncio.Task[Any]) -> bool:
    done, _ = await asyncio.wait({task}, timeout=30.0)
    return task in done and task.cancelled()


async def test_the_prover_ends_though_the_table_changes_in_the_same_moment() -> None:
    fleet: Any = SimpleNamespace(paused=set(), table=SimpleNamespace(unproven=list))
    prover = Prover(fleet, lambda: "rid", lambda: None)
    task = asyncio.create_task(prover.run())
    await asyncio.sleep(0.01)
    prover.wake()
    task.cancel()
    assert await ends(task)


async def test_watching_a_worker_ends_though_it_is_suspected_in_the_same_moment() -> None:
    class Idle(Fleet):
        async def look(self, member: Member) -> None:
            """Nothing to see."""

    spec = WorkerSpec(url="http://127.0.0.1:1", worker_id="A")
    fleet = Idle(
        RouterConfig(port=1, workers=(spec,)), Table.empty(), lambda _: None, changed=lambda: None, lost=lambda _: None
    )
    member: Any = SimpleNamespace(worker_id="A", wake=asyncio.Event())
    task = asyncio.create_task(fleet._watch(member))
    await asyncio.sleep(0.01)
    member.wake.set()
    task.cancel()
    assert await ends(task)
