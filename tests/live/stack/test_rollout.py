"""A rollout through the whole of Prorsa while its controller flips the workers."""

import asyncio
import statistics
import time

import aiohttp

from prorsa.events import Flip, Forecast, Stamped, type_name
from prorsa.rollout import Tracker
from tests.live.stack.running import Stack, client_of, references, replay, roll_out
from tests.serve.running import holes

FLIPS = 20
LONGEST_REQUEST_S = 30.0
TOKENS = 32


async def test_the_controller_flips_under_load_and_nothing_is_lost(stack: Stack, http: aiohttp.ClientSession) -> None:
    client = await client_of(stack, http)
    known = await references(client, TOKENS, 8)
    for worker in stack.pool.workers:
        worker.post("/slow_down", {"forward_sleep_time": 0.01})
    flips: list[tuple[int, Flip]] = []

    async def command() -> None:
        """Hold one split after the other until the controller has made enough flips."""
        splits = ["1:3", "3:1"]
        turn = 0
        while len(flips) < FLIPS:
            split = splits[turn % 2]
            turn += 1
            done = await asyncio.to_thread(stack.cli, "override", split, "--reason", "exercise", "--for", "2h")
            assert done.returncode == 0, done.stderr
            wanted = {"prefill": int(split[0]), "decode": int(split[2])}
            await stack.until(lambda wanted=wanted: wanted.items() <= stack.status()["split"].items(), 60.0)  # type: ignore[misc]
            flips[:] = [
                (stamped.t_ns, stamped.event)
                for stamped in stack.events("flip")
                if isinstance(stamped.event, Flip) and stamped.event.state == "serving"
            ]

    commanding = asyncio.create_task(command())
    began = time.monotonic()
    with Tracker(stack.endpoints.ingest, run_id=stack.run.run_id) as tracker:
        ended = await roll_out(client, tracker, known, TOKENS, lambda: not commanding.done(), concurrency=6)
    await commanding
    took_s = time.monotonic() - began

    assert len(flips) >= FLIPS
    assert len(ended) >= 6
    assert all(trajectory.outputs == known[seed] for seed, trajectory in ended)
    assert max(trajectory.slowest_s for _, trajectory in ended) < LONGEST_REQUEST_S
    await stack.until(lambda: stack.status()["split"]["switching"] == 0)
    live = {worker.name: worker.live_role() for worker in stack.pool.workers}
    assert stack.roles() == live
    times = [flip.elapsed_s or 0.0 for _, flip in flips]
    print(
        f"{len(flips)} flips in {took_s:.0f} s: median {statistics.median(times):.2f} s, "
        f"longest {max(times):.2f} s; {len(ended)} trajectories"
    )
    assert statistics.median(times) < 5.0
    events = stack.events()
    assert holes(events) == {}
    _legal_order(events)
    _sources_and_scores(events)
    _flip_times(events)
    replayed = await asyncio.to_thread(replay, stack)
    assert replayed["equal"] == replayed["decisions"] > 0


LEGAL = {
    None: {"trajectory.dispatched"},
    "trajectory.dispatched": {"sandbox.start"},
    "sandbox.start": {"sandbox.ready"},
    "sandbox.ready": {"trajectory.ready"},
    "trajectory.ready": {"llm.submit"},
    "llm.submit": {"llm.end", "llm.retry"},
    "llm.retry": {"llm.submit"},
    "llm.end": {"tool.start", "reward.start"},
    "tool.start": {"tool.end"},
    "tool.end": {"trajectory.ready"},
    "reward.start": {"reward.end"},
    "reward.end": {"trajectory.end"},
    "trajectory.end": set(),
}


def _legal_order(events: list[Stamped]) -> None:
    """What rollout code and router say of a trajectory is in order.

    They are two processes, whose events may overtake each other on the way to the hub by milliseconds. Both stamp them
    with the wall clock of this machine, by which they are compared here; each one's own are in order without it.
    """
    said: dict[str, list[str]] = {}
    for stamped in sorted(events, key=lambda stamped: stamped.ts_ns):
        if stamped.event.trajectory_id is not None and (name := type_name(stamped.event)) in LEGAL:
            said.setdefault(stamped.event.trajectory_id, []).append(name)
    # The reference runs are not tracked: the router alone speaks of them.
    tracked = {trajectory: names for trajectory, names in said.items() if "trajectory.dispatched" in names}
    assert len(tracked) > 6
    for trajectory, names in tracked.items():
        for before, after in zip([None, *names], names, strict=False):
            assert after in LEGAL[before], (trajectory, names)
        assert names[-1] == "trajectory.end"


def _sources_and_scores(events: list[Stamped]) -> None:
    forecasts = [stamped.event for stamped in events if isinstance(stamped.event, Forecast)]
    means: dict[str, float] = {}
    for forecast in forecasts:
        for row in forecast.rows:
            if row.target == "prefill" and row.horizon_s == 15.0:
                means[row.source] = max(means.get(row.source, 0.0), row.mean)
    assert all(means[source] > 0 for source in ("sampler", "sandbox", "ready", "tool"))
    settled = [row for forecast in forecasts for row in forecast.settled]
    assert {row.target for row in settled} >= {"prefill", "decode_admission"}


def _flip_times(events: list[Stamped]) -> None:
    """Time in each state of a flip, from the journal."""
    entered: dict[str, tuple[str, int]] = {}
    spent: dict[str, list[float]] = {}
    for stamped in events:
        if isinstance(stamped.event, Flip):
            flip = stamped.event
            if flip.flip_id in entered:
                state, since_ns = entered[flip.flip_id]
                spent.setdefault(state, []).append((stamped.t_ns - since_ns) / 1e9)
            entered[flip.flip_id] = (flip.state, stamped.t_ns)
    assert set(spent) == {"fenced", "draining", "settling", "switching", "warming"}
    print("  ".join(f"{state} {statistics.median(times):.3f} s" for state, times in spent.items()))
