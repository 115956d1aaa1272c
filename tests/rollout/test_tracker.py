"""The tracker: where it sends, what it does when it cannot, and over forks and processes."""

import asyncio
import enum
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from prorsa import events as ev
from prorsa.bus.keys import HubKeys, make_keys
from prorsa.clock import NS_PER_S
from prorsa.events import Event, Stamped
from prorsa.forecast.columns import State
from prorsa.forecast.requests import LifecycleSink
from prorsa.forecast.trajectory import TrajectoryTable
from prorsa.forecast.waits import WaitKeys
from prorsa.rollout import Tracker, Trajectory
from prorsa.rollout.channel import Channel
from tests.bus.conftest import HubThread
from tests.rollout.conftest import stamped, tracked
from tests.rollout.test_trajectory import assert_legal

EVENTS = 20
"""What :func:`everything` publishes."""


async def everything(tracker: Tracker) -> Trajectory:
    """Every call there is, once."""
    tracker.sampler(queued=40, in_flight=8, limit=16, batch_size=4, mode="async", expected_prompt_tokens=800)
    with tracker.step(3, target_groups=16):
        async with tracker.trajectory(group_id="g", prompt_tokens=812, workload="coding") as t:
            async with t.sandbox("swe", expected_s=20):
                pass
            with t.tool("bash", expected_s=4) as tool:
                tool.output_tokens = 310
            async with t.subagent("search") as child, child.reward():
                pass
            with t.reward():
                pass
        tracker.announce_weights_update(4, 12.5, cache_flushed=True)
    async with tracker.weights_update(4, cache_flushed=True):
        pass
    return t


# --- where it sends -------------------------------------------------------------------------------------------------


async def test_the_run_is_journalled_as_it_went(hub: HubThread, tracker: Tracker) -> None:
    t = await everything(tracker)
    found = await asyncio.to_thread(tracked, hub, tracker)
    run = [event for event in found if event.trajectory_id is None]
    assert run == [
        ev.SamplerState(mode="async", queued=40, in_flight=8, limit=16, batch_size=4, expected_prompt_tokens=800.0),
        ev.StepBegin(step=3, target_groups=16),
        ev.WeightsUpdateBegin(version="4", cache_flushed=True, expected_in_s=12.5),
        ev.StepEnd(step=3),
        ev.WeightsUpdateBegin(version="4", cache_flushed=True),
        ev.WeightsUpdateEnd(version="4", cache_flushed=True),
    ]
    assert_legal([event for event in found if event.trajectory_id is not None])
    assert {s.source.partition("#")[0] for s in stamped(hub)} == {"rollout"}
    assert t.status == "completed"
    stats = tracker.stats()
    assert (stats.configured, stats.published, stats.acknowledged, stats.problems) == (True, EVENTS, EVENTS, {})


@pytest.mark.parametrize("form", ["endpoint", "run directory", "path", "environment", "directory in environment"])
def test_a_hub_is_named_in_any_of_these_ways(hub: HubThread, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    named = {"endpoint": hub.endpoints.ingest, "run directory": str(hub.run_dir), "path": hub.run_dir}
    if form == "environment":
        monkeypatch.setenv("PRORSA_HUB", hub.endpoints.ingest)
    if form == "directory in environment":
        monkeypatch.setenv("PRORSA_HUB", str(hub.run_dir))
    with Tracker(named.get(form)) as tracker:
        tracker.trajectory().start().end()
        assert len(tracked(hub, tracker)) == 2


def test_source_and_run_are_as_given(hub: HubThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tracker(hub.run_dir, source="agents", run_id="run-1") as tracker:
        tracker.trajectory().start()
        assert len(tracked(hub, tracker)) == 1
    assert stamped(hub)[0].source.startswith("agents#")
    monkeypatch.setenv("PRORSA_RUN_ID", "run-0")
    with Tracker(hub.run_dir) as tracker:
        tracker.trajectory().start()
        _, alert = tracked(hub, tracker)
    assert isinstance(alert, ev.Alert)
    assert "run-0" in alert.text


def test_a_hub_with_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    make_keys(tmp_path / "keys")
    hub = HubThread(tmp_path / "run", tcp=True, keys=HubKeys.load(tmp_path / "keys"))
    hub.start().endpoints.save(hub.run_dir)
    try:
        with Tracker(hub.run_dir) as tracker:
            assert not tracker.configured
        assert "asks for keys" in caplog.text
        with Tracker(hub.run_dir, keys=tmp_path / "keys" / "publisher.key") as tracker:
            tracker.trajectory().start()
            assert len(tracked(hub, tracker)) == 1
        monkeypatch.setenv("PRORSA_KEYS", str(tmp_path / "keys" / "publisher.key"))
        with Tracker(hub.hub.endpoints.ingest) as tracker:
            tracker.trajectory().start()
            assert len(tracked(hub, tracker)) == 2
    finally:
        hub.stop()


# --- nowhere to send ------------------------------------------------------------------------------------------------


async def test_without_a_hub_every_call_is_a_no_op(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker()
    t = await everything(tracker)
    assert not tracker.configured
    assert tracker.stats() == (False, 0, 0, 0, 0, {})
    assert t.headers["X-Session-ID"] == t.session_key
    assert tracker.flush(0)
    assert tracker.close()
    assert not caplog.records


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("/nowhere/at/all", "no hub in /nowhere/at/all"),
        ("http://localhost:3", "give tcp://HOST:PORT"),
        (17, "not int"),
    ],
)
async def test_what_is_no_hub_is_logged_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, endpoint: str, words: str
) -> None:
    tracker = Tracker(endpoint)
    await everything(tracker)
    assert not tracker.configured
    (record,) = caplog.records
    assert record.name == "prorsa.rollout"
    assert "not tracked" in record.getMessage()
    assert words in record.getMessage()


