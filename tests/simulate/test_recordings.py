"""From a journal to what its trajectories did, and what is made of that."""

import msgspec
import numpy as np
import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.errors import InputError
from prorsa.events import (
    AnyEvent,
    LlmEnd,
    RunBegin,
    SandboxReady,
    SandboxStart,
    Stamped,
    ToolEnd,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WorkerUp,
)
from prorsa.recordings import Recording, read_recording, resampled
from prorsa.run import make_plan
from prorsa.simulate import simulate


def ready(name: str, prompt_tokens: int) -> TrajectoryReady:
    return TrajectoryReady(trajectory_id=name, request_id=name, prompt_tokens=prompt_tokens, new_tokens=prompt_tokens)


def end(name: str, output_tokens: int, finish_reason: str = "stop") -> LlmEnd:
    return LlmEnd(
        trajectory_id=name, request_id=name, attempt=0, output_tokens=output_tokens, finish_reason=finish_reason
    )  # type: ignore[arg-type]


def recording(*timed: tuple[float, AnyEvent]) -> Recording:
    rows = [Stamped(k, round(t_s * 1e9), "s", k, 0, event) for k, (t_s, event) in enumerate(timed)]
    return read_recording(rows, "journal")


STORY: tuple[tuple[float, AnyEvent], ...] = (
    (0.0, RunBegin(workers=2, concurrency=4, profile="p")),
    (0.0, WorkerUp(worker_id="w0", role="prefill", epoch=0)),
    (0.0, WorkerUp(worker_id="w1", role="decode", epoch=0)),
    (1.0, TrajectoryDispatched(trajectory_id="a", group_id="g")),
    (1.0, SandboxStart(trajectory_id="a")),
    (4.0, SandboxReady(trajectory_id="a")),
    (4.0, ready("a", 1_000)),
    (9.0, end("a", 50)),
    (16.0, ToolEnd(trajectory_id="a", tool_name="bash", status="ok", output_tokens=30)),
    (16.5, ready("a", 1_080)),
    (20.0, end("a", 60)),
    (21.0, TrajectoryEnd(trajectory_id="a", status="truncated")),
)


def test_sizes_gaps_and_sandboxes_are_those_of_the_trajectory() -> None:
    found = recording(*STORY)
    workload = found.workload
    assert workload.prompt_tokens.tolist() == [1_000, 1_080]
    assert workload.output_tokens.tolist() == [50, 60]
    assert workload.reuse_tokens.tolist() == [0, 1_050]
    assert workload.gap_s.tolist() == [0.0, 7.5]
    assert workload.sandbox_s.tolist() == [3.0]
    assert workload.truncated.tolist() == [True]
    assert [workload.tools[k] if k >= 0 else None for k in workload.tool] == [None, "bash"]
    assert (found.roles, found.most_live) == ({"w0": "prefill", "w1": "decode"}, 1)


def test_trajectories_without_an_end_are_left_out_and_counted() -> None:
    found = recording(*STORY, (22.0, ready("b", 500)))
    assert (found.workload.trajectories, found.incomplete) == (1, 1)


def test_an_answer_that_was_aborted_is_no_turn_that_can_be_run_again() -> None:
    with pytest.raises(InputError, match="none of its 1 trajectories is complete"):
        recording(
            (0.0, ready("a", 10)),
            (1.0, end("a", 5, "abort")),
            (2.0, TrajectoryEnd(trajectory_id="a", status="aborted")),
        )


def test_a_resampled_run_has_as_many_trajectories_each_whole() -> None:
    second = [(t_s, event) for t_s, event in STORY[3:] if not isinstance(event, TrajectoryDispatched)]
    other = [(t_s + 30.0, type(event)(**{**_fields(event), "trajectory_id": "b"})) for t_s, event in second]
    workload = recording(*STORY, *other).workload
    drawn = resampled(workload, np.random.default_rng(1))
    assert drawn.trajectories == workload.trajectories == 2
    assert drawn.first_turn.tolist() == [0, 2, 4]
    assert set(drawn.prompt_tokens[::2].tolist()) == {1_000}


def _trajectory(name: str, begin_s: float, **dispatched: str) -> list[tuple[float, AnyEvent]]:
    return [
        (begin_s, TrajectoryDispatched(trajectory_id=name, **dispatched)),
        (begin_s, ready(name, 1_000 + round(begin_s))),
        (begin_s + 1.0, end(name, 10)),
        (begin_s + 2.0, TrajectoryEnd(trajectory_id=name, status="completed")),
    ]


def test_the_class_of_each_trajectory_is_kept_when_it_is_drawn_anew() -> None:
    kinds = {"a": "coding", "b": "general", "c": None}
    events = [
        event
        for k, (name, kind) in enumerate(kinds.items())
        for event in _trajectory(name, 10.0 * k, **({"workload": kind} if kind else {}))
    ]
    workload = recording(*events).workload
    assert [workload.class_of(i) for i in range(3)] == ["coding", "general", "recorded"]
    drawn = resampled(workload, np.random.default_rng(3))
    by_prompt = {1_000: "coding", 1_010: "general", 1_020: "recorded"}
    assert [drawn.class_of(i) for i in range(3)] == [by_prompt[tokens] for tokens in drawn.prompt_tokens.tolist()]


def test_one_class_is_the_class_of_the_whole() -> None:
    assert recording(*_trajectory("a", 0.0, workload="coding")).workload.workload == "coding"


def test_groups_are_drawn_whole_and_share_their_prompt_with_nobody_else() -> None:
    events = [
        event for g in range(6) for name in "xyz" for event in _trajectory(f"{name}{g}", 5.0 * g, group_id=f"g{g}")
    ]
    workload = recording(*events).workload
    assert workload.shared_tokens.tolist() == workload.prompt_tokens.tolist()
    drawn = resampled(workload, np.random.default_rng(0))
    assert drawn.group.tolist() == np.repeat(np.arange(6), 3).tolist()
    prompts = drawn.prompt_tokens.reshape(6, 3)
    assert (prompts == prompts[:, :1]).all()
    assert len(set(prompts[:, 0].tolist())) < 6
    assert (drawn.shared_tokens == drawn.prompt_tokens).all()


def test_what_a_pool_served_is_recorded_alike_whatever_its_roles() -> None:
    base = load_scenario("coding-async")
    scenario = msgspec.structs.replace(base, workers=3, concurrency=6, trajectories=12, group_size=None, max_turns=3)
    found = []
    for policy in ("static:1:2", "static:2:1", "colocated"):
        kept: list[Stamped] = []
        simulate(make_plan(scenario, policy=policy, run_id="r", scored=False), recorder=kept.extend)
        found.append(read_recording(kept, policy).workload)
    made = scenario.make_workload(0)
    for workload in found:
        assert workload.workload == made.workload
        for name in ("first_turn", "prompt_tokens", "reuse_tokens", "output_tokens", "truncated", "tool"):
            assert getattr(workload, name).tolist() == getattr(made, name).tolist()
        assert workload.gap_s == pytest.approx(made.gap_s, abs=1e-6)


def _fields(event: AnyEvent) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}
