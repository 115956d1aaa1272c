"""The workers of a router: registration, what they really do, death and return, and canaries."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from prorsa.cluster.router.attempt import Attempt, Done, Lost
from prorsa.cluster.router.choose import Pair
from prorsa.cluster.router.config import RouterConfig, WorkerSpec, read_secret
from prorsa.cluster.router.emit import Emitter
from prorsa.cluster.router.inbound import Single
from prorsa.cluster.router.merge import same_weights
from prorsa.cluster.router.table import Entry, Table
from prorsa.cluster.sglang.client import WorkerClient
from prorsa.cluster.sglang.replies import Loads, ModelInfo, ServerInfo
from prorsa.errors import InputError, RefusedError, WorkerError
from prorsa.events import WorkerDown, WorkerRole, WorkerUp

MODEL_EVERY: Final = 5
"""Every how many looks the weight version is asked for; answers and control calls tell it sooner."""
BOOT_EVERY: Final = 20
"""Every how many looks it is made sure that a worker is still the same process; what looks odd is asked at once."""
CANARY_TOKENS: Final = 4
"""Prompt tokens of a canary. Small ids exist in every vocabulary; random ones are in no prefix cache."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Member:
    """A worker as the router's process knows it."""

    worker_id: str
    client: WorkerClient
    spec: WorkerSpec
    known: bool = False
    misses: int = 0
    looks: int = 0
    suspected: bool = False
    loads: Loads | None = None
    info: ServerInfo | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Fleet:
    """Keeps the role table true to the workers.

    Args:
        config: the router's.
        table: the role table, maybe of a predecessor.
        emit: takes ``worker.*`` events.
        changed: called after each change of the table.
        lost: called with the id of a worker that has died, or lost its cache with its life.
    """

    def __init__(
        self,
        config: RouterConfig,
        table: Table,
        emit: Emitter,
        *,
        changed: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self.config = config
        self.table = table
        self.members: dict[str, Member] = {}
        self.paused: set[str] = set()
        self.leftovers: dict[str, set[str]] = {}
        self.session: aiohttp.ClientSession | None = None
        self.emit = emit
        self.note_change = changed
        self._lost = lost
        self._key = read_secret(config.worker_key_file, "worker_key_file")
        self._admin_key = read_secret(config.worker_admin_key_file, "worker_admin_key_file")

    # --- membership ---------------------------------------------------------------------------------------------------

    async def register(self, spec: WorkerSpec) -> Entry:
        """Take a worker in under its **live** role, whatever role it was launched or registered in.

        Raises:
            WorkerError: if it does not answer.
        """
        member = self._member(spec)
        await self._meet(member)
        self._start_watch(member)
        return self.table.get(member.worker_id)

    def expect(self, spec: WorkerSpec) -> None:
        """Take a worker in as soon as it answers."""
        self._start_watch(self._member(spec))

    async def remove(self, worker_id: str) -> None:
        """Take a worker out; what runs there goes on elsewhere."""
        self.table.get(worker_id)
        member = self.members.pop(worker_id)
        if member.task is not None:
            member.task.cancel()
        self.table.remove(worker_id)
        self._lost(worker_id)
        self.emit(WorkerDown(worker_id=worker_id, reason="removed"))
        self.note_change()

    def client(self, worker_id: str) -> WorkerClient:
        """The client of a worker."""
        return self.members[worker_id].client

    def alive(self) -> list[Member]:
        """All workers that are not dead, in the order of registration."""
        return [m for m in self.members.values() if m.known and self.table.get(m.worker_id).state != "dead"]

    def worker_of_url(self, url: str) -> str | None:
        """The id under which a URL is registered, or None."""
        return next((m.worker_id for m in self.members.values() if m.client.url == url.rstrip("/")), None)

    def suspect(self, worker_id: str) -> None:
        """A connection to a worker has failed: look at once, and whether it is the same process still."""
        if member := self.members.get(worker_id):
            member.suspected = True
            member.wake.set()

    def doubt(self, prefill_id: str, decode_id: str) -> None:
        """A pair has failed a request: it serves again once a canary has passed."""
        entries = self.table.entries
        if prefill_id in entries and decode_id in entries and prefill_id != decode_id:
            self.table.doubt(entries[prefill_id], entries[decode_id])
            self.note_change()

    async def stop(self) -> None:
        """End all watching."""
        tasks = [member.task for member in self.members.values() if member.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _member(self, spec: WorkerSpec) -> Member:
        parts = urlsplit(spec.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"worker URL {spec.url!r}: give one like http://10.0.0.7:30000")
        worker_id = spec.worker_id or self.worker_of_url(spec.url) or parts.netloc
        assert self.session is not None, "the fleet has no session yet"
        client = WorkerClient(self.session, spec.url, api_key=self._key, admin_key=self._admin_key)
        member = self.members.get(worker_id)
        if member is None:
            member = self.members[worker_id] = Member(worker_id, client, spec)
        elif member.client.url != client.url:
            member.client, member.spec, member.suspected = client, spec, True
        return member

    # --- watching -----------------------------------------------------------------------------------------------------

    def _start_watch(self, member: Member) -> None:
        if member.task is None:
            member.task = asyncio.create_task(self._watch(member), name=f"watch {member.worker_id}")

    async def _watch(self, member: Member) -> None:
        while True:
            try:
                await self.look(member)
            except Exception:
                log.exception("looking at a worker failed", worker=member.worker_id)
            # Not wait_for: that keeps a cancellation to itself which comes with the wake.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.poll_s):
                    await member.wake.wait()
            member.wake.clear()

    async def look(self, member: Member) -> None:
        """Look at a worker once: alive, its role, its load, and now and then its weights."""
        try:
            if not member.known or member.suspected or self.table.get(member.worker_id).state == "dead":
                await self._meet(member)
            loads = await member.client.loads()
            member.looks += 1
            if member.misses or member.looks % BOOT_EVERY == 0 or _went_back(member.loads, loads):
                await self._meet(member)
            if member.looks % MODEL_EVERY == 0:
                self.saw_weights(member.worker_id, (await member.client.model()).weight_version)
        except WorkerError as error:
            self._missed(member, error)
            return
        member.misses, member.loads = 0, loads
        self._saw_role(member, loads)
        self._publish_load(member, loads)
        await self._abort_leftovers(member)

    async def _meet(self, member: Member) -> None:
        """Read who a worker is, and tell a new process from the one known before."""
        info = await member.client.info(fresh=True)
        model = await member.client.model()
        member.known, member.suspected, member.misses, member.info = True, False, 0, info
        before = self.table.entries.get(member.worker_id)
        entry = self._entry(member, info, model, before)
        self.table.put(entry)
        new_life = before is None or before.boot != entry.boot or before.life != entry.life
        if new_life:
            self._lost(member.worker_id)
            self.table.forget_old_lives()
        if new_life or (before is not None and before.state == "dead"):
            self.emit(_worker_up(entry, info))
            log.info("worker up", worker=entry.worker_id, role=entry.role, epoch=entry.epoch)
        self.note_change()

    def _entry(self, member: Member, info: ServerInfo, model: ModelInfo, before: Entry | None) -> Entry:
        same = before is not None and before.boot == info.boot
        # While a worker flips, its role and epoch are for the flip to say; a new process ends any flip.
        flipping = before is not None and same and before.state in ("fenced", "draining", "warming")
        role = before.role if before is not None and flipping else model.role
        moved = before is not None and before.role != role
        state = before.state if before is not None and same and before.state not in ("dead", "unmet") else "serving"
        why_not = info.why_not_flippable()
        return Entry(
            worker_id=member.worker_id,
            url=member.client.url,
            role=role,
            bootstrap_host=member.spec.bootstrap_host or urlsplit(member.client.url).hostname or "",
            bootstrap_port=info.disaggregation_bootstrap_port,
            epoch=0 if before is None else before.epoch + moved,
            life=0 if before is None else before.life + (not same or moved),
            state=state,
            weight_version=model.weight_version,
            kv_capacity=info.kv_capacity,
            max_running=info.max_running,
            boot=info.boot,
            peers=before.peers if before is not None else None,
            flippable=why_not is None,
            why_not_flippable=why_not,
        )

    def _missed(self, member: Member, error: WorkerError) -> None:
        member.misses += 1
        entry = self.table.entries.get(member.worker_id)
        gone = member.misses >= self.config.dead_after or (member.suspected and error.status is None)
        if entry is None or entry.state == "dead" or not gone:
            return
        log.warning("worker lost", worker=member.worker_id, error=str(error))
        self.table.update(member.worker_id, state="dead")
        self.emit(WorkerDown(worker_id=member.worker_id, reason=str(error)[:200]))
        self._lost(member.worker_id)
        self.note_change()

    def _saw_role(self, member: Member, loads: Loads) -> None:
        entry = self.table.get(member.worker_id)
        if loads.role is None or not entry.serving or loads.role == entry.role:
            return
        # Somebody else has flipped it: what it does counts, not what the table says.
        log.warning("worker has another role", worker=entry.worker_id, table=entry.role, live=loads.role)
        entry = self.table.update(member.worker_id, role=loads.role, epoch=entry.epoch + 1, life=entry.life + 1)
        self.table.forget_old_lives()
        self._lost(member.worker_id)
        self.emit(WorkerRole(worker_id=entry.worker_id, role=entry.role, epoch=entry.epoch))
        self.note_change()

    def saw_weights(self, worker_id: str, version: str | None) -> None:
        """Take note of a worker's weight version."""
        entry = self.table.entries.get(worker_id)
        if entry is not None and version is not None and entry.weight_version != version:
            self.table.update(worker_id, weight_version=version)
            self.note_change()

    async def read_weights(self) -> None:
        """Ask every worker for its weight version, as after an update."""
        for member in list(self.members.values()):
            with contextlib.suppress(WorkerError):
                self.saw_weights(member.worker_id, (await member.client.model()).weight_version)

    def _publish_load(self, member: Member, loads: Loads) -> None:
        if self.config.publish_loads:
            entry = self.table.get(member.worker_id)
            self.emit(
                loads.as_event(
                    member.worker_id,
                    epoch=entry.epoch,
                    paused=bool(self.paused),
                    weight_version=entry.weight_version,
                )
            )

    async def _abort_leftovers(self, member: Member) -> None:
        for rid in self.leftovers.pop(member.worker_id, set()):
            with contextlib.suppress(WorkerError):
                await member.client.abort(rid)

    # --- canaries -----------------------------------------------------------------------------------------------------

    async def canary(self, prefill: Entry, decode: Entry, rid: str) -> None:
        """Send one tiny request through a pair and remember that it passed.

        Raises:
            RefusedError: if it does not pass; says what happened.
        """
        attempt = self._canary_attempt(prefill, decode, rid)
        try:
            async with asyncio.timeout(self.config.canary_s):
                outcome = await attempt.run()
        except TimeoutError:
            raise RefusedError(f"canary {_names(prefill, decode)}: no answer in {self.config.canary_s:g} s") from None
        if isinstance(outcome, Lost):
            for worker_id in outcome.blame:
                self.suspect(worker_id)
        if not isinstance(outcome, Done):
            raise RefusedError(f"canary {_names(prefill, decode)}: {outcome}")
        if not same_weights(outcome.segment):
            raise RefusedError(f"canary {_names(prefill, decode)}: the two run on different weights")
        self.table.prove(prefill, decode)

    def _canary_attempt(self, prefill: Entry, decode: Entry, rid: str) -> Attempt:
        prompt = [random.randint(3, 200) for _ in range(CANARY_TOKENS)]
        params = {"temperature": 0.0, "max_new_tokens": 2, "ignore_eos": True, "n": 1}
        body = {"input_ids": prompt, "sampling_params": params, "log_metrics": False}
        return Attempt(
            rid=rid,
            single=Single("generate", body, prompt, None),
            body=body,
            pair=Pair(prefill, decode, CANARY_TOKENS),
            prefill=self.client(prefill.worker_id),
            decode=self.client(decode.worker_id),
            bootstrap_host=self.table.bootstrap_name(prefill),
            handover_s=self.config.canary_s,
            prompt_tokens=CANARY_TOKENS,
            on_prefilled=lambda _: None,
        )


def _went_back(before: Loads | None, after: Loads) -> bool:
    """Whether the count of prefilled tokens has gone back, as only a new process's does; the others end with a role."""
    was = None if before is None else before.as_event("w").prefill_tokens_total
    now = after.as_event("w").prefill_tokens_total
    return was is not None and now is not None and now < was


def _names(prefill: Entry, decode: Entry) -> str:
    return f"{prefill.worker_id} -> {decode.worker_id}"


def _worker_up(entry: Entry, info: ServerInfo) -> WorkerUp:
    return WorkerUp(
        worker_id=entry.worker_id,
        role=entry.role,
        epoch=entry.epoch,
        flippable=entry.flippable,
        reason_not_flippable=entry.why_not_flippable,
        kv_capacity=entry.kv_capacity,
        max_running=entry.max_running,
        dp_size=info.dp_size,
        gpus=info.tp_size,
        url=entry.url,
        weight_version=entry.weight_version,
    )
