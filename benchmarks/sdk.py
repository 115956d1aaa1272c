"""What a call of the rollout SDK costs its caller: with a hub, with a hub that is away, and without one.

Calls are made in bursts, as rollout code makes them, with a pause after each, so that the publisher's thread does its
work beside them. The time is that of the calls alone; the fastest of several rounds, since others use the machine.

    python -m benchmarks.sdk [--json]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prorsa.bus.wire import Endpoints
from prorsa.rollout import Tracker, Trajectory

BURST = 200
ROUNDS = 15
START_TIMEOUT_S = 20.0
PAUSE_S = 0.05


def tool_block(trajectory: Trajectory) -> None:
    """Two events."""
    with trajectory.tool("bash", expected_s=4) as tool:
        tool.output_tokens = 310


def sampler_state(tracker: Tracker) -> None:
    """One event."""
    tracker.sampler(queued=40, in_flight=128, limit=128, mode="async")


def whole_trajectory(tracker: Tracker) -> None:
    """Ten events: sandbox, two tools, reward."""
    with tracker.trajectory(group_id=7, prompt_tokens=812, workload="coding") as trajectory:
        with trajectory.sandbox("swe", expected_s=20):
            pass
        for _ in range(2):
            tool_block(trajectory)
        with trajectory.reward():
            pass


def measure(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        for _ in range(BURST):
            call()
        best_s = min(best_s, time.perf_counter() - began_s)
        time.sleep(PAUSE_S)
    return best_s / BURST * 1e6


def measure_async(tracker: Tracker) -> float:
    """Microseconds of a tool block with ``async with``."""

    async def rounds() -> float:
        best_s = float("inf")
        trajectory = tracker.trajectory().start()
        for _ in range(ROUNDS):
            began_s = time.perf_counter()
            for _ in range(BURST):
                async with trajectory.tool("bash", expected_s=4) as tool:
                    tool.output_tokens = 310
            best_s = min(best_s, time.perf_counter() - began_s)
            await asyncio.sleep(PAUSE_S)
        return best_s / BURST * 1e6

    return asyncio.run(rounds())


def measure_all(tracker: Tracker) -> dict[str, float]:
    """Each kind of call, in microseconds."""
    trajectory = tracker.trajectory().start()
    return {
        "sampler state (1 event)": measure(lambda: sampler_state(tracker)),
        "tool block (2 events)": measure(lambda: tool_block(trajectory)),
        "tool block, async (2 events)": measure_async(tracker),
        "whole trajectory (10 events)": measure(lambda: whole_trajectory(tracker)),
    }


def measure_configured(folder: Path) -> dict[str, float]:
    """With a hub in a process of its own; raises if it did not get everything."""
    command = [sys.executable, "-m", "prorsa.bus.hub", "--run-dir", str(folder)]
    hub = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (folder / "endpoints.json").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        with Tracker(folder) as tracker:
            found = measure_all(tracker)
            if not tracker.flush(30) or tracker.stats().lost:
                raise SystemExit(f"not everything was journalled: {tracker.stats()}")
        return found
    finally:
        hub.terminate()
        hub.wait()


def measure_absent(folder: Path) -> dict[str, float]:
    """With an endpoint where nobody listens: events are held until the buffer is full, then dropped."""
    tracker = Tracker(Endpoints.ipc(folder).ingest)
    found = measure_all(tracker)
    tracker.close(0.0)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {"no hub": measure_all(Tracker(""))}
    with tempfile.TemporaryDirectory(prefix="prorsa-bench-") as folder:
        results["hub"] = measure_configured(Path(folder) / "run")
        results["hub away"] = measure_absent(Path(folder) / "away")
    if given.json:
        print(json.dumps({"sdk_us": results}))
        return 0
    print(f"{'µs a call':<30}" + "".join(f"{name:>10}" for name in results))
    for kind in results["hub"]:
        print(f"{kind:<30}" + "".join(f"{result[kind]:>10.1f}" for result in results.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
