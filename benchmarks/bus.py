"""Events per second through the bus: a publisher, a hub with its journal, and a subscriber, each in its own process.

    python benchmarks/bus.py                        # flat out, then at 25,000 events/s
    python benchmarks/bus.py --rate 30000 --seconds 20 --json
    python benchmarks/bus.py --keys                 # encrypted, over TCP

The subscriber checks that it gets every ``hub_seq`` once and in order; at the end the journal is read and checked too.
"""

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.synchronize
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prorsa import events
from prorsa.bus.commands import CommandClient
from prorsa.bus.hub import JOURNAL_DIR, run_hub
from prorsa.bus.journal import JournalReader
from prorsa.bus.keys import HubKeys, Keys, make_keys
from prorsa.bus.publisher import Publisher
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints, HubStatus

PACE_S = 0.005
START_TIMEOUT_S = 20.0


def turn_events(turn: int) -> tuple[events.Event, ...]:
    """The events of one turn of a trajectory, as router, plugin and SDK send them."""
    trajectory, request = f"trajectory-{turn % 512:05d}", f"request-{turn:08d}"
    rid = events.make_rid(request, 0)
    return (
        events.LlmSubmit(
            trajectory_id=trajectory, request_id=request, attempt=0, turn=turn, prompt_tokens=41_000, new_tokens=800
        ),
        events.LlmAdmitted(rid=rid, worker_id="worker-3", kv_tokens=41_000),
        events.LlmPrefillStart(rid=rid, worker_id="worker-1"),
        events.LlmPrefillEnd(rid=rid, worker_id="worker-1", cached_tokens=40_200, computed_tokens=800),
        events.LlmFirstToken(rid=rid, worker_id="worker-3"),
        events.LlmEnd(trajectory_id=trajectory, request_id=request, attempt=0, output_tokens=220, finish_reason="stop"),
        events.ToolStart(trajectory_id=trajectory, tool_name="bash"),
        events.ToolEnd(trajectory_id=trajectory, tool_name="bash", status="ok", output_tokens=310),
    )


def publish(endpoint: str, keys: Keys | None, rate: float | None, seconds: float, report: Connection) -> None:
    """The publisher's process: events at ``rate`` a second for ``seconds``, or as fast as it can."""
    sent, turn, offered_s = 0, 0, 0.0
    with Publisher(endpoint, "bench", keys=keys) as publisher:
        began_s = time.monotonic()
        while (offered_s := time.monotonic() - began_s) < seconds:
            due = sent + 2000 if rate is None else int(offered_s * rate)
            while sent < due:
                for event in turn_events(turn):
                    publisher.publish(event)
                    sent += 1
                turn += 1
            # Flat out means as fast as the hub takes events, with the buffer never full.
            while rate is None and publisher.stats().held > 40_000:
                time.sleep(PACE_S)
            time.sleep(PACE_S if rate is not None else 0)
        publisher.publish(events.RunEnd(status="completed"))
        sent += 1
        flushed = publisher.flush(60.0)
        stats = publisher.stats()
        report.send(
            {"sent": sent, "offered_s": offered_s, "flushed": flushed, "lost": stats.lost, "resent": stats.resent}
            | {"acknowledged_s": time.monotonic() - began_s, "cpu_s": cpu_s()}
        )


def subscribe(
    endpoints: Endpoints, keys: Keys | None, ready: multiprocessing.synchronize.Event, report: Connection
) -> None:
    """The subscriber's process: reads until the run's end."""
    report.send(asyncio.run(_subscribe(endpoints, keys, ready)))


