"""What the plugin costs an SGLang worker: the same requests with and without it, in turns on the CPU test bed.

    make sglang-env && python -m benchmarks.plugin [--blocks 10] [--requests 160] [--json]

Two pairs of workers stand side by side, one with the plugin publishing to a real hub, one without. Blocks of requests
go to them in turns, so that whatever else the machine does meets both. Beside requests a second, the CPU time of the
workers' processes for each request is given, and the time that the hooks alone take.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from prorsa.bus.publisher import Publisher
from prorsa.cluster.plugin.lifecycle import Lifecycle
from testbed.client import generate
from testbed.hub import RunningHub
from testbed.pool import Pool, Worker
from tests.plugin.scheduling import Req, admitted, batch

CLIENTS = 16
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 32
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(worker: Worker) -> float:
    """CPU seconds that the worker's process group has used so far."""
    used = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # the process has ended meanwhile
            continue
        if int(fields[2]) == worker.pid:
            used += int(fields[11]) + int(fields[12])
    return used / TICKS_PER_S


def block(prefill: Worker, decode: Worker, requests: int, seed: int) -> tuple[float, float]:
    """Requests a second, and CPU milliseconds a request, of one closed-loop block."""
    source = random.Random(seed)
    prompts = [[source.randrange(3, 259) for _ in range(PROMPT_TOKENS)] for _ in range(requests)]
    cpu_before = cpu_s(prefill) + cpu_s(decode)
    began_s = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for job in [clients.submit(generate, prefill, decode, prompt, OUTPUT_TOKENS) for prompt in prompts]:
            job.result()
    elapsed_s = time.monotonic() - began_s
    return requests / elapsed_s, 1e3 * (cpu_s(prefill) + cpu_s(decode) - cpu_before) / requests


def hook_cost_us() -> dict[str, float]:
    """Microseconds that the hooks take of the scheduler's thread: in a request's life, and in a decode step of 64.

    The best of many repeats, which other load cannot make better; the publisher's buffer is real, its hub is not there.
    """
    with Publisher("ipc:///nobody/listens", "bench") as publisher:
        lifecycle = Lifecycle(publisher.publish)
        lifecycle.identify("worker", None)
        lifecycle.role = "decode"
        running = [Req(f"{number:032x}.00", [1] * 1000, [1]) for number in range(64)]
        step = batch("decode", *running)
        for req in running:
            lifecycle.queued(None, req)

        def life() -> None:
            req = Req("f" * 32 + ".00", [1] * 1000)
            lifecycle.queued(None, req)
            lifecycle.admitted(admitted(req), None)
            req.output_ids.append(1)
            lifecycle.output(None, None, [req])
            req.finish()
            lifecycle.output(None, None, [req])

        def decode_step() -> None:
            lifecycle.batch_starts(None, step)
            lifecycle.output(None, None, running)
            lifecycle.batch_done(None, None, step, None)

        return {
            "request": round(min(timeit.repeat(life, number=20, repeat=200)) / 20 * 1e6, 2),
            "decode_step_of_64": round(min(timeit.repeat(decode_step, number=20, repeat=200)) / 20 * 1e6, 2),
        }


def interval(ratios: list[float]) -> list[float]:
    """A 95 % interval of the mean ratio, by the normal approximation."""
    half = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return [round(statistics.mean(ratios) - half, 4), round(statistics.mean(ratios) + half, 4)]


def measure(blocks: int, requests: int) -> dict[str, Any]:
    """Run ``blocks`` pairs of blocks; medians, and the mean ratio of each pair of blocks with its interval."""
    seen: dict[str, list[tuple[float, float]]] = {"plugin": [], "stock": []}
    with tempfile.TemporaryDirectory() as folder, RunningHub(Path(folder)) as hub:
        with Pool(["prefill", "decode"], hub=hub.ingest, run_id=hub.run_id) as pool:
            off = {"PRORSA_HUB": ""}
            pairs = {
                "plugin": tuple(pool.workers),
                "stock": (pool.add("prefill", env=off), pool.add("decode", env=off)),
            }
            for pair in pairs.values():
                block(*pair, requests, 0)
            for number in range(blocks):
                for name in ("plugin", "stock") if number % 2 else ("stock", "plugin"):
                    seen[name].append(block(*pairs[name], requests, 1 + number))
        events = len(hub.read())
    rates = [a[0] / b[0] for a, b in zip(seen["plugin"], seen["stock"], strict=True)]
    costs = [a[1] / b[1] for a, b in zip(seen["plugin"], seen["stock"], strict=True)]
    return {
        "requests_per_s": {name: round(statistics.median(r for r, _ in rows), 1) for name, rows in seen.items()},
        "cpu_ms_per_request": {name: round(statistics.median(c for _, c in rows), 2) for name, rows in seen.items()},
        "requests_per_s_ratio": {"mean": round(statistics.mean(rates), 4), "interval_95": interval(rates)},
        "cpu_ratio": {"mean": round(statistics.mean(costs), 4), "interval_95": interval(costs)},
        "hook_us": hook_cost_us(),
        "blocks": blocks,
        "requests_per_block": requests,
        "events": events,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is the result's
    result = measure(arguments.blocks, arguments.requests)
    if arguments.json:
        json.dump(result, sys.stdout)
        return
    for name, value in result.items():
        print(f"{name:>22}  {value}")


if __name__ == "__main__":
    main()
