"""What frameworks and operators call about workers: registration, control calls to all of them, aborts, metrics."""

import asyncio
import re
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from prorsa.cluster.router.config import WorkerSpec
from prorsa.cluster.router.dispatch import Dispatcher
from prorsa.cluster.router.fleet import Fleet, Member
from prorsa.cluster.router.metrics import Metrics
from prorsa.cluster.router.web import read_object, reply
from prorsa.cluster.sglang.client import WorkerClient
from prorsa.errors import InputError, UnavailableError, WorkerError

_HOLDS: Final = {"/pause_generation": "paused", "/release_memory_occupation": "memory released"}
_FREES: Final = {"/continue_generation": "paused", "/resume_memory_occupation": "memory released"}
_NEW_WEIGHTS: Final = (
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/end_weight_update",
    "/update_weight_version",
)
_GROUP: Final = "/init_weights_update_group"
FAN_OUT: Final = (
    *_HOLDS,
    *_FREES,
    *_NEW_WEIGHTS,
    "/begin_weight_update",
    _GROUP,
    "/destroy_weights_update_group",
    "/flush_cache",
    "/load_lora_adapter",
    "/unload_lora_adapter",
)
"""Control calls that are passed on to every worker."""

_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{)?", re.MULTILINE)

log = structlog.get_logger(__name__)