async def test_a_hub_that_is_away_costs_no_time(hub: HubThread) -> None:
    hub.stop()
    tracker = Tracker(hub.endpoints.ingest)
    began_s = time.monotonic()
    for _ in range(300):
        await everything(tracker)
    assert time.monotonic() - began_s < 2.0
    assert tracker.stats().held == 300 * EVENTS
    hub.start()
    assert await asyncio.to_thread(tracker.flush, 10)
    assert len(stamped(hub)) == 300 * EVENTS
    tracker.close()


async def test_a_hub_that_dies_on_the_way_loses_nothing(hub: HubThread, tracker: Tracker) -> None:
    for turn in range(60):
        await everything(tracker)
        if turn in (20, 40):
            hub.stop()
            await everything(tracker)
            hub.start()
    found = await asyncio.to_thread(tracked, hub, tracker)
    assert len(found) == 62 * EVENTS
    assert_legal([event for event in found if event.trajectory_id is not None])


def test_a_tracker_that_is_closed_does_nothing_more(hub: HubThread, tracker: Tracker) -> None:
    t = tracker.trajectory().start()
    assert tracker.close(5)
    t.end()
    asyncio.run(everything(tracker))
    assert len(stamped(hub)) == 1
    assert not tracker.configured


# --- values that make no sense --------------------------------------------------------------------------------------


class Status(enum.Enum):
    """As frameworks have it."""

    TRUNCATED = "truncated"


