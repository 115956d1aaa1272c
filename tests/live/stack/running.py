"""`prorsa serve` and its pool as processes, and a rollout that runs through them."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from prorsa.bus.journal import JournalReader
from prorsa.bus.keys import make_keys
from prorsa.bus.wire import Endpoints
from prorsa.events import Stamped
from prorsa.rollout import Tracker
from prorsa.serve.rundir import RunDir
from testbed.pool import Pool, Role, free_ports
from tests.live.router.running import MARGIN, Client, Trajectory, tools_of

_CONFIG = """
[run]
dir = "{run_dir}"

{more}

[control]
policy = "{policy}"
{control_more}
decide_s = 2.0
dwell_s = 3.0
stale_s = 10.0

[workers]
graph_memory_gb = 0.0
cache_kept = true

[[router]]
port = {port}
poll_s = 0.3
handover_s = 8.0
publish_loads = false
{router_more}
"""
_ENV = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "6"}


class Stack:
    """Serves four workers; ``A`` and ``D`` begin as prefill. With ``keys``, the bus and the router ask who is there."""

    def __init__(
        self, home: Path, policy: str = "static:2:2", *, keys: bool = False, profile: Path | None = None
    ) -> None:
        self.home = home
        self.run = RunDir(home / "run")
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.token: str | None = None
        self.keys: Path | None = None
        self._policy = policy
        self._profile = profile
        if keys:
            self.keys, self.token = home / "keys", "let-me-in"
            make_keys(self.keys)
            (home / "token").write_text(self.token + "\n")

    def __enter__(self) -> Self:
        config = self.home / "prorsa.toml"
        more, router_more = "", ""
        control_more = f'profile = "{self._profile}"' if self._profile else ""
        if self.keys:
            sockets = free_ports(3)
            names = zip(("ingest", "fanout", "control"), sockets, strict=True)
            more = "[hub]\n" + "\n".join(f'{name} = "tcp://127.0.0.1:{port}"' for name, port in names)
            more += f'\nkeys = "{self.keys}"'
            router_more = f'token_file = "{self.home / "token"}"'
        config.write_text(
            _CONFIG.format(
                run_dir=self.run.path,
                policy=self._policy,
                port=self.port,
                more=more,
                control_more=control_more,
                router_more=router_more,
            )
        )
        with (self.home / "serve.log").open("wb") as log:
            command = [sys.executable, "-m", "prorsa", "serve", "--config", str(config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait((self.run.path / "endpoints.json").exists)
        self.endpoints = Endpoints.load(self.run.path)
        roles: Sequence[Role] = ["prefill", "decode", "decode", "prefill"]
        bed = self.home / "bed"
        bed.mkdir()
        try:
            env = {**_ENV, **({"PRORSA_KEYS": str(self.keys / "publisher.key")} if self.keys else {})}
            self.pool = Pool(roles, hub=self.endpoints.ingest, run_id=self.run.run_id, env=env, home=bed)
        except BaseException:
            self._stop_serving()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.stop()
        self._stop_serving()

    def _stop_serving(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    async def register(self, client: Client) -> None:
        """Register the workers as a rollout framework does, and wait until the controller serves them all."""
        for worker in self.pool.workers:
            body = {"url": worker.url, "worker_type": worker.role, "worker_id": worker.name}
            status, answer = await client.post("/workers", body)
            assert status < 300, answer
        await self.until(lambda: len(self.status()["workers"]) == len(self.pool.workers))

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        keys = ["--keys", str(self.keys / "operator.key")] if self.keys else []
        command = [sys.executable, "-m", "prorsa", *arguments, "--connect", str(self.run.path), *keys]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def status(self) -> dict[str, Any]:
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def roles(self) -> dict[str, str]:
        """The roles of the serving workers, as Prorsa reports them."""
        return {row["worker_id"]: row["role"] for row in self.status()["workers"] if row["state"] == "serving"}

    def kill(self, name: str) -> None:
        """SIGKILL one of the run's processes; the supervisor starts it again."""
        os.kill(int(self.run.pid_file(name).read_text()), signal.SIGKILL)

    def events(self, *types: str) -> list[Stamped]:
        with JournalReader(self.run.journal) as journal:
            return list(journal.read(types=types or None))

    def wait(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not _true(holds):
            assert self.process.poll() is None, (self.home / "serve.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.home / "serve.log").read_text()[-3000:]
            time.sleep(0.1)

    async def until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        await asyncio.to_thread(self.wait, holds, timeout_s)


def _true(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except (AssertionError, OSError):
        return False


def replay(stack: Stack) -> dict[str, int]:
    """What ``prorsa replay`` says of the run's journal."""
    command = [sys.executable, "-m", "prorsa", "replay", str(stack.run.journal), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome: dict[str, int] = json.loads(done.stdout)
    return outcome


async def references(client: Client, tokens: int, count: int) -> dict[int, list[list[int]]]:
    """Outputs of undisturbed trajectories, of those whose greedy choice is clear at every token."""
    known: dict[int, list[list[int]]] = {}
    for seed in range(5 * count):
        undisturbed = Trajectory(f"reference-{seed}", tools_of(seed))
        if await undisturbed.run(client, tokens, logprobs=True) >= MARGIN:
            known[seed] = undisturbed.outputs
        if len(known) == count:
            return known
    raise AssertionError("too few prompts with clear margins")


async def roll_out(
    client: Client,
    tracker: Tracker,
    known: dict[int, list[list[int]]],
    tokens: int,
    going: Callable[[], bool],
    *,
    concurrency: int,
) -> list[tuple[int, Trajectory]]:
    """A closed loop of tracked trajectories until ``going`` says no more; returns those that have ended."""
    ended: list[tuple[int, Trajectory]] = []

    async def one(lane: int) -> None:
        source = random.Random(lane)
        while going():
            tracker.sampler(queued=100 - len(ended), in_flight=concurrency, limit=concurrency, mode="async")
            seed = source.choice(list(known))
            async with tracker.trajectory(workload="test", prompt_tokens=60) as tracked:
                trajectory = Trajectory(tracked.session_key, tools_of(seed))
                async with tracked.sandbox(image="python", expected_s=0.1):
                    await asyncio.sleep(0.1)
                context: list[int] = []
                for index, said in enumerate(trajectory.tools):
                    if index:
                        async with tracked.tool("search"):
                            await asyncio.sleep(0.05)
                    context = [*context, *said]
                    answer = await trajectory.turn(client, context, tokens, logprobs=False)
                    context += answer["output_ids"]
                async with tracked.reward():
                    await asyncio.sleep(0.01)
            ended.append((seed, trajectory))

    async with asyncio.TaskGroup() as group:
        for lane in range(concurrency):
            group.create_task(one(lane))
    return ended


async def client_of(stack: Stack, http: aiohttp.ClientSession) -> Client:
    """A client of the router, once that listens, with all workers registered."""
    client = Client(http, stack.url, stack.token)

    def listens() -> bool:
        import socket

        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", stack.port)) == 0

    await stack.until(listens)
    await stack.register(client)
    return client
