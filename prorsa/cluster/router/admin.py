"""What a controller calls: the role table, and the steps of a flip."""

from typing import Annotated

import structlog
from aiohttp import web
from msgspec import Meta, Struct, to_builtins

from prorsa.cluster.router.dispatch import Dispatcher
from prorsa.cluster.router.drain import drain
from prorsa.cluster.router.fleet import Fleet
from prorsa.cluster.router.pairs import Prover
from prorsa.cluster.router.table import Entry, RoleTable
from prorsa.cluster.router.web import read_as, reply
from prorsa.errors import RefusedError
from prorsa.events import Role, WorkerRole

log = structlog.get_logger(__name__)


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a flip.

    Attributes:
        epoch: the worker's, in the flip.
        lease_epoch: the controller's; None is an operator.
        role: the role to warm or to serve in.
        deadline_s: limit of a drain.
        cache_kept: whether the worker's prefix cache has survived the change of its role.
    """

    epoch: int
    lease_epoch: int | None = None
    role: Role | None = None
    deadline_s: float = 30.0
    cache_kept: bool = False


class AdmissionAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many sessions may be live at this router; None for no limit."""

    limit: Annotated[int, Meta(ge=1)] | None
    lease_epoch: int | None = None


class PairAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pair to prove now."""

    prefill: str
    decode: str
    lease_epoch: int | None = None


class AdminApi:
    """Handlers of a controller's calls.

    Fencing, draining, warming and admitting one worker twice does the thing once.
    """

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet, prover: Prover) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._prover = prover

    def routes(self) -> list[web.RouteDef]:
        """The routes served here."""
        return [
            web.get("/prorsa/table", self.get_table),
            web.put("/prorsa/table", self.put_table),
            web.put("/prorsa/admission", self.put_admission),
            web.post("/prorsa/canary", self.canary),
            web.post("/prorsa/fence/{worker}", self.fence),
            web.post("/prorsa/drain/{worker}", self.drain),
            web.post("/prorsa/warm/{worker}", self.warm),
            web.post("/prorsa/admit/{worker}", self.admit),
        ]

    async def get_table(self, _: web.Request) -> web.Response:
        """The table, what is placed on each worker, and what holds the queue."""
        table = self._fleet.table
        rows = [
            {**to_builtins(entry), "load": to_builtins(self._dispatcher.loads.of(entry.worker_id))} for entry in table
        ]
        return reply(
            {
                "lease_epoch": table.lease_epoch,
                "version": table.version,
                "paused": sorted(self._fleet.paused),
                "queued": len(self._dispatcher.queue),
                "held": self._dispatcher.gate.held,
                "workers": rows,
                "pairs": sorted(table.proven),
            }
        )

    async def put_table(self, request: web.Request) -> web.Response:
        """Take a newer table; refused (409) from a controller that has lost its lease."""
        applied = self._fleet.table.apply(await read_as(request, RoleTable))
        if applied:
            self._fleet.table.forget_old_lives()
            self._fleet.note_change()
        return reply({"applied": applied})

    async def put_admission(self, request: web.Request) -> web.Response:
        """Let so many sessions be live from now on; first turns of others wait."""
        asked = await read_as(request, AdmissionAsked)
        self._fleet.table.check_lease(asked.lease_epoch)
        gate = self._dispatcher.gate
        gate.set_limit(asked.limit)
        return reply({"limit": gate.limit, "live": gate.live, "held": gate.held})

    async def fence(self, request: web.Request) -> web.Response:
        """Send nothing new to the worker."""
        step, entry = await self._step(request)
        self._refuse_if_paused(entry)
        self._set(entry, step, state="fenced")
        return reply({"ok": True})

    async def drain(self, request: web.Request) -> web.Response:
        """Empty a fenced worker; 409 if requests are left at the deadline."""
        step, entry = await self._step(request)
        if entry.serving:
            raise RefusedError(f"worker {entry.worker_id} serves: fence it first, or the drain never ends")
        self._refuse_if_paused(entry)
        self._set(entry, step, state="draining")
        drained = await drain(self._dispatcher, entry.worker_id, step.deadline_s)
        body = {"requests_resumed": drained.requests_resumed, "tokens_kept": drained.tokens_kept, "left": drained.left}
        return reply({"ok": drained.left == 0, **body}, 200 if drained.left == 0 else 409)

    async def warm(self, request: web.Request) -> web.Response:
        """Prove a worker in its new role with one peer; the others are proven once it serves."""
        step, entry = await self._step(request)
        if step.role is None:
            raise RefusedError("which role: give `role`")
        before = entry.role
        entry = self._set(entry, step, state="warming")
        dropped = 0
        if entry.role != before and not step.cache_kept:
            dropped = self._dispatcher.sessions.drop_worker(entry.worker_id)
        peer = await self._prove_with_one(entry)
        return reply({"ok": True, "peer": peer, "kv_tokens_dropped": dropped})

    async def admit(self, request: web.Request) -> web.Response:
        """Let the worker serve."""
        step, entry = await self._step(request)
        if entry.state == "dead":
            raise RefusedError(f"worker {entry.worker_id} is dead: it serves again once it answers")
        entry = self._set(entry, step, state="serving")
        self._fleet.emit(WorkerRole(worker_id=entry.worker_id, role=entry.role, epoch=entry.epoch))
        return reply({"ok": True, "role": entry.role, "epoch": entry.epoch})

    async def canary(self, request: web.Request) -> web.Response:
        """Send one tiny request through a pair."""
        asked = await read_as(request, PairAsked)
        table = self._fleet.table
        table.check_lease(asked.lease_epoch)
        await self._prover.prove(table.get(asked.prefill), table.get(asked.decode))
        return reply({"ok": True})

    async def _step(self, request: web.Request) -> tuple[Step, Entry]:
        step = await read_as(request, Step)
        self._fleet.table.check_lease(step.lease_epoch)
        return step, self._fleet.table.check_epoch(request.match_info["worker"], step.epoch)

    def _set(self, entry: Entry, step: Step, *, state: str) -> Entry:
        role = step.role if step.role is not None and state in ("warming", "serving") else entry.role
        moved = role != entry.role
        entry = self._fleet.table.update(
            entry.worker_id, role=role, epoch=step.epoch, life=entry.life + moved, state=state
        )
        if moved:
            self._fleet.table.forget_old_lives()
        self._fleet.note_change()
        return entry

    def _refuse_if_paused(self, entry: Entry) -> None:
        if self._fleet.paused:
            raise RefusedError(
                f"worker {entry.worker_id}: {', '.join(sorted(self._fleet.paused))}; a role change now would lose the "
                "requests it holds: wait for /continue_generation"
            )

    async def _prove_with_one(self, entry: Entry) -> str | None:
        if entry.role == "mixed":
            return None
        peers = [peer for peer in self._fleet.table if peer.serving and _fits(entry, peer)]
        if not peers:
            raise RefusedError(f"worker {entry.worker_id}: no serving peer with the same weights to try it with")
        tried = []
        for peer in sorted(peers, key=lambda peer: self._dispatcher.loads.of(peer.worker_id).decoding):
            prefill, decode = (entry, peer) if entry.role == "prefill" else (peer, entry)
            try:
                await self._prover.prove(prefill, decode)
            except RefusedError as error:
                tried.append(str(error))
                continue
            return peer.worker_id
        raise RefusedError("; ".join(tried))


def _fits(entry: Entry, peer: Entry) -> bool:
    other = "decode" if entry.role == "prefill" else "prefill"
    return peer.role == other and peer.weight_version == entry.weight_version and peer.allows(entry.worker_id)
