"""Corrections that rows ask for, and those that profiles without rows take over."""

import pytest

from prorsa.cluster.profile import Experts
from prorsa.cluster.profiling.bench import Deployment, simulate_load
from prorsa.cluster.profiling.catalogue import CARRIED, TRANSFERS
from prorsa.cluster.profiling.corrections import Corrections, corrected, fit_corrections, load_of
from prorsa.cluster.profiling.measured import Form, Pool, Row
from tests.sim.pools import make_profile

TRUE = Corrections(prefill=1.5, prefill_experts=1.5, decode=0.8, decode_experts=1.2, context=1.3, request_ms=60.0)
SOURCE = make_profile(
    kv_tokens=100_000,
    experts=Experts(prefill=((32, 5.0), (1000, 20.0)), decode=((1, 2.0), (4, 4.0), (16, 9.0))),
)


def measured(prompt: int, output: int, in_flight: int, by: Corrections) -> Row:
    """A row as the corrected profile would have given it."""
    row = Row("qwen3-32b", "toy", "bf16", "0", "agg", prompt, output, in_flight, 1.0, 1.0, mixed=Pool(Form(1), 1))
    got = simulate_load(Deployment(corrected(SOURCE, by)), load_of(row))
    return Row(
        "qwen3-32b", "toy", "bf16", "0", "agg", prompt, output, in_flight, got.ttft_ms, got.tpot_ms, mixed=row.mixed
    )


def test_rows_of_a_corrected_profile_are_met_by_the_corrections_found() -> None:
    rows = [measured(prompt, 30, flight, TRUE) for prompt in (300, 2_500) for flight in (1, 8)]
    found = fit_corrections(SOURCE, rows)
    for row in [*rows, measured(1_200, 60, 4, TRUE)]:
        got = simulate_load(Deployment(corrected(SOURCE, found)), load_of(row))
        assert got.ttft_ms == pytest.approx(row.ttft_ms, rel=0.05)
        assert got.tpot_ms == pytest.approx(row.tpot_ms, rel=0.05)


def test_what_is_taken_over_is_named_and_comes_from_another_form_of_the_same_gpus() -> None:
    by_name = {request.name: request for request in CARRIED}
    for name, transfer in TRANSFERS.items():
        assert by_name[name].system == by_name[transfer.source].system
        taken = transfer.of(TRUE)
        for field in Corrections.__dataclass_fields__:
            expected = getattr(TRUE if field in transfer.names else Corrections(), field)
            assert getattr(taken, field) == expected
