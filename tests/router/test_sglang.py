"""The pure parts of the SGLang client: spellings, replies, costs."""

import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.sglang.bootstrap import SPELLINGS, spell_host
from prorsa.cluster.sglang.costs import costs_between
from prorsa.cluster.sglang.replies import Loads, ServerInfo, decode_reply
from prorsa.errors import WorkerError


@given(st.ip_addresses(v=4).map(str), st.integers(0, 2 * SPELLINGS))
def test_every_spelling_of_an_address_is_that_address(host: str, number: int) -> None:
    assert socket.inet_ntoa(socket.inet_aton(spell_host(host, number))) == host


@given(st.integers(0, SPELLINGS - 1000))
def test_spellings_are_new(first: int) -> None:
    assert len({spell_host("10.0.0.7", first + life) for life in range(1000)}) == 1000
    assert spell_host("10.0.0.7", 0) == "10.0.0.7"


@given(st.integers(0, 10_000))
def test_a_name_keeps_its_letters(number: int) -> None:
    assert spell_host("worker-3.pool", number).lower() == "worker-3.pool"


def test_names_have_many_spellings() -> None:
    assert len({spell_host("localhost", life) for life in range(512)}) == 512


def test_what_cannot_be_spelled_otherwise_stays() -> None:
    assert spell_host("::1", 3) == "::1"


INFO = {
    "version": "0.5.23",
    "disaggregation_mode": "prefill",
    "max_total_num_tokens": 100,
    "dp_size": 2,
    "enable_pd_role_switch": True,
    "disaggregation_transfer_backend": "mooncake",
    "internal_states": [
        {
            "disaggregation_mode": "decode",
            "effective_max_running_requests_per_dp": 8,
            "decode_cuda_graph_memory_gb": 1.5,
        },
        {
            "disaggregation_mode": "decode",
            "effective_max_running_requests_per_dp": 8,
            "decode_cuda_graph_memory_gb": 1.25,
        },
    ],
    "something_new": 1,
}


def info(**fields: object) -> ServerInfo:
    return decode_reply(msgspec.json.encode({**INFO, **fields}), ServerInfo, "/server_info")


def test_a_worker_says_what_it_is() -> None:
    assert (info().launch_role, info().live_roles) == ("prefill", {"decode"})
    assert (info().kv_capacity, info().max_running, info().graph_memory_gb) == (200, 16, 1.5)
    assert info().why_not_flippable() is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"enable_pd_role_switch": False}, "--enable-pd-role-switch"),
        ({"disaggregation_transfer_backend": "nixl"}, "nixl"),
        ({"ep_size": 8}, "expert parallelism"),
        ({"speculative_algorithm": "EAGLE"}, "speculative"),
        ({"disaggregation_mode": "null"}, "--disaggregation-mode"),
    ],
)
def test_why_a_worker_cannot_flip(fields: dict[str, object], says: str) -> None:
    assert says in (info(**fields).why_not_flippable() or "")


def test_another_versions_reply_is_refused_with_the_field() -> None:
    old = {key: value for key, value in INFO.items() if key != "max_total_num_tokens"}
    with pytest.raises(WorkerError, match=r"max_total_num_tokens.*0\.5\.23"):
        decode_reply(msgspec.json.encode(old), ServerInfo, "/server_info")
    with pytest.raises(WorkerError, match="unknown"):
        assert info(disaggregation_mode="both").launch_role


def loads(steps: list[tuple[int, float]], *, prefill: tuple[int, int] = (0, 0)) -> Loads:
    """A report after decode steps of (batch, microseconds)."""
    moments = [
        float(len(steps)),
        sum(b for b, _ in steps),
        sum(t for _, t in steps),
        sum(b * b for b, _ in steps),
        sum(b * t for b, t in steps),
        sum(b for b, _ in steps),
    ]
    rank = {
        "num_running_reqs": 3,
        "num_waiting_reqs": 1,
        "num_used_tokens": 50,
        "max_total_num_tokens": 100,
        "num_waiting_uncached_tokens": 7,
        "total_prefill_uncached_tokens": prefill[0],
        "total_prefill_busy_us": prefill[1],
        "decode_moments": moments,
        "disaggregation": {"mode": "decode", "decode_prealloc_queue_reqs": 2, "decode_transfer_queue_reqs": 1},
    }
    return decode_reply(msgspec.json.encode({"loads": [rank, rank]}), Loads, "/v1/loads")


@given(
    st.floats(100, 10_000),
    st.floats(1, 500),
    st.lists(st.integers(1, 64), min_size=3, max_size=30).filter(lambda b: len(set(b)) > 1),
)
def test_the_cost_of_a_decode_step_is_found_from_sums(constant_us: float, slope_us: float, batches: list[int]) -> None:
    steps = [(batch, constant_us + slope_us * batch) for batch in batches]
    found = costs_between(loads([(1, 5.0)]), loads([(1, 5.0), *steps]))
    assert found.step_ms == pytest.approx(constant_us / 1e3, rel=1e-3)
    assert found.step_ms_per_request == pytest.approx(slope_us / 1e3, rel=1e-3)


def test_the_prefill_rate_comes_from_busy_time() -> None:
    found = costs_between(loads([], prefill=(1000, 10_000)), loads([], prefill=(3000, 510_000)))
    assert found.prefill_tokens_per_s == pytest.approx(4000.0)


def test_what_cannot_be_told_is_none() -> None:
    same = [(4, 900.0)] * 5
    assert costs_between(loads([]), loads(same)).step_ms is None
    restarted = costs_between(loads([], prefill=(500, 5)), loads([], prefill=(100, 1)))
    assert restarted.prefill_tokens_per_s is None


def test_loads_of_all_ranks_are_one_event() -> None:
    event = loads([(2, 100.0)], prefill=(30, 40)).as_event("w", epoch=3)
    assert (event.worker_id, event.role, event.epoch) == ("w", "decode", 3)
    assert (event.queued, event.running, event.queued_tokens) == (8, 6, 14)
    assert (event.kv_used, event.kv_capacity, event.kv_cached) == (100, 200, None)
    assert (event.prefill_tokens_total, event.output_tokens_total, event.busy_us_total) == (60, 4, 280)
