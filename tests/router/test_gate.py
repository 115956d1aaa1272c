"""The gate before the router: who waits, who never does, and that nobody waits for ever."""

import asyncio

import pytest

from prorsa.cluster.router.gate import Gate


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def entered(gate: Gate, *keys: str) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(gate.enter(key)) for key in keys]
    await asyncio.sleep(0)
    return tasks


def states(tasks: list[asyncio.Task[bool]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_without_a_limit_nobody_waits() -> None:
    gate = Gate(Clock())
    assert states(await entered(gate, "a", "b", "c")) == [True] * 3


async def test_new_sessions_wait_in_their_order_and_live_ones_never_do() -> None:
    gate = Gate(Clock())
    gate.set_limit(2)
    tasks = await entered(gate, "a", "b", "c", "d")
    assert states(tasks) == [True, True, False, False]
    assert (gate.live, gate.held) == (2, 2)
    assert states(await entered(gate, "b", "a")) == [True, True]
    gate.leave("a")
    await asyncio.sleep(0)
    assert states(tasks) == [True, True, True, False]
    gate.leave("b")
    await asyncio.gather(*tasks)
    assert gate.live == 2


async def test_a_lower_limit_turns_nobody_out_and_a_higher_one_lets_in() -> None:
    gate = Gate(Clock())
    gate.set_limit(2)
    await entered(gate, "a", "b")
    gate.set_limit(1)
    tasks = await entered(gate, "a", "c")
    assert states(tasks) == [True, False]
    gate.set_limit(None)
    await asyncio.gather(*tasks)


async def test_a_session_that_nobody_finishes_makes_room_in_the_end() -> None:
    clock = Clock()
    gate = Gate(clock, idle_s=60.0)
    gate.set_limit(1)
    await entered(gate, "a")
    tasks = await entered(gate, "b")
    clock.now_s = 61.0
    gate.set_limit(1)
    await asyncio.gather(*tasks)
    assert gate.live == 1


async def test_a_client_that_goes_away_leaves_its_place_to_the_next() -> None:
    gate = Gate(Clock())
    gate.set_limit(1)
    tasks = await entered(gate, "a", "b", "c")
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    gate.leave("a")
    await tasks[2]
    assert (gate.live, gate.held) == (1, 0)


async def test_a_client_that_goes_away_just_when_it_is_let_in_makes_room_again() -> None:
    gate = Gate(Clock())
    gate.set_limit(1)
    tasks = await entered(gate, "a", "b", "c")
    gate.leave("a")
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    await tasks[2]
    assert gate.live == 1


async def test_what_is_dropped_while_it_waits_is_told_so_and_takes_no_place() -> None:
    gate = Gate(Clock())
    gate.set_limit(1)
    tasks = await entered(gate, "a", "b", "c")
    gate.drop("b")
    assert await tasks[1] is False
    gate.leave("a")
    assert await tasks[2] is True
