"""What a trajectory says of itself: in legal order, whatever rollout code does and however it ends."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorsa import events as ev
from prorsa.events import Event
from prorsa.rollout import Span, Tracker, Trajectory
from tests.bus.conftest import HubThread
from tests.rollout.conftest import stamped, tracked


class BrokenError(Exception):
    """What rollout code fails with."""


class Stop(BaseException):
    """What some library cancels with."""


# --- one trajectory -------------------------------------------------------------------------------------------------


async def test_a_whole_trajectory_is_journalled_as_it_went(hub: HubThread, tracker: Tracker) -> None:
    async with tracker.trajectory(group_id=7, prompt_tokens=812, workload="coding") as t:
        async with t.sandbox("swe", expected_s=20):
            pass
        async with t.tool("bash", expected_s=4) as tool:
            tool.output_tokens = 310
        async with t.reward():
            pass
    name = t.trajectory_id
    assert t.status == "completed"
    assert tracked(hub, tracker) == [
        ev.TrajectoryDispatched(trajectory_id=name, group_id="7", prompt_tokens=812, workload="coding"),
        ev.SandboxStart(trajectory_id=name, image="swe", expected_s=20.0),
        ev.SandboxReady(trajectory_id=name),
        ev.ToolStart(trajectory_id=name, tool_name="bash", expected_s=4.0),
        ev.ToolEnd(trajectory_id=name, tool_name="bash", status="ok", output_tokens=310),
        ev.RewardStart(trajectory_id=name),
        ev.RewardEnd(trajectory_id=name, status="ok"),
        ev.TrajectoryEnd(trajectory_id=name, status="completed"),
    ]


def test_plain_blocks_and_calls_say_the_same_as_async_blocks(hub: HubThread, tracker: Tracker) -> None:
    def with_blocks(t: Trajectory) -> None:
        with t, t.sandbox("swe"):
            pass

    def with_calls(t: Trajectory) -> None:
        t.start()
        sandbox = t.sandbox("swe").start()
        sandbox.end()
        t.end()

    async def with_async_blocks(t: Trajectory) -> None:
        async with t, t.sandbox("swe"):
            pass

    names = []
    for call in (with_blocks, with_calls):
        t = tracker.trajectory()
        names.append(t.trajectory_id)
        call(t)
    t = tracker.trajectory()
    names.append(t.trajectory_id)
    asyncio.run(with_async_blocks(t))
    found = [[type(e) for e in of(tracked(hub, tracker), name)] for name in names]
    assert (
        found[0]
        == found[1]
        == found[2]
        == [ev.TrajectoryDispatched, ev.SandboxStart, ev.SandboxReady, ev.TrajectoryEnd]
    )


@pytest.mark.parametrize(
    ("error", "status", "tool"),
    [(BrokenError(), "failed", "error"), (TimeoutError(), "failed", "timeout"), (Stop(), "aborted", None)],
)
def test_how_a_block_ends_is_how_the_trajectory_ends(
    hub: HubThread, tracker: Tracker, error: BaseException, status: str, tool: str | None
) -> None:
    with pytest.raises(type(error)) as raised, tracker.trajectory() as t, t.tool("bash"):
        raise error
    assert raised.value is error
    _, _, tool_end, end = tracked(hub, tracker)
    assert isinstance(tool_end, ev.ToolEnd)
    assert isinstance(end, ev.TrajectoryEnd)
    assert (tool_end.status, end.status) == (tool, status)


async def test_a_cancelled_task_aborts_its_trajectory(hub: HubThread, tracker: Tracker) -> None:
    begun = asyncio.Event()

    async def rollout() -> None:
        async with tracker.trajectory() as t, t.sandbox("swe"):
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(rollout())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _, _, failed, end = tracked(hub, tracker)
    assert (failed.reason, end.status) == ("CancelledError", "aborted")  # type: ignore[attr-defined]


def test_an_end_that_was_said_counts_before_the_blocks(hub: HubThread, tracker: Tracker) -> None:
    with tracker.trajectory() as t:
        t.end("truncated")
        t.end("failed")
    assert t.status == "truncated"
    assert [type(e) for e in tracked(hub, tracker)] == [ev.TrajectoryDispatched, ev.TrajectoryEnd]


def test_what_is_open_ends_with_the_trajectory(hub: HubThread, tracker: Tracker) -> None:
    with tracker.trajectory() as t, t.sandbox("swe"), t.tool("bash"), t.reward():
        t.end()
    found = tracked(hub, tracker)
    assert [type(e) for e in found[4:]] == [ev.RewardEnd, ev.ToolEnd, ev.SandboxFailed, ev.TrajectoryEnd]
    assert [e.status for e in found[4:6]] == [None, None]  # type: ignore[attr-defined]
    assert tracker.stats().problems == {}


def test_what_comes_after_the_end_is_left_out_and_counted(hub: HubThread, tracker: Tracker) -> None:
    t = tracker.trajectory().start()
    t.end()
    with t.tool("bash") as tool:
        tool.output_tokens = 3
    t.start()
    assert len(tracked(hub, tracker)) == 2
    assert tracker.stats().problems == {"order": 2}


def test_a_tool_may_say_how_it_went(hub: HubThread, tracker: Tracker) -> None:
    with tracker.trajectory() as t:
        with t.tool("bash") as tool:
            tool.status = "timeout"
        with t.reward() as reward:
            reward.status = "error"
    found = tracked(hub, tracker)
    assert [e.status for e in found if isinstance(e, ev.ToolEnd | ev.RewardEnd)] == ["timeout", "error"]


async def test_tools_may_run_side_by_side(hub: HubThread, tracker: Tracker) -> None:
    both = asyncio.Barrier(2)

    async def run(t: Trajectory, name: str) -> None:
        async with t.tool(name):
            await both.wait()

    async with tracker.trajectory() as t, asyncio.TaskGroup() as tasks:
        for name in ("grep", "pytest"):
            tasks.create_task(run(t, name))
    found = tracked(hub, tracker)
    assert_legal(found)
    assert [type(e) for e in found[1:-1]] == [ev.ToolStart, ev.ToolStart, ev.ToolEnd, ev.ToolEnd]


# --- sub-agents -----------------------------------------------------------------------------------------------------


async def test_a_subagent_is_a_trajectory_that_its_parent_waits_for(hub: HubThread, tracker: Tracker) -> None:
    async with (
        tracker.trajectory(group_id="g", workload="coding") as t,
        t.subagent("search", prompt_tokens=90, expected_s=30) as child,
        child.tool("web"),
    ):
        pass
    found = tracked(hub, tracker)
    assert child.session_key != t.session_key
    assert found == [
        ev.TrajectoryDispatched(trajectory_id=t.trajectory_id, group_id="g", workload="coding"),
        ev.ToolStart(trajectory_id=t.trajectory_id, tool_name="search", expected_s=30.0),
        ev.TrajectoryDispatched(trajectory_id=child.trajectory_id, group_id="g", workload="coding", prompt_tokens=90),
        ev.ToolStart(trajectory_id=child.trajectory_id, tool_name="web"),
        ev.ToolEnd(trajectory_id=child.trajectory_id, tool_name="web", status="ok"),
        ev.TrajectoryEnd(trajectory_id=child.trajectory_id, status="completed"),
        ev.ToolEnd(trajectory_id=t.trajectory_id, tool_name="search", status="ok"),
        ev.TrajectoryEnd(trajectory_id=t.trajectory_id, status="completed"),
    ]


@pytest.mark.parametrize(
    ("status", "said"), [("completed", "ok"), ("truncated", "ok"), ("failed", "error"), ("aborted", None)]
)
def test_how_a_subagent_ends_is_how_the_wait_for_it_ends(
    hub: HubThread, tracker: Tracker, status: str, said: str | None
) -> None:
    with tracker.trajectory() as t:
        t.subagent().start().end(status)
    waits = [event.status for event in tracked(hub, tracker) if isinstance(event, ev.ToolEnd)]
    assert waits == [said]


def test_a_parent_that_ends_takes_its_subagents_along(hub: HubThread, tracker: Tracker) -> None:
    parent = tracker.trajectory().start()
    child = parent.subagent().start()
    grandchild = child.subagent().start()
    grandchild.tool("bash").start()
    parent.end("filtered")
    assert (grandchild.status, child.status, parent.status) == ("aborted", "aborted", "filtered")
    found = tracked(hub, tracker)
    assert_legal(found)
    ends = [e.trajectory_id for e in found if isinstance(e, ev.TrajectoryEnd)]
    assert ends == [grandchild.trajectory_id, child.trajectory_id, parent.trajectory_id]


# --- any rollout code -----------------------------------------------------------------------------------------------

KINDS = ("sandbox", "tool", "reward", "subagent")


@st.composite
def plans(draw: st.DrawFn, depth: int = 3) -> dict[str, Any]:
    """A block: what it is, how it is entered, what happens in it, and how it is left."""
    inner = draw(st.lists(plans(depth=depth - 1), max_size=3)) if depth else []  # type: ignore[call-arg]
    return {
        "kind": draw(st.sampled_from(KINDS)),
        "entered": draw(st.sampled_from(["with", "async with", "calls", "start only", "twice"])),
        "inner": inner,
        "fails": draw(st.sampled_from([None, None, None, BrokenError, Stop])),
        "ends": draw(st.sampled_from([None, None, None, None, "truncated", "nonsense"])),
    }


async def play(t: Trajectory, plan: dict[str, Any]) -> None:
    """Do what the plan says within ``t``."""
    scope: Any = getattr(t, plan["kind"])(*(["bash"] if plan["kind"] == "tool" else []))

    async def body() -> None:
        for inner in plan["inner"]:
            await play(scope if isinstance(scope, Trajectory) else t, inner)
        if plan["ends"]:
            t.end(plan["ends"])
        if plan["fails"]:
            raise plan["fails"]

    match plan["entered"]:
        case "with":
            with scope:
                await body()
        case "async with":
            async with scope:
                await body()
        case "twice":
            with scope, scope:
                await body()
        case _:
            scope.start()
            await body()
            if plan["entered"] == "calls":
                scope.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubThread, Tracker]]:
    thread = HubThread(Path(tmp_path_factory.mktemp("shared")))
    thread.start()
    with Tracker(thread.endpoints.ingest) as tracker:
        yield thread, tracker
    thread.stop()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(plans(), max_size=4))
def test_events_are_legal_whatever_rollout_code_does(
    shared: tuple[HubThread, Tracker], plan: list[dict[str, Any]]
) -> None:
    hub, tracker = shared
    before = hub.hub.status().head_seq

    async def rollout() -> str | None:
        try:
            async with tracker.trajectory() as t:
                for block in plan:
                    await play(t, block)
        except (BrokenError, Stop):
            pass
        return t.status

    status = asyncio.run(rollout())
    assert tracker.flush(10)
    found = [s.event for s in stamped(hub, before)]
    assert status is not None
    assert found, "nothing was tracked"
    assert_legal(found)


def of(found: list[Event], name: str) -> list[Event]:
    return [event for event in found if event.trajectory_id == name]


def assert_legal(found: list[Event]) -> None:
    """Each trajectory begins once, first; ends once, last; and each stretch that begins in it ends in it."""
    for name in {event.trajectory_id for event in found}:
        mine = of(found, name)  # type: ignore[arg-type]
        assert [type(e) for e in mine].count(ev.TrajectoryDispatched) == 1
        assert [type(e) for e in mine].count(ev.TrajectoryEnd) <= 1
        assert isinstance(mine[0], ev.TrajectoryDispatched)
        ended = isinstance(mine[-1], ev.TrajectoryEnd)
        assert ended or not any(isinstance(e, ev.TrajectoryEnd) for e in mine)
        open_spans = {"sandbox": 0, "tool": 0, "reward": 0}
        for event in mine[1 : -1 if ended else None]:
            kind, _, what = ev.type_name(event).partition(".")
            open_spans[kind] += 1 if what == "start" else -1
            assert open_spans[kind] >= 0, f"{kind} ends before it begins"
        assert not ended or not any(open_spans.values()), "the trajectory ended before its parts"


# --- threads and ids ------------------------------------------------------------------------------------------------


def test_many_threads_and_tasks_at_once(hub: HubThread, tracker: Tracker) -> None:
    """Own trajectories each, and one that all of them use and one of them ends."""
    common = tracker.trajectory().start()
    together = threading.Barrier(8)

    async def rollout() -> None:
        async with tracker.trajectory() as t, t.tool("bash"):
            await asyncio.sleep(0)

    async def rollouts() -> None:
        await asyncio.gather(*(rollout() for _ in range(25)))

    def work(worker: int) -> None:
        together.wait()
        for turn in range(50):
            with common.tool(f"tool-{worker}"):
                if worker == 0 and turn == 25:
                    common.end()
        asyncio.run(rollouts())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    found = tracked(hub, tracker)
    assert_legal(found)
    assert len({event.trajectory_id for event in found}) == 1 + 8 * 25
    assert len([event for event in found if isinstance(event, ev.TrajectoryEnd)]) == 1 + 8 * 25


def test_ids_and_session_keys_are_unique_or_as_given(tracker: Tracker) -> None:
    given = tracker.trajectory(trajectory_id=f"sample-{1}")
    assert given.trajectory_id == given.session_key == "sample-1"
    made = [tracker.trajectory() for _ in range(100)]
    made += list(itertools.chain.from_iterable([t.subagent(), t.subagent()] for t in made))
    assert len({t.trajectory_id for t in made}) == 300
    headers = made[0].headers
    assert set(headers.values()) == {made[0].session_key}
    headers["X-Session-ID"] = "changed"
    assert made[0].headers["X-Session-ID"] == made[0].session_key


def test_the_router_reads_the_session_key_from_the_headers(tracker: Tracker) -> None:
    from prorsa.cluster.router.sessions import session_key

    t = tracker.trajectory()
    assert session_key(t.headers, {}) == t.session_key
    for name, value in t.headers.items():
        assert session_key({name: value}, {}) == t.session_key


def test_spans_start_a_trajectory_that_nobody_started(hub: HubThread, tracker: Tracker) -> None:
    t = tracker.trajectory()
    span: Span = t.tool("bash")
    with span:
        pass
    t.end()
    assert_legal(tracked(hub, tracker))
