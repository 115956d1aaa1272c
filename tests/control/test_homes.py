"""Whose prefix a worker holds, as the router's events tell it."""

from prorsa.control.homes import Homes
from prorsa.events import LlmEnd, LlmPrefillEnd, LlmSubmit, TrajectoryEnd, WeightsUpdateEnd, WorkerRole


def submit(trajectory: str, worker: str, prompt_tokens: int) -> LlmSubmit:
    return LlmSubmit(
        trajectory_id=trajectory, request_id=trajectory, attempt=0, turn=0, prompt_tokens=prompt_tokens,
        prefill_worker=worker,
    )  # fmt: skip


def homes(*events: object, flip_loses: bool = False) -> Homes:
    made = Homes()
    for event in events:
        made.observe(event, flip_loses=flip_loses)
    return made


START = (submit("a", "w0", 1_000), submit("b", "w0", 500), submit("c", "w1", 200))


def test_a_trajectory_is_at_home_where_its_last_turn_was_prefilled() -> None:
    moved = homes(*START, submit("b", "w1", 700))
    assert (moved.trajectories("w0"), moved.tokens("w0")) == (1, 1_000)
    assert (moved.trajectories("w1"), moved.tokens("w1")) == (2, 900)


def test_an_answer_is_part_of_the_context_and_an_end_takes_it_away() -> None:
    end = LlmEnd(trajectory_id="a", request_id="a", attempt=0, output_tokens=50, finish_reason="stop")
    assert homes(*START, end).tokens("w0") == 1_550
    assert homes(*START, end, TrajectoryEnd(trajectory_id="a", status="completed")).tokens("w0") == 500


def test_a_flush_empties_every_home_and_an_update_without_one_none() -> None:
    assert len(homes(*START, WeightsUpdateEnd(version="2", cache_flushed=True))) == 0
    assert len(homes(*START, WeightsUpdateEnd(version="2", cache_flushed=False))) == 3


def test_a_worker_that_turns_to_decode_serves_no_prefix_any_more() -> None:
    flipped = homes(*START, WorkerRole(worker_id="w0", role="decode", epoch=1))
    assert (flipped.trajectories("w0"), flipped.trajectories("w1")) == (0, 1)


def test_what_prefill_computed_of_requests_is_known_after_a_few_of_them() -> None:
    done = [LlmPrefillEnd(rid=f"r{k}", worker_id="w0", cached_tokens=0, computed_tokens=2_000) for k in range(20)]
    assert homes(*done[:5]).computed_tokens is None
    assert homes(*done).computed_tokens == 2_000
    untold = [LlmPrefillEnd(rid=f"r{k}", worker_id="w0", cached_tokens=0) for k in range(20)]
    assert homes(*untold).computed_tokens is None
