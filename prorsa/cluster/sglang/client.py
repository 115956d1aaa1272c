"""A client of one SGLang worker: every call has a time-out, every reply is checked, every failure says what to do."""

import asyncio
import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import aiohttp
import msgspec

from prorsa.cluster.sglang.replies import (
    CHECKED_VERSION,
    HiCacheStatus,
    Loads,
    ModelInfo,
    ServerInfo,
    SwitchReply,
    Text,
    Tokens,
    decode_reply,
)
from prorsa.errors import WorkerError
from prorsa.events import Role

INFO_TTL_S: Final = 10.0
"""``/server_info`` stops the scheduler for a round trip: it is asked for no more often than this."""
IDLE_POLL_S: Final = 0.05
"""Pause between two looks of the idle barrier."""

PauseMode = Literal["abort", "retract", "in_place"]


def session_for_workers() -> aiohttp.ClientSession:
    """An HTTP session fit for workers.

    Idle connections are dropped before SGLang's HTTP server drops them (5 s), so that no request is lost to a
    connection that the other side has just closed. There is no limit on connections: the router's queue is the limit.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0, ttl_dns_cache=60)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0))


class WorkerClient:
    """Calls of one worker.

    Args:
        session: shared by all clients of a process; see :func:`session_for_workers`.
        url: where the worker listens, as in ``http://10.0.0.7:30000``.
        api_key: for generation, where the worker was launched with ``--api-key``.
        admin_key: for control calls, where it was launched with ``--admin-api-key``; else ``api_key`` is used.
        timeout_s: limit of an ordinary call.

    Every method raises :class:`prorsa.errors.WorkerError` if the worker does not answer or answers something unknown.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        api_key: str | None = None,
        admin_key: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self.session = session
        self.url = url.rstrip("/")
        self.headers = _bearer(api_key)
        self._admin_headers = _bearer(admin_key or api_key)
        self._timeout_s = timeout_s
        self._info: ServerInfo | None = None
        self._info_at = 0.0
        self._info_lock = asyncio.Lock()

    async def info(self, *, fresh: bool = False) -> ServerInfo:
        """Identity, launch role and capacities; kept for 10 s unless ``fresh``."""
        async with self._info_lock:
            if fresh or self._info is None or time.monotonic() - self._info_at > INFO_TTL_S:
                self._info = decode_reply(await self._ask("GET", "/server_info"), ServerInfo, self._at("/server_info"))
                self._info_at = time.monotonic()
            return self._info

    async def clock_s(self) -> float | None:
        """The worker's wall clock, in seconds since the epoch and whole ones only; None if it does not tell."""
        try:
            async with self.session.get(
                self.url + "/ready", timeout=aiohttp.ClientTimeout(total=self._timeout_s)
            ) as reply:
                date = reply.headers.get("Date")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerError(f"{self._at('/ready')} does not answer: {_word(error)}") from error
        return None if date is None else parsedate_to_datetime(date).timestamp()

    async def model(self) -> ModelInfo:
        """The live role and the weight version."""
        return decode_reply(await self._ask("GET", "/model_info"), ModelInfo, self._at("/model_info"))

    async def loads(self) -> Loads:
        """Queues, KV and counters, from shared memory: cheap enough for several times a second."""
        path = "/v1/loads?include=core,disagg,queues"
        loads = decode_reply(await self._ask("GET", path), Loads, self._at("/v1/loads"))
        if not loads.loads:
            raise WorkerError(f"{self._at('/v1/loads')} lists no rank; run SGLang {CHECKED_VERSION}")
        return loads

    async def ready(self) -> bool:
        """Whether the worker takes requests; unlike ``/health`` it runs nothing."""
        try:
            await self._ask("GET", "/ready")
        except WorkerError:
            return False
        return True

    async def switch_role(
        self, role: Role, *, graph_memory_gb: float | None = None, prepare_only: bool = False, timeout_s: float = 30.0
    ) -> SwitchReply:
        """Change the role, or with ``prepare_only`` ask whether it could be changed now; a refusal is a reply."""
        body: dict[str, Any] = {"new_role": role, "prepare_only": prepare_only}
        if role == "decode" and graph_memory_gb is not None:
            body["decode_cuda_graph_memory_gb"] = graph_memory_gb
        reply = await self._ask("POST", "/pd_role_switch", body, timeout_s=timeout_s, accept=(200, 400))
        return decode_reply(reply, SwitchReply, self._at("/pd_role_switch"))

    async def wait_idle(self, to_role: Role, deadline_s: float, *, graph_memory_gb: float | None = None) -> SwitchReply:
        """The idle barrier before a switch to ``to_role``: the scheduler's own word that nothing is left.

        It asks for a switch that is only prepared, because that looks at every queue and, unlike ``/flush_cache``,
        leaves the prefix tree alone. Returns the last reply; it is not a success if the deadline has passed.
        """
        end = time.monotonic() + deadline_s
        while True:
            reply = await self.switch_role(to_role, graph_memory_gb=graph_memory_gb, prepare_only=True)
            if not reply.not_idle or time.monotonic() >= end:
                return reply
            await asyncio.sleep(IDLE_POLL_S)

    async def probe(self, rid: str, bootstrap_host: str, *, timeout_s: float) -> None:
        """Have the engine make one token without a peer; raises if it does not, as when it is paused."""
        body = {
            "rid": rid,
            "input_ids": [0],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "bootstrap_host": bootstrap_host,
            "bootstrap_room": 0,
            "log_metrics": False,
        }
        await self._ask("POST", "/generate", body, timeout_s=timeout_s)

    async def abort(self, rid: str) -> None:
        """Abort one request by its exact id; unknown ids are ignored by the worker."""
        await self._ask("POST", "/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """Abort every request of the worker, whoever sent it."""
        await self._ask("POST", "/abort_request", {"rid": "", "abort_all": True})

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        """Drop the prefix cache once the worker is idle; raises if it is not within ``timeout_s``."""
        await self._ask("POST", f"/flush_cache?timeout={timeout_s:g}", {}, timeout_s=timeout_s + self._timeout_s)

    async def pause(self, mode: PauseMode = "abort") -> None:
        """Stop generating. A worker paused with ``retract`` must not change its role: its requests would be lost."""
        await self._ask("POST", "/pause_generation", {"mode": mode}, timeout_s=60.0)

    async def resume(self) -> None:
        """Generate again after :meth:`pause`."""
        await self._ask("POST", "/continue_generation", {}, timeout_s=60.0)

    async def hicache(self) -> HiCacheStatus:
        """The attached L3 store; needs the admin key."""
        path = "/hicache/storage-backend"
        return decode_reply(await self._ask("GET", path), HiCacheStatus, self._at(path))

    async def detach_hicache(self) -> HiCacheStatus:
        """Detach the L3 store of an idle worker and return what was attached, for :meth:`attach_hicache`."""
        status = await self.hicache()
        if status.hicache_storage_backend is not None:
            await self._ask("DELETE", "/hicache/storage-backend", timeout_s=30.0)
        return status

    async def attach_hicache(self, status: HiCacheStatus) -> None:
        """Attach an L3 store again; nothing to do if none was attached."""
        if status.hicache_storage_backend is None:
            return
        body = {
            "hicache_storage_backend": status.hicache_storage_backend,
            "hicache_storage_backend_extra_config_json": status.hicache_storage_backend_extra_config,
            "hicache_storage_prefetch_policy": status.hicache_storage_prefetch_policy,
            "hicache_write_policy": status.hicache_write_policy,
        }
        await self._ask("PUT", "/hicache/storage-backend", body, timeout_s=30.0)

    async def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a text prompt, as ``/generate`` would make them."""
        reply = await self._ask("POST", "/tokenize", {"prompt": prompt})
        return decode_reply(reply, Tokens, self._at("/tokenize")).tokens

    async def detokenize(self, tokens: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        body = {"tokens": tokens, "skip_special_tokens": skip_special_tokens}
        return decode_reply(await self._ask("POST", "/detokenize", body), Text, self._at("/detokenize")).text

    async def control(self, method: str, path: str, body: bytes, *, timeout_s: float = 600.0) -> tuple[int, bytes]:
        """Pass on a control call as it is; returns status and body, whatever they are."""
        headers = {**self._admin_headers, "Content-Type": "application/json"}
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=2.0)
        try:
            async with self.session.request(
                method, self.url + path, data=body or None, headers=headers, timeout=limit
            ) as reply:
                return reply.status, await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WorkerError(f"{self._at(path)} does not answer: {_word(error)}") from error

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        accept: tuple[int, ...] = (200,),
    ) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        status, reply = await self.control(method, path, data, timeout_s=timeout_s or self._timeout_s)
        if status in accept:
            return reply
        raise WorkerError(_refusal(self._at(path), status, reply), status=status)

    def _at(self, path: str) -> str:
        return f"{self.url}{path.partition('?')[0]}"


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _refusal(where: str, status: int, reply: bytes) -> str:
    if status == 404:
        return f"{where}: not known to this worker; Prorsa needs SGLang {CHECKED_VERSION}, see --version there"
    if status in (401, 403):
        return f"{where}: not allowed; give Prorsa the worker's admin key (--admin-api-key of the worker)"
    return f"{where}: HTTP {status}: {error_text(reply)}"


def error_text(reply: bytes) -> str:
    """The message in an error reply of SGLang, whichever of its forms it has, cut to 300 characters."""
    text = reply.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text[:300] or "no detail given"
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return str(found)[:300]


def _word(error: BaseException) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
