"""A real router process over real workers, and what the tests ask of both."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from prorsa.cluster.effects import Action, Effect
from prorsa.cluster.live import LiveBackend
from prorsa.cluster.router.client import RouterClient
from prorsa.cluster.router.config import RouterConfig, WorkerSpec
from prorsa.cluster.sglang.bootstrap import SPELLINGS, spell_host
from prorsa.events import EffectResult, Role
from testbed.pool import Pool, Worker, free_ports

VOCAB = range(3, 259)
MARGIN = 1e-4
"""Smallest difference of the two best logits at which float32 batches of different shapes agree on the best."""


def prompt(seed: int, tokens: int) -> list[int]:
    source = random.Random(seed)
    return [source.choice(VOCAB) for _ in range(tokens)]


def fresh_name() -> str:
    """A bootstrap host that no decode worker remembers from before a flip."""
    return spell_host("127.0.0.1", random.randrange(SPELLINGS))


def greedy(ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more.pop("params", {})}
    return {"input_ids": ids, "sampling_params": params, **more}


@dataclass
class RunningRouter:
    """One router process; ``restart`` keeps its state file."""

    home: Path
    workers: list[Worker]
    options: dict[str, Any] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> "RunningRouter":
        self.port = self.port or free_ports(1)[0]
        specs = tuple(WorkerSpec(url=worker.url, worker_id=worker.name) for worker in self.workers)
        known = {"workers": specs, "state_file": str(self.home / "router.json"), "poll_s": 0.3, "handover_s": 8.0}
        config = RouterConfig(**{**known, "port": self.port, **self.options})
        path = self.home / "config.json"
        path.write_bytes(msgspec.json.encode(config))
        with (self.home / "router.log").open("ab") as log:
            command = [sys.executable, "-m", "prorsa.cluster.router", str(path)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0 and self._says_ready():
                    return
            time.sleep(0.05)
        raise TimeoutError(f"router not ready: {(self.home / 'router.log').read_text()[-2000:]}")

    def _says_ready(self) -> bool:
        import urllib.error
        import urllib.request

        try:
            with urllib.request.urlopen(self.url + "/ready", timeout=2):
                return True
        except (urllib.error.HTTPError, OSError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            return False

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(10)
            self.process = None

    def log(self) -> str:
        return (self.home / "router.log").read_text()


class Client:
    """A client of the router, as rollouts are."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str | None = None) -> None:
        self.session = session
        self.url = url
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        sent = {**self.headers, **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self.session.post(self.url + path, json=body, headers=sent) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if text else None

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path, headers=self.headers) as reply:
            return await reply.json()

    async def generate(self, body: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        status, answer = await self.post("/generate", body, **({"X-Session-ID": session} if session else {}))
        assert status == 200, answer
        return answer

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        async with self.session.post(self.url + path, json={**body, "stream": True}, headers=self.headers) as reply:
            assert reply.status == 200, await reply.text()
            chunks.extend([json.loads(line[6:]) async for line in reply.content if line.startswith(b"data: {")])
        return chunks

    async def row(self, worker_id: str) -> dict[str, Any]:
        rows = (await self.get("/prorsa/table"))["workers"]
        return next(row for row in rows if row["worker_id"] == worker_id)

    async def until(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 20.0) -> dict[str, Any]:
        """Wait until the router's table is as wished."""
        deadline = time.monotonic() + timeout_s
        while True:
            table: dict[str, Any] = await self.get("/prorsa/table")
            if holds(table):
                return table
            assert time.monotonic() < deadline, table
            await asyncio.sleep(0.05)

    async def running(self, worker_id: str, count: int = 1) -> None:
        """Wait until a worker decodes ``count`` of the router's requests."""
        await self.until(lambda table: _load(table, worker_id)["decoding"] >= count)
        await asyncio.sleep(0.3)


def _load(table: dict[str, Any], worker_id: str) -> dict[str, int]:
    return next(row["load"] for row in table["workers"] if row["worker_id"] == worker_id)


@dataclass
class Trajectory:
    """Turns of a trajectory: each prompt is the context so far and what a tool said."""

    key: str
    tools: list[list[int]]
    outputs: list[list[int]] = field(default_factory=list)
    slowest_s: float = 0.0
    cached: list[int] = field(default_factory=list)

    async def run(self, client: Client, tokens: int, *, logprobs: bool = False) -> float:
        """Run all turns; returns the smallest margin between the two best tokens, if it was asked for."""
        context: list[int] = []
        margin = float("inf")
        for tool in self.tools:
            context = [*context, *tool]
            answer = await self.turn(client, context, tokens, logprobs=logprobs)
            context += answer["output_ids"]
            for first, second in answer["meta_info"].get("output_top_logprobs", ()):
                margin = min(margin, first[0] - second[0])
        return margin

    async def turn(self, client: Client, context: list[int], tokens: int, *, logprobs: bool) -> dict[str, Any]:
        more = {"return_logprob": True, "top_logprobs_num": 2} if logprobs else {}
        began = time.monotonic()
        answer = await client.generate(greedy(context, tokens, **more), session=self.key)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.outputs.append(answer["output_ids"])
        self.cached.append(answer["meta_info"]["cached_tokens"])
        return answer


def tools_of(seed: int, turns: int = 4) -> list[list[int]]:
    return [prompt(100 * seed + turn, 60 if turn == 0 else 20) for turn in range(turns)]


ACTIONS: tuple[Action, ...] = ("fence", "drain", "settle", "switch", "warm", "admit")


class Flipper:
    """Does what the executor does: the effects of a flip, one after the other."""

    def __init__(self, client: Client, session: aiohttp.ClientSession) -> None:
        self.backend = LiveBackend(session, [RouterClient(session, client.url)])
        self._client = client

    async def step(
        self, action: Action, worker_id: str, role: Role, epoch: int, deadline_s: float = 15
    ) -> EffectResult:
        return await self.backend.perform(
            Effect(
                effect_id=f"{worker_id}@{epoch}/{action}",
                worker_id=worker_id,
                action=action,
                role=role,
                epoch=epoch,
                deadline_s=deadline_s,
            )
        )

    async def flip(self, worker_id: str, until: Action = "admit") -> float:
        """Flip a worker, all of it or up to an action; returns the seconds it took."""
        row = await self._client.row(worker_id)
        to_role: Role = "decode" if row["role"] == "prefill" else "prefill"
        began = time.monotonic()
        for action in ACTIONS:
            role = to_role if action in ("switch", "warm", "admit") else row["role"]
            result = await self.step(action, worker_id, role, row["epoch"] + 1)
            for _ in range(2 if action == "warm" else 0):
                # As the executor does: on a busy machine a KV transfer may stall once.
                result = result if result.ok else await self.step(action, worker_id, role, row["epoch"] + 1)
            assert result.ok, result
            if action == until:
                break
        return time.monotonic() - began


async def idle_within(worker: Worker, timeout_s: float) -> bool:
    """Whether a worker's scheduler has nothing left within a time. Its loads would tell up to 30 s late."""
    deadline = time.monotonic() + timeout_s
    other = "decode" if worker.live_role() == "prefill" else "prefill"
    body = {"new_role": other, "prepare_only": True, "decode_cuda_graph_memory_gb": 0}
    while time.monotonic() < deadline:
        try:
            await asyncio.to_thread(worker.post, "/pd_role_switch", body)
        except Exception:  # noqa: BLE001 - not idle is a status 400
            await asyncio.sleep(0.05)
        else:
            return True
    return False


def slow(pool: Pool, seconds: float | None, *names: str) -> None:
    for name in names:
        pool[name].post("/slow_down", {"forward_sleep_time": seconds})
