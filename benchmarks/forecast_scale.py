"""Speed of the forecast on one core: events a second, the cost of a tick by live trajectories, memory over a run.

    python benchmarks/forecast_scale.py [--json] [--quick]

Events are those of made-up rollouts, decoded before the clock starts. Times are CPU time, the best of several runs: on
a shared machine the others are what the neighbours do. The first run after a change compiles (some seconds), outside
of what is timed. Memory is the resident set of this process while the same small rollout is fed over and over under new
names; ``--quick`` feeds a twentieth of the events.
"""

import argparse
import heapq
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from prorsa import events as ev
from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.forecast.predictor import Predictor

LIVE: Final = (512, 10_000, 100_000)
TARGET_TICK_MS: Final = {512: 1.0, 10_000: 10.0, 100_000: 100.0}
TARGET_EVENTS_PER_S: Final = 50_000.0
MEMORY_EVENTS: Final = 10_000_000
BEGIN_S: Final = 30.0
TICKS: Final = 30
"""Ticks, a second apart, and when they begin; the events of each second are fed before its tick."""


def rollout(
    trajectories: int, *, turns: int, gap_s: float, seed: int, begin_s: float = 0.0, name: str = "t"
) -> Iterator[tuple[float, ev.AnyEvent]]:
    """Events in order of time: each trajectory answers, runs a tool and comes back; all begin within a second."""
    rng = np.random.default_rng(seed)
    queue: list[tuple[float, int, int, int]] = [
        (begin_s + float(at_s), i, 0, 4000) for i, at_s in enumerate(rng.uniform(0.0, 1.0, trajectories))
    ]
    heapq.heapify(queue)
    out: list[tuple[float, int, ev.AnyEvent]] = []
    for order, (t_s, i, turn, prompt) in enumerate(_pop(queue)):
        who, request = f"{name}{i:06d}", f"{name}{i:06d}-{turn:04d}"
        end_s = t_s + 0.4 + float(rng.exponential(4.0))
        back_s = end_s + float(rng.exponential(gap_s))
        out += [(at_s, order, event) for at_s, event in _turn(who, request, turn, prompt, t_s, end_s, back_s)]
        if turn + 1 < turns:
            heapq.heappush(queue, (back_s, i, turn + 1, prompt + 400))
        else:
            out.append((back_s, order, ev.TrajectoryEnd(trajectory_id=who, status="completed")))
    out.sort(key=lambda row: row[:2])
    return ((t_s, event) for t_s, _, event in out)


def _pop(queue: list[tuple[float, int, int, int]]) -> Iterator[tuple[float, int, int, int]]:
    while queue:
        yield heapq.heappop(queue)


def _turn(
    who: str, request: str, turn: int, prompt: int, t_s: float, end_s: float, back_s: float
) -> Iterator[tuple[float, ev.AnyEvent]]:
    rid = ev.make_rid(request, 0)
    worker, rank = f"p{hash_of(who) % 8}", hash_of(who) // 8 % 8
    if turn == 0:
        yield t_s, ev.TrajectoryDispatched(trajectory_id=who, prompt_tokens=prompt, workload="made-up")
    yield t_s, ev.TrajectoryReady(trajectory_id=who, request_id=request, prompt_tokens=prompt, new_tokens=400)
    yield (
        t_s + 0.01,
        ev.LlmSubmit(
            trajectory_id=who, request_id=request, attempt=0, turn=turn, prompt_tokens=prompt, prefill_worker=worker
        ),
    )
    yield t_s + 0.02, ev.LlmAdmitted(rid=rid, worker_id="d0", kv_tokens=prompt)
    yield t_s + 0.03, ev.LlmPrefillStart(rid=rid, worker_id=worker, dp_rank=rank)
    yield t_s + 0.3, ev.LlmPrefillEnd(rid=rid, worker_id=worker, dp_rank=rank, cached_tokens=max(prompt - 400, 0))
    yield end_s, ev.LlmEnd(request_id=request, attempt=0, output_tokens=200, finish_reason="stop")
    yield end_s, ev.ToolStart(trajectory_id=who, tool_name="bash")
    yield back_s, ev.ToolEnd(trajectory_id=who, tool_name="bash")