class Hostile:
    """Raises whatever is done with it."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __index__ = __float__ = __bool__ = __str__  # type: ignore[assignment]


def test_values_of_other_programs_are_taken_as_meant(hub: HubThread, tracker: Tracker) -> None:
    with tracker.trajectory(group_id=np.int64(5), prompt_tokens=np.int64(9)) as t:
        t.sandbox("x" * 1000, expected_s=timedelta(seconds=3)).start().end()  # type: ignore[arg-type]
        with t.tool("bash", expected_s=np.float32(0.5)) as tool:
            tool.output_tokens = 12.0  # type: ignore[assignment]
        t.end(Status.TRUNCATED)  # type: ignore[arg-type]
    dispatched, sandbox, _, start, end, over = tracked(hub, tracker)
    assert (dispatched.group_id, dispatched.prompt_tokens) == ("5", 9)  # type: ignore[attr-defined]
    assert (len(sandbox.image), sandbox.expected_s) == (256, 3.0)  # type: ignore[attr-defined]
    assert (start.expected_s, end.output_tokens) == (0.5, 12)  # type: ignore[attr-defined]
    assert over.status == "truncated"  # type: ignore[attr-defined]
    assert tracker.stats().problems == {}


@pytest.mark.parametrize("value", [-1, 2**63, 1.5, float("nan"), float("inf"), "many", "", b"x", object(), Hostile()])
def test_values_that_make_no_sense_are_left_out_and_counted(
    hub: HubThread, tracker: Tracker, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    bad = value
    tracker.sampler(queued=bad, in_flight=bad, limit=bad, mode=bad)  # type: ignore[arg-type]
    with tracker.step(bad, bad):  # type: ignore[arg-type]
        with tracker.trajectory(prompt_tokens=bad, trajectory_id=bad, group_id=bad) as t:  # type: ignore[arg-type]
            with t.tool(bad, expected_s=bad) as tool:  # type: ignore[arg-type]
                tool.status = bad  # type: ignore[assignment]
                tool.output_tokens = bad  # type: ignore[assignment]
            t.end(bad)  # type: ignore[arg-type]
        tracker.attach(bad)
    tracker.announce_weights_update(bad, bad)  # type: ignore[arg-type]
    with tracker.weights_update(bad, bad):  # type: ignore[arg-type]
        pass
    found = tracked(hub, tracker)
    assert not any(isinstance(event, ev.Alert) for event in found), "the hub refused an event"
    assert tracker.stats().problems["value"] >= 5
    assert [record.name for record in caplog.records] == ["prorsa.rollout"]


def test_an_announcement_without_a_time_says_nothing(hub: HubThread, tracker: Tracker) -> None:
    """It would say that the update begins now, and stop all flips."""
    for when in (-5, None, 0, "soon"):
        tracker.announce_weights_update(1, when)  # type: ignore[arg-type]
    assert tracked(hub, tracker) == []


def test_an_update_that_fails_does_not_end(hub: HubThread, tracker: Tracker) -> None:
    with pytest.raises(OSError, match="lost"), tracker.weights_update(9):
        raise OSError("lost")
    assert tracked(hub, tracker) == [ev.WeightsUpdateBegin(version="9")]


# --- processes ------------------------------------------------------------------------------------------------------


def in_fork(work: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # one that hangs is ended, and so fails the test
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_tracks_as_a_source_of_its_own(hub: HubThread, tracker: Tracker) -> None:
    with tracker.trajectory() as t:
        assert tracker.flush(10)

        def work() -> None:
            with tracker.trajectory() as mine, t.tool("bash"):
                assert mine.trajectory_id != t.trajectory_id
            assert tracker.flush(10)

        in_fork(work)
    found = tracked(hub, tracker)
    assert_legal(found)
    assert len(found) == 6
    assert len({s.source for s in stamped(hub)}) == 2


def test_leaving_a_block_in_a_child_says_nothing_of_the_parents(hub: HubThread, tracker: Tracker) -> None:
    """A child that ends in the middle of its parent's blocks leaves them too, and the parent is still in them."""

    def leave() -> None:
        try:
            with tracker.step(1), tracker.trajectory() as t, t.tool("bash"):
                if (child := os.fork()) == 0:
                    sys.exit()
                os.waitpid(child, 0)
        except SystemExit:
            tracker.flush(10)
            os._exit(0)

    leave()
    found = tracked(hub, tracker)
    assert [type(event) for event in found] == [
        ev.StepBegin,
        ev.TrajectoryDispatched,
        ev.ToolStart,
        ev.ToolEnd,
        ev.TrajectoryEnd,
        ev.StepEnd,
    ]
    assert found[4].status == "completed"  # type: ignore[attr-defined]


