"""Requests per second through the router against the same pairs asked directly, in the same run.

    python -m benchmarks.router                     # two pairs of CPU workers (make sglang-env), 16 clients
    python -m benchmarks.router --rounds 5 --seconds 10 --tokens 8 --json

Rounds alternate between both ways, so that what else the machine does falls on both.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from prorsa.cluster.router.config import RouterConfig, WorkerSpec
from testbed.pool import Pool, Worker, free_ports

Ask = Callable[[aiohttp.ClientSession, int], Awaitable[None]]
PROMPT_TOKENS = 64


def body(tokens: int) -> dict[str, Any]:
    """One request with a prompt that no cache holds."""
    ids = [random.randrange(3, 259) for _ in range(PROMPT_TOKENS)]
    return {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


async def _post(session: aiohttp.ClientSession, url: str, sent: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    async with session.post(url + "/generate", data=msgspec.json.encode(sent), headers=headers) as reply:
        raw = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{url}: HTTP {reply.status}: {raw[:300]!r}")
        return msgspec.json.decode(raw, type=dict[str, Any])


def direct(pairs: list[tuple[Worker, Worker]], tokens: int) -> Ask:
    """Asks pairs in turn, as the simplest client would: both legs at once."""

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        prefill, decode = pairs[number % len(pairs)]
        sent = {**body(tokens), "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port}
        sent["bootstrap_room"] = random.randrange(1, 2**63)
        await asyncio.gather(_post(session, prefill.url, sent), _post(session, decode.url, sent))

    return ask


def routed(url: str, tokens: int) -> Ask:
    """Asks the router."""

    async def ask(session: aiohttp.ClientSession, _: int) -> None:
        await _post(session, url, body(tokens))

    return ask


async def load(ask: Ask, clients: int, seconds: float) -> dict[str, float]:
    """A closed loop of clients; requests a second and latencies in milliseconds."""
    latencies: list[float] = []
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client(number: int) -> None:
            while time.monotonic() < end:
                began = time.monotonic()
                await ask(session, number)
                latencies.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(client(number) for number in range(clients)))
        elapsed = time.monotonic() - began
    cuts = statistics.quantiles(latencies, n=20)
    return {"requests_per_s": len(latencies) / elapsed, "p50_ms": cuts[9] * 1e3, "p95_ms": cuts[18] * 1e3}


class Router:
    """A router process over workers."""

    def __init__(self, workers: list[Worker], home: Path) -> None:
        self.port = free_ports(1)[0]
        specs = tuple(WorkerSpec(url=worker.url, worker_id=worker.name) for worker in workers)
        config = RouterConfig(port=self.port, workers=specs, state_file=str(home / "router.json"))
        (home / "config.json").write_bytes(msgspec.json.encode(config))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prorsa.cluster.router", str(home / "config.json")], stderr=subprocess.DEVNULL
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def wait_ready(self) -> None:
        """Wait until every pair is proven."""
        async with aiohttp.ClientSession() as session:
            for _ in range(200):
                try:
                    async with session.get(self.url + "/prorsa/table") as reply:
                        if len((await reply.json())["pairs"]) == 4:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        raise TimeoutError("the router's pairs were not proven within 20 s")

    def cpu_s(self) -> float:
        """CPU time it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)


async def measure(arguments: argparse.Namespace, pool: Pool, home: Path) -> dict[str, Any]:
    """All rounds."""
    by_name = {worker.name: worker for worker in pool.workers}
    pairs = [(by_name["A"], by_name["B"]), (by_name["D"], by_name["C"])]
    router = Router(pool.workers, home)
    try:
        await router.wait_ready()
        ways = {"direct": direct(pairs, arguments.tokens), "router": routed(router.url, arguments.tokens)}
        for ask in ways.values():
            await load(ask, arguments.clients, 2.0)
        rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        requests, cpu_s = 0.0, 0.0
        for number in range(arguments.rounds):
            for way in sorted(ways, reverse=bool(number % 2)):
                used = router.cpu_s()
                found = await load(ways[way], arguments.clients, arguments.seconds)
                rounds[way].append(found)
                if way == "router":
                    requests += found["requests_per_s"] * arguments.seconds
                    cpu_s += router.cpu_s() - used
    finally:
        router.stop()
    ratios = [
        r["requests_per_s"] / d["requests_per_s"] for r, d in zip(rounds["router"], rounds["direct"], strict=True)
    ]
    medians = {
        way: {key: statistics.median(each[key] for each in found) for key in found[0]} for way, found in rounds.items()
    }
    return {
        **medians,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "router_cpu_ms_per_request": 1e3 * cpu_s / requests,
        "clients": arguments.clients,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
    }


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, Pool(["prefill", "decode", "decode", "prefill"]) as pool:
        found = asyncio.run(measure(arguments, pool, Path(home)))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for way in ("direct", "router"):
        rate, p50, p95 = found[way].values()
        print(f"{way:7} {rate:7.1f} requests/s   p50 {p50:6.0f} ms   p95 {p95:6.0f} ms")
    ratio = found["ratio"]
    print(f"router / direct: {ratio['median']:.2f} (rounds {ratio['min']:.2f} to {ratio['max']:.2f})")
    print(f"router CPU: {found['router_cpu_ms_per_request']:.2f} ms a request")


if __name__ == "__main__":
    main()
