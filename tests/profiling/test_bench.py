"""The simulated serving benchmark against arithmetic."""

import pytest

from prorsa.cluster.profiling.bench import Deployment, Load, simulate_load
from prorsa.cluster.sim.config import TRANSFER_LATENCY_S
from tests.sim.pools import make_profile

PROFILE = make_profile(request_ms=40.0)
LOAD = Load(prompt_tokens=800, output_tokens=101, concurrency=1)


def steps_ms(batch: int = 1) -> float:
    """Mean decode step of ``batch`` equal requests over their outputs."""
    return 1e3 * sum(PROFILE.decode_step_s(batch, batch * (801 + k)) for k in range(100)) / 100


def test_one_request_at_a_time_takes_its_prefill_and_its_steps() -> None:
    got = simulate_load(Deployment(PROFILE), LOAD)
    assert got.ttft_ms == pytest.approx(PROFILE.request_ms + PROFILE.prefill_s(800) * 1e3, rel=1e-6)
    assert got.tpot_ms == pytest.approx(steps_ms(), rel=1e-6)


def test_a_pair_adds_the_transfer_and_decodes_by_the_decode_workers_profile() -> None:
    slow = make_profile(decode=PROFILE.decode, prefill=PROFILE.prefill, kv_bytes_per_token=1)
    got = simulate_load(Deployment(make_profile(request_ms=40.0, kv_bytes_per_token=1), 1, slow, 1), LOAD)
    alone = PROFILE.request_ms + PROFILE.prefill_s(800) * 1e3
    assert got.ttft_ms == pytest.approx(alone, abs=1e3 * TRANSFER_LATENCY_S + 0.1)
    assert got.tpot_ms == pytest.approx(steps_ms(), abs=1e3 * TRANSFER_LATENCY_S / 100 + 0.01)


def test_requests_in_flight_share_steps_and_wait_for_one_another() -> None:
    alone, four = (simulate_load(Deployment(PROFILE), Load(800, 101, flight)) for flight in (1, 4))
    assert four.ttft_ms > alone.ttft_ms
    assert four.tpot_ms >= steps_ms(4)


def test_sizes_are_drawn_between_the_shortest_and_the_longest() -> None:
    exact, spread = (simulate_load(Deployment(PROFILE), Load(800, 101, 1, shortest)) for shortest in (1.0, 0.5))
    assert 0.6 * exact.ttft_ms < spread.ttft_ms < exact.ttft_ms
    again = simulate_load(Deployment(PROFILE), Load(800, 101, 1, 0.5))
    assert again == spread
