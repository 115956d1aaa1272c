"""How many live trajectories the caches hold: the number, its reason, and the gate in the simulator."""

import pytest

from prorsa.cluster.registry import Worker
from prorsa.control.admission import FILL, GROWTH, Contexts, admission
from prorsa.control.config import ControlConfig
from prorsa.events import AnyEvent, LlmEnd, TrajectoryDispatched, TrajectoryEnd, TrajectoryReady
from tests.sim.pools import Trip, Turn, make_profile, pool


def contexts(*events: AnyEvent) -> Contexts:
    made = Contexts()
    for event in events:
        made.observe(event)
    return made


def turn(name: str, prompt_tokens: int, output_tokens: int) -> tuple[AnyEvent, AnyEvent]:
    ready = TrajectoryReady(trajectory_id=name, request_id=name, prompt_tokens=prompt_tokens)
    end = LlmEnd(trajectory_id=name, request_id=name, attempt=0, output_tokens=output_tokens, finish_reason="stop")
    return ready, end


def worker(name: str, role: str, kv_capacity: int | None = 100_000) -> Worker:
    return Worker(name, role, 0, "p", None, None, kv_capacity, None)  # type: ignore[arg-type]


DISPATCHED = TrajectoryDispatched(trajectory_id="a", prompt_tokens=1_000)


def test_before_any_end_contexts_are_taken_to_grow_from_the_first_prompts() -> None:
    assert Contexts().mean_tokens is None
    assert contexts(DISPATCHED).mean_tokens == GROWTH * 1_000


def test_what_has_ended_outweighs_that_turn_by_turn() -> None:
    turns = [event for _ in range(10_000) for event in turn("a", 4_900, 100)]
    seen = contexts(DISPATCHED, *turns, TrajectoryEnd(trajectory_id="a", status="completed"))
    assert seen.mean_tokens == pytest.approx(5_000, rel=0.01)
    assert seen.live == 0


def test_the_number_is_the_room_where_prefill_is_by_the_mean_context() -> None:
    workers = [worker("w0", "prefill"), worker("w1", "prefill"), worker("w2", "decode")]
    said = admission(contexts(DISPATCHED), workers, ControlConfig(host_kv_tokens=50_000), 0)
    assert said.limit == int(FILL * 2 * 150_000 / 2_000)
    assert "2 worker(s) hold 0.30 M tokens" in said.reason


@pytest.mark.parametrize(
    ("workers", "cache"), [((worker("w0", "prefill", None),), "retained"), ((worker("w0", "mixed"),), "l3")]
)
def test_nothing_limits_where_the_room_is_unknown_or_shared(workers: tuple[Worker, ...], cache: str) -> None:
    said = admission(contexts(DISPATCHED), workers, ControlConfig(cache=cache), 0)  # type: ignore[arg-type]
    assert said.limit is None
    assert "no limit" in said.reason


TRIPS = [Trip((Turn(100, 5), Turn(150, 5, gap_s=1.0))) for _ in range(12)]


def live_at_most(limit: int | None) -> tuple[int, list[str], float]:
    simulation = pool(TRIPS, ("prefill", "decode"), profile=make_profile())
    live: set[str] = set()
    most, order = 0, []
    events = simulation.admit(limit)
    while not simulation.done:
        for _, event in events:
            if isinstance(event, TrajectoryReady) and event.trajectory_id not in live:
                live.add(str(event.trajectory_id))
                order.append(str(event.trajectory_id))
            elif isinstance(event, TrajectoryEnd):
                live.discard(str(event.trajectory_id))
            most = max(most, len(live))
        events = simulation.advance(simulation.now_s + 0.5)
    return most, order, simulation.now_s


def test_a_gate_lets_so_many_live_in_the_order_of_dispatch_and_all_in_the_end() -> None:
    most, order, _ = live_at_most(3)
    assert most == 3
    assert order == sorted(order)
    assert len(order) == len(TRIPS)


def test_a_gate_wider_than_the_load_changes_nothing() -> None:
    assert live_at_most(12) == live_at_most(None)