def test_a_fork_while_another_thread_tracks(hub: HubThread, tracker: Tracker) -> None:
    """A lock that is held at that moment must not be held in the child for ever."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with tracker._channel.lock:
            held.set()
            free.wait(30)

    def work() -> None:
        tracker.trajectory().start().end()
        assert tracker.flush(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    in_fork(work)
    free.set()
    holder.join()
    assert len(tracked(hub, tracker)) == 2


def _track(tracker: Tracker, name: str) -> None:
    with tracker.attach(name) as t, t.tool("bash"):
        pass
    with tracker.trajectory():
        pass


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_process_that_ends_has_its_events_journalled(hub: HubThread, tracker: Tracker, method: str) -> None:
    with tracker.trajectory() as t:
        context = multiprocessing.get_context(method)
        process = context.Process(target=_track, args=(tracker, t.trajectory_id))  # type: ignore[attr-defined]
        process.start()
        process.join(30)
        assert process.exitcode == 0
    found = tracked(hub, tracker)
    assert_legal(found)
    assert len(found) == 6
    assert len({s.source for s in stamped(hub)}) == 2


def test_a_program_that_ends_has_its_events_journalled(hub: HubThread) -> None:
    code = "from prorsa.rollout import Tracker\nwith Tracker().trajectory() as t: t.tool('bash').start()"
    environment = {**os.environ, "PRORSA_HUB": str(hub.run_dir)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert_legal([s.event for s in stamped(hub)])
    assert len(stamped(hub)) == 4


def test_a_program_without_a_hub_at_its_endpoint_still_ends(tmp_path: Path) -> None:
    code = "from prorsa.rollout import Tracker\nwith Tracker().trajectory(): pass"
    environment = {**os.environ, "PRORSA_HUB": f"ipc://{tmp_path}/nobody"}
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert time.monotonic() - began_s < 10


def test_a_copy_in_another_process_sends_to_the_same_hub(hub: HubThread, tracker: Tracker) -> None:
    copy = pickle.loads(pickle.dumps(tracker))
    copy.trajectory().start()
    assert copy.flush(10)
    assert len(stamped(hub)) == 1
    copy.close()


def test_attached_trajectories_end_only_when_told(hub: HubThread, tracker: Tracker) -> None:
    t = tracker.trajectory().start()
    with tracker.attach(t.trajectory_id) as there, there.tool("bash"):
        pass
    assert there.status is None
    assert tracker.stats().problems == {}
    tracker.attach(t.trajectory_id).end("filtered")
    found = tracked(hub, tracker)
    assert_legal(found)
    assert found[-1] == ev.TrajectoryEnd(trajectory_id=t.trajectory_id, status="filtered")


def test_a_tracker_that_is_gone_leaves_nothing_behind(hub: HubThread) -> None:
    tracker = Tracker(hub.run_dir)
    tracker.trajectory().start()
    assert tracker.close(10)
    channel: weakref.ref[Channel] = weakref.ref(tracker._channel)
    del tracker
    assert channel() is None


def test_the_sdk_needs_only_msgspec_and_zmq() -> None:
    """It is imported inside rollout frameworks, where nothing else of ours is installed."""
    code = (
        "import sys; import prorsa.rollout; "
        "print(sorted({'numpy', 'structlog', 'sqlite3', 'aiohttp', 'textual', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what the predictor makes of it ---------------------------------------------------------------------------------


class Deaf(LifecycleSink):
    """Takes facts and does nothing with them: it expects no turn to be the last."""

    def __getattribute__(self, name: str) -> object:
        return object.__getattribute__(self, name) if name.startswith("__") else lambda *_, **__: 0.0


def test_the_predictor_has_nothing_to_repair(hub: HubThread, tracker: Tracker) -> None:
    """SDK and router together give the trajectory state machine what it expects."""
    seen: list[Event] = []
    table = TrajectoryTable(Deaf(), WaitKeys())
    t = tracker.trajectory(group_id="g", prompt_tokens=800)

    def observe() -> State | None:
        assert tracker.flush(10)
        for event in stamped(hub)[len(seen) :]:
            table.observe(event)
            seen.append(event.event)
        return table.state_of(t.trajectory_id)

    def turn(number: int) -> None:
        observe()
        request = f"request-{number}"
        rid = ev.make_rid(request, 0)
        name = t.trajectory_id
        for offset, event in enumerate(
            [
                ev.TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=800),
                ev.LlmSubmit(trajectory_id=name, request_id=request, attempt=0, turn=number, prompt_tokens=800),
                ev.LlmAdmitted(rid=rid, worker_id="d", kv_tokens=800),
                ev.LlmPrefillStart(rid=rid, worker_id="p"),
                ev.LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=0, computed_tokens=800),
                ev.LlmFirstToken(rid=rid, worker_id="d"),
                ev.LlmEnd(trajectory_id=name, request_id=request, attempt=0, output_tokens=9, finish_reason="stop"),
            ]
        ):
            table.observe(Stamped(0, NS_PER_S, "router#1", 10 * number + offset + 1, 0, event))

    with t:
        assert observe() == State.DISPATCHED
        with t.sandbox("swe", expected_s=10):
            assert observe() == State.SANDBOX
        turn(0)
        with t.tool("bash", expected_s=3):
            assert observe() == State.TOOL
        turn(1)
        with t.reward():
            assert observe() == State.REWARD
    assert observe() is None
    assert {kind: n for kind, n in table.repaired.items() if n} == {}
