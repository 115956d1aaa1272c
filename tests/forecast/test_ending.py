"""The end of a step is seen coming: with its last trajectory, or with enough complete groups, and what follows it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa import events as ev
from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.forecast.ending import Left, StepGroups, all_by, reached_by
from prorsa.forecast.predictor import Predictor

PROMPT = 4000
STEP_S = 40.0
BREAK_S = 4.0
GROUPS, SIZE = 8, 2


def turn(name, number, at_s, prompt):
    """A request that is ready at ``at_s`` and answered ten seconds later; then a tool of five seconds."""
    request = f"{name}-{number}"
    rid = ev.make_rid(request, 0)
    return [
        (at_s, ev.TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=prompt, new_tokens=prompt)),
        (at_s, ev.LlmSubmit(trajectory_id=name, request_id=request, attempt=0, turn=number, prompt_tokens=prompt)),
        (at_s + 0.1, ev.LlmAdmitted(rid=rid, worker_id="d", kv_tokens=prompt)),
        (at_s + 0.2, ev.LlmPrefillStart(rid=rid, worker_id="p", dp_rank=0)),
        (at_s + 0.5, ev.LlmPrefillEnd(rid=rid, worker_id="p", dp_rank=0, cached_tokens=0)),
        (at_s + 10.0, ev.LlmEnd(request_id=request, attempt=0, output_tokens=300, finish_reason="stop")),
    ]


def run_of_steps(steps, target=None, queued=10_000, *, told=True):
    """Steps whose trajectories have two turns and a reward; over-sampled, the last groups are slower, and cut off."""
    rows = [(0.0, ev.SamplerState(mode="sync", queued=queued, in_flight=0, limit=99, batch_size=GROUPS * SIZE))]
    for step in range(steps):
        begin_s = step * (STEP_S + BREAK_S)
        rows.append((begin_s, ev.StepBegin(step=step, target_groups=target if told else None)))
        for group in range(GROUPS):
            slow = target is not None and group >= target
            for member in range(SIZE):
                name = f"s{step}g{group}m{member}"
                rows.append((begin_s, ev.TrajectoryDispatched(trajectory_id=name, group_id=f"s{step}g{group}")))
                for number in range(2):
                    rows += turn(name, number, begin_s + 0.5 + 15.0 * number + 5.0 * slow, PROMPT)
                status = "aborted" if slow else "completed"
                end_s = STEP_S - 0.2 if slow else STEP_S - 2.0 - group % 4
                if not slow:
                    rows.append((begin_s + 26.0, ev.RewardStart(trajectory_id=name)))
                    rows.append((begin_s + end_s, ev.RewardEnd(trajectory_id=name, status="ok")))
                rows.append((begin_s + end_s, ev.TrajectoryEnd(trajectory_id=name, status=status)))
        rows.append((begin_s + STEP_S, ev.StepEnd(step=step)))
    return sorted(rows, key=lambda row: row[0])


def frame_at(rows, at_s):
    """The forecast at a time, from the events before it."""
    predictor = Predictor()
    frame, rest = None, iter(rows)
    row = next(rest, None)
    for second in range(1, int(at_s) + 1):
        seq = 0
        while row is not None and row[0] <= second:
            at_ns = nanoseconds(row[0])
            predictor.observe(ev.Stamped(1, at_ns, f"{second}", seq, 0, row[1]))
            seq, row = seq + 1, next(rest, None)
        frame = predictor.tick(second * NS_PER_S)
    return frame


def test_the_next_step_is_expected_before_this_one_has_ended():
    """Eight seconds before the end of the sixth step most prompts of the next are foreseen within half a minute."""
    rows = run_of_steps(6)
    at_s = 5 * (STEP_S + BREAK_S) + STEP_S - 8.0
    burst = GROUPS * SIZE * PROMPT
    assert frame_at(rows, at_s).get("prefill", 30.0, "sampler").mean > 0.6 * burst
    assert frame_at(rows, at_s).get("prefill", 5.0, "sampler").mean < 0.1 * burst
    assert frame_at(rows, at_s - 25.0).get("prefill", 5.0, "sampler").mean < 0.01 * burst


def test_after_the_last_step_nothing_is_expected():
    rows = run_of_steps(6, queued=6 * GROUPS * SIZE)
    frame = frame_at(rows, 5 * (STEP_S + BREAK_S) + STEP_S - 8.0)
    assert frame.get("prefill", 60.0, "sampler").mean == 0.0


def test_what_over_sampling_will_cut_off_is_not_expected():
    """Four groups of the eight are enough and nearly there: the next step is near, though the others have far to go."""
    at_s = 5 * (STEP_S + BREAK_S) + STEP_S - 4.0
    burst = GROUPS * SIZE * PROMPT
    cut = frame_at(run_of_steps(6, GROUPS // 2), at_s)
    assert cut.live_trajectories > GROUPS
    assert cut.get("prefill", 30.0, "sampler").mean > 0.6 * burst
    slow = frame_at(run_of_steps(6, GROUPS // 2, told=False), at_s)
    assert cut.get("decode_admission", 15.0, "arrivals").mean > slow.get("decode_admission", 15.0, "arrivals").mean
    assert cut.get("prefill", 15.0, "tool").mean < 0.7 * slow.get("prefill", 15.0, "tool").mean


def test_enough_groups_are_complete_by_and_by():
    groups = StepGroups()
    groups.begin(3)
    for number in range(8):
        groups.dispatched(f"t{number}", f"g{number // 2}")
    assert groups.over_sampled
    for number in range(5):
        groups.ended(f"t{number}", aborted=False)
    groups.rewarding("t5")
    left = np.linspace(1.0, 0.0, 30)
    by = groups.complete_by(Left(left, left))
    assert by[0] < 0.05
    assert by[-1] > 0.95
    assert (np.diff(by) >= -1e-12).all()


def test_an_aborted_member_leaves_its_group_incomplete():
    groups = StepGroups()
    groups.begin(1)
    for number in range(4):
        groups.dispatched(f"t{number}", f"g{number // 2}")
    groups.ended("t0", aborted=True)
    groups.ended("t1", aborted=False)
    assert groups.complete_by(Left(np.ones(3), np.ones(3))).max() < 0.05


OPEN = st.tuples(st.integers(0, 4), st.integers(0, 4))
CHANCE = st.floats(0.02, 0.98)


@given(st.lists(OPEN, min_size=16, max_size=64), CHANCE, CHANCE, st.floats(0.2, 0.8))
def test_complete_groups_are_counted_as_if_each_were_drawn(members, rewarded, others, share):
    """As well as a normal distribution can: sums of few unlikely groups are skewed."""
    needed = max(int(share * len(members)), 1)
    rng = np.random.default_rng(0)
    chances = [np.repeat([rewarded, others], sizes) for sizes in members]
    complete = sum((rng.random((4000, len(left))) > left).all(axis=1).astype(int) for left in chances)
    truth = float((complete >= needed).mean())
    said = reached_by(members, needed, Left(np.array([rewarded]), np.array([others])))[0]
    assert said == pytest.approx(truth, abs=0.12)


def test_all_have_ended_when_each_has():
    left = Left(np.array([1.0, 0.5, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert all_by(3.0, 5.0, left) == pytest.approx([0.0, 0.125, 1.0])
