"""The backend that performs the executor's effects on live workers, through the routers and SGLang's own calls.

What can go wrong with a flip of a live worker (see ``docs/router.md``) is handled here or in the router:

- it never switches a worker that is paused, whose memory is released, or that still holds a request;
- it takes a switch for done only when every scheduler of the worker says so;
- it keeps a shared L3 store from being wiped, by detaching it around the switch;
- a switch that failed without ``safe_to_restore`` is answered as such, so that the worker is quarantined.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp
import structlog

from prorsa.cluster.effects import Effect, done, failed
from prorsa.cluster.router.client import RouterAbsentError, RouterClient
from prorsa.cluster.sglang.client import WorkerClient
from prorsa.cluster.sglang.replies import SwitchReply
from prorsa.errors import ProrsaError, RefusedError, UnavailableError, WorkerError
from prorsa.events import EffectResult, Role

RESULTS_KEPT: Final = 1000
"""Results that are remembered, to be given again when an effect is asked for again."""
PROBE_S: Final = 2.0
"""Time in which a worker that generates at all answers a request of one token."""
FAKE_BOOTSTRAP_HOST: Final = "2.2.2.2"
"""SGLang's mark for a request without a peer, as its own health check sends it."""

log = structlog.get_logger(__name__)


class LiveBackend:
    """Performs effects on live workers.

    Args:
        session: for calls to routers and workers; see :func:`prorsa.cluster.sglang.session_for_workers`.
        routers: all routers of the pool.
        lease_epoch: the controller's lease epoch now; None acts as an operator without a lease.
        worker_key, worker_admin_key: keys of the workers, if they ask for them.
        graph_memory_gb: memory to reserve for decode CUDA graphs on a flip to decode; None asks a peer.
        cache_kept: whether the workers keep their prefix cache over a flip (the plugin's warm flips).
        guard_l3: detach a shared L3 store around the switch; needs the admin key. Off where the plugin keeps it.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        routers: Sequence[RouterClient],
        *,
        lease_epoch: Callable[[], int | None] = lambda: None,
        worker_key: str | None = None,
        worker_admin_key: str | None = None,
        graph_memory_gb: float | None = None,
        cache_kept: bool = False,
        guard_l3: bool = False,
    ) -> None:
        self._session = session
        self._routers = routers
        self._lease_epoch = lease_epoch
        self._worker_key = worker_key
        self._worker_admin_key = worker_admin_key
        self._graph_memory_gb = graph_memory_gb
        self._cache_kept = cache_kept
        self._guard_l3 = guard_l3
        self._clients: dict[str, WorkerClient] = {}
        self._roles: dict[str, Role] = {}
        self._results: OrderedDict[str, EffectResult] = OrderedDict()
        self._running: dict[str, asyncio.Task[EffectResult]] = {}

    async def perform(self, effect: Effect) -> EffectResult:
        """Do what an effect asks for, once; asked again, a success is answered again and a failure is tried again."""
        if (result := self._results.get(effect.effect_id)) is not None:
            return result
        task = self._running.get(effect.effect_id)
        if task is None:
            task = self._running[effect.effect_id] = asyncio.create_task(self._once(effect), name=effect.effect_id)
        return await asyncio.shield(task)

    async def _once(self, effect: Effect) -> EffectResult:
        try:
            async with asyncio.timeout(effect.deadline_s):
                result = await self._do(effect)
        except TimeoutError:
            result = failed(effect, f"not done within {effect.deadline_s:g} s")
        except ProrsaError as error:
            result = failed(effect, str(error))
        finally:
            del self._running[effect.effect_id]
        if result.ok:
            self._results[effect.effect_id] = result
            while len(self._results) > RESULTS_KEPT:
                self._results.popitem(last=False)
        log.info("effect", effect_id=effect.effect_id, ok=result.ok, detail=result.detail)
        return result

    async def _do(self, effect: Effect) -> EffectResult:
        match effect.action:
            case "fence" | "admit":
                await self._step(effect)
                return done(effect)
            case "drain":
                replies = await self._step(effect, deadline_s=0.9 * effect.deadline_s)
                return done(effect, requests_resumed=sum(reply["requests_resumed"] for reply in replies))
            case "settle":
                return await self._settle(effect)
            case "switch":
                return await self._switch(effect)
            case "warm":
                replies = await self._step(effect, cache_kept=self._cache_kept)
                return done(effect, kv_tokens_dropped=max(reply["kv_tokens_dropped"] for reply in replies))

    async def admit(self, limit: int | None) -> None:
        """Let so many trajectories be live over all routers, each its share; one that is silent keeps its limit."""
        share = None if limit is None else -(-limit // len(self._routers))
        for router in self._routers:
            try:
                await router.put_admission(share, self._lease_epoch())
            except ProrsaError as error:
                log.warning("admission limit not taken", router=router.url, error=str(error))

    # --- routers ------------------------------------------------------------------------------------------------------

    async def _step(self, effect: Effect, **more: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - fields of a JSON body
        """One step on every router; one that is gone sends no requests and reads the live roles when it is back."""
        body = {"epoch": effect.epoch, "lease_epoch": self._lease_epoch(), "role": effect.role, **more}
        results = await asyncio.gather(
            *(router.step(effect.action, effect.worker_id, body, effect.deadline_s) for router in self._routers),
            return_exceptions=True,
        )
        replies = [result for result in results if isinstance(result, dict)]
        for result in results:
            if isinstance(result, BaseException) and not (isinstance(result, RouterAbsentError) and replies):
                raise result
        return replies

    async def _client(self, worker_id: str) -> WorkerClient:
        if worker_id not in self._clients:
            await self._read_table()
        try:
            return self._clients[worker_id]
        except KeyError:
            raise RefusedError(f"no router knows worker {worker_id!r}: register it at /workers") from None

    async def _read_table(self) -> None:
        for router in self._routers:
            with contextlib.suppress(UnavailableError):
                for row in (await router.table())["workers"]:
                    worker_id, url = row["worker_id"], row["url"]
                    self._roles[worker_id] = row["role"]
                    if worker_id not in self._clients or self._clients[worker_id].url != url:
                        self._clients[worker_id] = WorkerClient(
                            self._session, url, api_key=self._worker_key, admin_key=self._worker_admin_key
                        )
                return
        raise UnavailableError("no router answers: start one, the workers go on without it")

    # --- the worker ---------------------------------------------------------------------------------------------------

    async def _settle(self, effect: Effect) -> EffectResult:
        """The idle barrier. A paused engine looks idle and may hold requests, so it has to answer one as well."""
        client = await self._client(effect.worker_id)
        await self._must_generate(client, effect)
        to_role: Role = "decode" if effect.role == "prefill" else "prefill"
        memory_gb = await self._graph_memory(effect.worker_id)
        reply = await client.wait_idle(to_role, 0.9 * effect.deadline_s, graph_memory_gb=memory_gb)
        if reply.success:
            return done(effect)
        return failed(effect, reply.message, safe_to_restore=reply.safe_to_restore)

    async def _must_generate(self, client: WorkerClient, effect: Effect) -> None:
        rid = f"probe-{effect.effect_id}"
        try:
            await client.probe(rid, FAKE_BOOTSTRAP_HOST, timeout_s=min(PROBE_S, effect.deadline_s / 2))
        except WorkerError as error:
            with contextlib.suppress(WorkerError):
                await client.abort(rid)
            raise RefusedError(
                f"worker {effect.worker_id} does not generate ({error}): it is paused, or its memory is released; a "
                "role change now would lose what it holds"
            ) from error

    async def _switch(self, effect: Effect) -> EffectResult:
        client = await self._client(effect.worker_id)
        memory_gb = await self._graph_memory(effect.worker_id)
        attached = await client.detach_hicache() if self._guard_l3 else None
        try:
            reply = await self._switch_role(client, effect, memory_gb)
        except WorkerError as error:
            # The worker may have switched, or be half-way: only its live role tells.
            return failed(effect, str(error), safe_to_restore=await self._still(client, effect))
        finally:
            if attached is not None:
                await client.attach_hicache(attached)
        if not reply.success:
            return failed(effect, reply.message, safe_to_restore=reply.safe_to_restore)
        return await self._verify(client, effect)

    async def _switch_role(self, client: WorkerClient, effect: Effect, memory_gb: float | None) -> SwitchReply:
        reply = await client.switch_role(effect.role, graph_memory_gb=memory_gb, timeout_s=effect.deadline_s)
        while reply.not_idle:
            # Something came in after the barrier, like a health check: it is over in a moment.
            await asyncio.sleep(0.05)
            reply = await client.switch_role(effect.role, graph_memory_gb=memory_gb, timeout_s=effect.deadline_s)
        return reply

    async def _verify(self, client: WorkerClient, effect: Effect) -> EffectResult:
        roles = (await client.info(fresh=True)).live_roles | {(await client.model()).role}
        if roles != {effect.role}:
            return failed(effect, f"asked for {effect.role}, its schedulers say {', '.join(sorted(roles))}")
        self._roles[effect.worker_id] = effect.role
        return done(effect)

    async def _still(self, client: WorkerClient, effect: Effect) -> bool | None:
        """Whether the worker is untouched in its old role; None if nobody knows."""
        with contextlib.suppress(WorkerError):
            roles = (await client.info(fresh=True)).live_roles
            reply = await client.switch_role(effect.role, prepare_only=True, graph_memory_gb=0.0)
            return effect.role not in roles and (reply.success or reply.safe_to_restore)
        return None

    async def _graph_memory(self, worker_id: str) -> float | None:
        """Memory of the decode CUDA graphs of a peer that has them; what a flip to decode must reserve."""
        if self._graph_memory_gb is not None:
            return self._graph_memory_gb
        await self._read_table()
        for peer, role in self._roles.items():
            if role == "decode" and peer != worker_id:
                with contextlib.suppress(WorkerError):
                    if (size := (await self._clients[peer].info()).graph_memory_gb) is not None:
                        return size
        return None
