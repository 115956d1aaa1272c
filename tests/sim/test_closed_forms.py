"""Queueing results and arithmetic that the simulator must agree with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import Fit
from prorsa.cluster.sim.config import RESERVED_DECODE_TOKENS
from prorsa.cluster.sim.limits import alone_s
from prorsa.events import LlmAdmitted, LlmEnd, LlmFirstToken, LlmPrefillStart, TrajectoryReady
from tests.sim.pools import Trip, Turn, make_profile, make_workload, of, one, pool, run


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_prefill_worker_with_batch_limit_1_waits_as_m_d_1_does(load: float) -> None:
    prompt, count = 1_000, 30_000
    profile = make_profile(chunk_tokens=prompt)
    service_s = profile.prefill_s(prompt)
    gaps = np.random.default_rng(6).exponential(service_s / load, count)
    trips = [one(prompt, 1, sandbox_s=at) for at in np.cumsum(gaps).tolist()]
    events = run(pool(trips, profile=profile), pace_s=1e9)
    waits = np.array([t for t, _ in of(events, LlmPrefillStart)]) - np.array(
        [t for t, _ in of(events, TrajectoryReady)]
    )
    # Each wait is that of Lindley's recursion; the mean of so long a sample is close to the closed form.
    lindley = np.zeros(count)
    for k in range(1, count):
        lindley[k] = max(0.0, lindley[k - 1] + service_s - gaps[k])
    np.testing.assert_allclose(waits, lindley, atol=1e-6)
    assert waits.mean() == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.03)


@given(batch=st.integers(1, 10), output=st.integers(2, 400))
@settings(max_examples=30, deadline=None)
def test_a_fixed_batch_decodes_at_exactly_the_profiles_step_times(batch: int, output: int) -> None:
    profile, prompt = make_profile(kv_tokens=100_000), 100
    sim = pool([one(prompt, output)] * batch, ("mixed",), profile=profile)
    run(sim)
    prefill = profile.prefill
    prefill_ms = prefill.a_ms + batch * (prefill.b_ms * prompt + prefill.c_ms * prompt * prompt / 2)
    steps_s = [profile.decode_step_s(batch, batch * (prompt + 1 + k)) for k in range(output - 1)]
    assert sim.report()["makespan_s"] == pytest.approx(prefill_ms / 1e3 + sum(steps_s), rel=1e-9)


def test_kv_capacity_bounds_the_batch_exactly() -> None:
    prompt, output = 1_000, 600
    profile = make_profile(kv_tokens=14_000)
    events = run(pool([one(prompt, output)] * 20, profile=profile))
    held, most = 0, 0
    for _, event in events:
        held += isinstance(event, LlmAdmitted)
        held -= isinstance(event, LlmEnd)
        most = max(most, held)
    # The last to come in finds the others with their prompts at least, and a reserve for each of them and itself.
    largest = 1
    while (largest + 1) * (prompt + 1) + RESERVED_DECODE_TOKENS * (largest + 1) <= 14_000:
        largest += 1
    first_batch = [event for _, event in events if isinstance(event, LlmAdmitted | LlmEnd)][:largest]
    assert all(isinstance(event, LlmAdmitted) for event in first_batch)
    assert most == largest


def test_max_running_bounds_the_batch_exactly() -> None:
    events = run(pool([one(100, 200)] * 12, profile=make_profile(max_running=5, kv_tokens=1_000_000)))
    held = np.cumsum([isinstance(event, LlmAdmitted) - isinstance(event, LlmEnd) for _, event in events])
    assert held.max() == 5


def _reference_s(profile_: object, joins: list[tuple[float, int, int]]) -> list[float]:
    """Decode step by step: (arrival with the first token, prompt, output) in, end times out."""
    now, running, ends = 0.0, [], {}
    waiting = sorted((at, k) for k, (at, _, _) in enumerate(joins))
    while waiting or running:
        if not running:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            _, k = waiting.pop(0)
            running.append([k, 1])
        now += profile_.decode_step_s(len(running), sum(joins[k][1] + done for k, done in running))  # type: ignore[attr-defined]
        for request in running:
            request[1] += 1
        for k, done in [tuple(r) for r in running]:
            if done == joins[k][2]:
                ends[k] = now
        running = [r for r in running if r[0] not in ends]
    return [ends[k] for k in range(len(joins))]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(10, 900), st.integers(2, 120)), min_size=1, max_size=10))
@settings(max_examples=40, deadline=None)
def test_blocks_in_closed_form_give_the_times_of_single_steps(requests: list[tuple[float, int, int]]) -> None:
    profile = make_profile(kv_tokens=1_000_000, prefill=Fit(a_ms=1.0, b_ms=0.001, c_ms=0.0))
    sim = pool([one(prompt, output, sandbox_s=at) for at, prompt, output in requests], profile=profile)
    events = run(sim)
    arrivals = {event.trajectory_id: t for t, event in of(events, LlmFirstToken)}  # type: ignore[attr-defined]
    ends = {event.trajectory_id: t for t, event in of(events, LlmEnd)}  # type: ignore[attr-defined]
    names = [f"t{i:05d}" for i in range(len(requests))]
    joins = [(arrivals[name], prompt, output) for name, (_, prompt, output) in zip(names, requests, strict=True)]
    assert [ends[name] for name in names] == pytest.approx(_reference_s(profile, joins), abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 50), st.floats(0, 9)), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_trajectory_alone_takes_what_the_physical_limit_says(steps: list[tuple[int, int, float]]) -> None:
    turns, context = [], 0
    for new, output, gap_s in steps:
        turns.append(Turn(context + new, output, gap_s))
        context += new + output
    trip = Trip(tuple(turns), sandbox_s=2.0, reward_s=1.0)
    profile = make_profile(kv_tokens=100_000)
    sim = pool([trip], ("mixed",), profile=profile)
    run(sim)
    expected = alone_s(profile, make_workload([trip]))[0] - turns[0].gap_s
    assert sim.report()["makespan_s"] == pytest.approx(expected, rel=1e-9)