class ControlApi:
    """Handlers of control calls."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """The routes served here."""
        fan_out = [web.route("*", path, self.fan_out) for path in FAN_OUT]
        first = [web.get(path, self.first_worker) for path in ("/v1/models", "/model_info", "/get_model_info")]
        return [
            *fan_out,
            *first,
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            web.get("/metrics", self.metrics),
            web.get("/engine_metrics", self.engine_metrics),
            web.post("/abort_request", self.abort_request),
            web.get("/workers", self.list_workers),
            web.post("/workers", self.add_worker),
            web.delete("/workers/{worker:.+}", self.remove_worker),
        ]

    # --- health and metrics -------------------------------------------------------------------------------------------

    async def health(self, _: web.Request) -> web.Response:
        """The router is alive; whether it can serve is ``/ready``."""
        return reply({"status": "ok", "workers": len(self._fleet.table.entries), "queued": len(self._dispatcher.queue)})

    async def ready(self, _: web.Request) -> web.Response:
        """200 if some pair of workers can serve, else 503 with what is missing."""
        missing = self._dispatcher.queue.why_not()
        return reply({"status": missing or "ok"}, 503 if missing else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        """The router's own metrics."""
        self._metrics.queued.set(len(self._dispatcher.queue))
        self._metrics.pairs.set(len(self._fleet.table.proven))
        self._metrics.workers.clear()
        for entry in self._fleet.table:
            self._metrics.workers.labels(entry.role, entry.state).inc()
        return web.Response(body=self._metrics.render(), content_type="text/plain")

    async def engine_metrics(self, _: web.Request) -> web.Response:
        """The metrics of all workers, each sample labelled with its worker."""
        ids = [entry.worker_id for entry in self._fleet.table if entry.state != "dead"]
        texts = await asyncio.gather(*(self._metrics_of(worker_id) for worker_id in ids))
        return web.Response(body=b"".join(texts), content_type="text/plain")

    async def _metrics_of(self, worker_id: str) -> bytes:
        try:
            status, text = await self._fleet.client(worker_id).control("GET", "/metrics", b"", timeout_s=5.0)
        except WorkerError:
            return b""
        if status != 200:
            return b""
        return label_samples(text, worker_id)

    async def first_worker(self, request: web.Request) -> web.Response:
        """What is the same on all workers, from the first that answers."""
        for member in self._fleet.alive():
            try:
                status, body = await member.client.control("GET", request.path, b"", timeout_s=5.0)
            except WorkerError:
                continue
            return web.Response(body=body, status=status, content_type="application/json")
        raise UnavailableError("no worker answers: register one at /workers")

    # --- workers ------------------------------------------------------------------------------------------------------

    async def list_workers(self, _: web.Request) -> web.Response:
        """``GET /workers``."""
        return reply({"workers": [self._row(worker_id) for worker_id in self._fleet.table.entries]})

    async def add_worker(self, request: web.Request) -> web.Response:
        """``POST /workers {url}``: the role that counts is the live one, whatever ``worker_type`` says.

        A worker that does not answer yet is taken in as soon as it does (202).
        """
        body = await read_object(request)
        url = body.get("url")
        if not isinstance(url, str):
            raise InputError("`url` is missing: where does the worker listen?")
        spec = WorkerSpec(url=url, worker_id=body.get("worker_id"), bootstrap_host=body.get("bootstrap_host"))
        try:
            entry = await self._fleet.register(spec)
        except WorkerError as error:
            self._fleet.expect(spec)
            return reply({"status": "expected", "url": url, "message": str(error)}, 202)
        asked = body.get("worker_type")
        if asked in ("prefill", "decode") and asked != entry.role:
            log.warning("worker registered in another role than it has", worker=entry.worker_id, asked=asked)
        return reply({"status": "ok", **self._row(entry.worker_id)})

    async def remove_worker(self, request: web.Request) -> web.Response:
        """``DELETE /workers/{id}``; the URL works as an id too."""
        worker = request.match_info["worker"]
        await self._fleet.remove(self._fleet.worker_of_url(worker) or worker)
        return reply({"status": "removed"})

    def _row(self, worker_id: str) -> dict[str, Any]:
        entry = self._fleet.table.get(worker_id)
        worker_type = "regular" if entry.role == "mixed" else entry.role
        return {
            "id": worker_id,
            "url": entry.url,
            "worker_type": worker_type,
            "bootstrap_port": entry.bootstrap_port,
            "is_healthy": entry.state not in ("dead", "quarantined"),
            "state": entry.state,
        }

    # --- calls to all workers -----------------------------------------------------------------------------------------

    async def abort_request(self, request: web.Request) -> web.Response:
        """``POST /abort_request``: the client takes requests back; they answer with what they have.

        ``abort_all`` goes to the workers too, for what others have sent them.
        """
        body = await read_object(request)
        if body.get("abort_all"):
            aborted = self._dispatcher.abort_all()
            calls = [member.client.abort_all() for member in self._fleet.alive()]
            await asyncio.gather(*calls, return_exceptions=True)
            return reply({"aborted": aborted})
        rid = body.get("rid")
        if not isinstance(rid, str) or not rid:
            raise InputError("which request: give `rid`, or `abort_all`")
        return reply({"aborted": self._dispatcher.abort(rid)})

    async def fan_out(self, request: web.Request) -> web.Response:
        """Pass a control call on to every worker; 200 if all of them took it, else the worst status."""
        path, body = request.path, await request.read()
        if path in _HOLDS:
            self._hold(_HOLDS[path])
        query = f"?{request.query_string}" if request.query_string else ""
        members = self._fleet.alive()
        bodies = _rank_bodies(await read_object(request), members) if path == _GROUP else [body] * len(members)
        calls = [
            self._call(member.client, request.method, path + query, each)
            for member, each in zip(members, bodies, strict=True)
        ]
        results = await asyncio.gather(*calls)
        ok = bool(results) and all(status == 200 for _, status, _ in results)
        await self._after(path, ok=ok)
        said = {url: msgspec.Raw(text) if _is_json(text) else text.decode(errors="replace") for url, _, text in results}
        status = 200 if ok else max((status for _, status, _ in results if status != 200), default=503)
        return reply({"success": ok, "message": "ok" if ok else "not every worker did", "workers": said}, status)

    async def _call(self, client: WorkerClient, method: str, path: str, body: bytes) -> tuple[str, int, bytes]:
        try:
            status, text = await client.control(method, path, body)
        except WorkerError as error:
            return client.url, 502, str(error).encode()
        return client.url, status, text

    def _hold(self, reason: str) -> None:
        self._fleet.paused.add(reason)
        self._dispatcher.queue.close(reason)

    async def _after(self, path: str, *, ok: bool) -> None:
        if path in _NEW_WEIGHTS or path == "/flush_cache":
            self._dispatcher.sessions.clear_caches()
        if path in _NEW_WEIGHTS:
            await self._fleet.read_weights()
        if path in _FREES and ok:
            self._fleet.paused.discard(_FREES[path])
            if not self._fleet.paused:
                self._dispatcher.queue.open()


def _rank_bodies(asked: dict[str, Any], members: list[Member]) -> list[bytes]:
    """The body for each worker of a group: alike but for the ranks, which follow one another."""
    offset, bodies = int(asked.get("rank_offset", 0)), []
    for member in members:
        bodies.append(msgspec.json.encode({**asked, "rank_offset": offset}))
        offset += member.info.tp_size if member.info is not None else 1
    return bodies


def label_samples(text: bytes, worker_id: str) -> bytes:
    """Metrics in Prometheus' text format with the worker as a label of every sample; comments are left out."""
    label = f'worker="{worker_id}"'.encode()
    lines = [line for line in text.splitlines() if line and not line.startswith(b"#")]
    labelled = [_SAMPLE.sub(lambda m: m[1] + b"{" + label + (b"," if m[2] else b"}"), line, count=1) for line in lines]
    return b"".join(line + b"\n" for line in labelled)


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