def hash_of(name: str) -> int:
    """A number that a name always gives: its last digits."""
    return int(name[-6:])


def stamped(events: Iterator[tuple[float, ev.AnyEvent]], first: int = 0) -> Iterator[ev.Stamped]:
    """Events as the hub would stamp them, of one source."""
    for seq, (t_s, event) in enumerate(events, start=first):
        yield ev.Stamped(seq + 1, nanoseconds(t_s), "bench", seq, 0, event)


def workers() -> Iterator[tuple[float, ev.AnyEvent]]:
    """Eight prefill workers of eight ranks."""
    for index in range(8):
        yield 0.0, ev.WorkerUp(worker_id=f"p{index}", role="prefill", epoch=0, dp_size=8)


def scale(live: int, repeats: int) -> dict[str, Any]:
    """Events a second, and the time of a tick, at so many live trajectories."""
    events = [*stamped(workers()), *stamped(rollout(live, turns=3, gap_s=60.0, seed=4), first=8)]
    begin_ns, second_ns = nanoseconds(BEGIN_S), NS_PER_S
    middle = [row for row in events if row.t_ns < begin_ns]
    later: list[list[ev.Stamped]] = [[] for _ in range(TICKS)]
    for row in events:
        if begin_ns <= row.t_ns < begin_ns + TICKS * second_ns:
            later[(row.t_ns - begin_ns) // second_ns].append(row)
    best_event_s, best_tick_s, alive = float("inf"), float("inf"), 0
    for _ in range(repeats):
        predictor = Predictor()
        begin = time.process_time()
        for row in middle:
            predictor.observe(row)
        best_event_s = min(best_event_s, (time.process_time() - begin) / len(middle))
        alive = predictor.table.live
        predictor.tick(begin_ns)
        ticks = []
        for second, rows in enumerate(later, 1):
            for row in rows:
                predictor.observe(row)
            begin = time.process_time()
            predictor.tick(begin_ns + second * second_ns)
            ticks.append(time.process_time() - begin)
        best_tick_s = min(best_tick_s, float(np.median(ticks)))
    tick_ms = best_tick_s * 1e3
    return {
        "trajectories": live,
        "live": alive,
        "events_per_s": round(1.0 / best_event_s),
        "events_over_target": round(1.0 / best_event_s / TARGET_EVENTS_PER_S, 2),
        "tick_ms": round(tick_ms, 3),
        "tick_over_target": round(tick_ms / TARGET_TICK_MS[live], 3),
    }


def memory(events: int) -> dict[str, Any]:
    """Resident memory while a rollout of 256 trajectories runs again and again, ticking each second."""
    predictor, fed, begin_s, sizes, lap = Predictor(), 0, 0.0, [], 0
    while fed < events:
        seconds = int(begin_s)
        for row in stamped(rollout(256, turns=4, gap_s=5.0, seed=lap, begin_s=begin_s, name=f"l{lap}-"), first=fed):
            while row.t_ns > (seconds + 1) * NS_PER_S:
                seconds += 1
                predictor.tick(seconds * NS_PER_S)
            predictor.observe(row)
            fed += 1
        begin_s, lap = seconds + 60.0, lap + 1
        sizes.append((fed, resident_mb()))
    warm = next(size for count, size in sizes if count >= events // 10)
    return {"events": fed, "mb_at_tenth": warm, "mb_at_end": sizes[-1][1], "growth": round(sizes[-1][1] / warm - 1, 4)}


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="speed and memory of the forecast")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    held = memory(MEMORY_EVENTS // 20 if args.quick else MEMORY_EVENTS)  # first: what others leave would hide a growth
    rows = [scale(live, repeats=2 if live > 10_000 else 5) for live in LIVE]
    if args.json:
        json.dump({"scale": rows, "memory": held}, sys.stdout, indent=1)
        return
    for row in rows:
        print(
            f"{row['live']:>7} live: {row['events_per_s']:>8,} events/s ({row['events_over_target']:.1f} x target), "
            f"tick {row['tick_ms']:.2f} ms ({row['tick_over_target']:.2f} of target)"
        )
    print(
        f"memory: {held['mb_at_tenth']} MB after a tenth of {held['events']:,} events, "
        f"{held['mb_at_end']} MB at the end"
    )


if __name__ == "__main__":
    main()