async def _subscribe(
    endpoints: Endpoints, keys: Keys | None, ready: multiprocessing.synchronize.Event
) -> dict[str, Any]:
    seen, holes = 0, 0
    latencies_ms: list[float] = []
    async with Subscriber(endpoints, after_seq=0, keys=keys) as subscriber:
        ready.set()
        async for stamped in subscriber:
            holes += stamped.hub_seq != seen + 1
            seen = stamped.hub_seq
            if seen % 1000 == 0:
                latencies_ms.append((time.time_ns() - stamped.ts_ns) / 1e6)
            if isinstance(stamped.event, events.RunEnd):
                break
        link = subscriber.link
    half = sorted(latencies_ms)[len(latencies_ms) // 2] if latencies_ms else None
    counts = {"seen": seen, "holes": holes, "gaps": link.gaps, "repaired": link.repaired}
    return counts | {"latency_p50_ms": half, "cpu_s": cpu_s()}


def serve(run_dir: Path, keys_dir: Path | None, report: Connection) -> None:
    """The hub's process."""
    if keys_dir is None:
        run_hub(run_dir, run_id="bench")
    else:
        loopback = Endpoints(*["tcp://127.0.0.1:*"] * 3)
        run_hub(run_dir, run_id="bench", endpoints=loopback, keys=HubKeys.load(keys_dir))
    report.send({"cpu_s": cpu_s()})


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(rate: float | None, seconds: float, *, keyed: bool) -> dict[str, Any]:
    """One run of the three processes; ``rate`` None is flat out."""
    with tempfile.TemporaryDirectory(prefix="prorsa-bench-") as folder:
        keys_dir = Path(folder) / "keys" if keyed else None
        if keys_dir is not None:
            make_keys(keys_dir)
        return _measure(Path(folder) / "run", keys_dir, rate, seconds)


def _measure(run_dir: Path, keys_dir: Path | None, rate: float | None, seconds: float) -> dict[str, Any]:
    publisher_keys = None if keys_dir is None else Keys.load(keys_dir / "publisher.key")
    viewer_keys = None if keys_dir is None else Keys.load(keys_dir / "viewer.key")
    spawn = multiprocessing.get_context("spawn")
    hub_end, hub_far = spawn.Pipe()
    hub = spawn.Process(target=serve, args=(run_dir, keys_dir, hub_far))
    hub.start()
    endpoints = _wait_for(run_dir)
    ready = spawn.Event()
    sub_end, sub_far = spawn.Pipe()
    subscriber = spawn.Process(target=subscribe, args=(endpoints, viewer_keys, ready, sub_far))
    subscriber.start()
    ready.wait(START_TIMEOUT_S)
    pub_end, pub_far = spawn.Pipe()
    began_s = time.monotonic()
    publisher = spawn.Process(target=publish, args=(endpoints.ingest, publisher_keys, rate, seconds, pub_far))
    publisher.start()
    published = pub_end.recv()
    status = asyncio.run(_status(endpoints, viewer_keys))
    subscribed = sub_end.recv()
    hub.terminate()
    served = hub_end.recv()
    for process in (publisher, subscriber, hub):
        process.join()
    with JournalReader(run_dir / JOURNAL_DIR, strict=True) as reader:
        journalled = [row.hub_seq for row in reader.rows()]
    whole = journalled == list(range(1, published["sent"] + 1))
    return {
        "rate": rate,
        "events": published["sent"],
        "events_per_s": published["sent"] / published["acknowledged_s"],
        "seconds": published["acknowledged_s"],
        "gaps": subscribed["holes"] + (not whole) + status.counters.gaps + published["lost"],
        "replays": subscribed["repaired"],
        "latency_p50_ms": subscribed["latency_p50_ms"],
        "cpu_s": {name: part["cpu_s"] for name, part in _parts(published, served, subscribed)},
        "wall_s": time.monotonic() - began_s,
    }


def _parts(published: dict[str, Any], served: dict[str, Any], subscribed: dict[str, Any]) -> list[Any]:
    return [("publisher", published), ("hub", served), ("subscriber", subscribed)]


def _wait_for(run_dir: Path) -> Endpoints:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not (run_dir / "endpoints.json").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return Endpoints.load(run_dir)


async def _status(endpoints: Endpoints, keys: Keys | None) -> HubStatus:
    async with CommandClient(endpoints, keys) as client:
        return await client.status()


def _print_table(runs: list[dict[str, Any]]) -> None:
    print(
        f"{'rate':>10} {'events':>9} {'events/s':>9} {'gaps':>5} {'replays':>8} {'p50 ms':>7}  CPU s: pub   hub   sub"
    )
    for run in runs:
        rate = "flat out" if run["rate"] is None else f"{run['rate']:.0f}"
        latency = "-" if run["latency_p50_ms"] is None else f"{run['latency_p50_ms']:.1f}"
        cpu = "".join(f"{run['cpu_s'][name]:6.1f}" for name in ("publisher", "hub", "subscriber"))
        print(
            f"{rate:>10} {run['events']:>9} {run['events_per_s']:>9.0f} {run['gaps']:>5} {run['replays']:>8}"
            f" {latency:>7}       {cpu}"
        )


def main() -> int:
    """Measure and print; exit code 1 if an event was missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=25_000, help="events a second of the steady run")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keys", action="store_true", help="with CURVE keys over TCP instead of Unix sockets")
    given = parser.parse_args()
    runs = [measure(rate, given.seconds, keyed=given.keys) for rate in (None, given.rate)]
    if given.json:
        print(json.dumps({"bus": runs}))
    else:
        _print_table(runs)
    return int(any(run["gaps"] for run in runs))


if __name__ == "__main__":
    sys.exit(main())
