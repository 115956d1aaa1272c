"""Fitting terms: known coefficients come back, tables never fall."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import Fit, prefill_tokens_ms
from prorsa.cluster.profiling.terms import fit_decode, fit_prefill, tabulate

some_ms = st.floats(1.0, 60.0)


@given(a=some_ms, b=st.floats(0.005, 0.1), c=st.floats(2e-7, 3e-5), d=st.floats(2e-7, 3e-5))
@settings(max_examples=20, deadline=None)
def test_prefill_terms_come_back(a: float, b: float, c: float, d: float) -> None:
    source = Fit(a_ms=a, b_ms=b, c_ms=c, d_ms=d, window_tokens=2048)
    found, error = fit_prefill(lambda n, p: a + prefill_tokens_ms(source, n, p), 4096, 131_072, 2048)
    assert error.largest < 1e-3
    assert (found.a_ms, found.b_ms, found.c_ms, found.d_ms) == pytest.approx((a, b, c, d), rel=0.02)


@given(a=some_ms, b=st.floats(0.005, 0.3), c=st.floats(5e-6, 2e-4))
@settings(max_examples=20, deadline=None)
def test_decode_terms_come_back(a: float, b: float, c: float) -> None:
    found, error = fit_decode(lambda batch, context: a + b * batch + c * batch * context, 256, 800_000)
    assert error.largest < 1e-3
    assert (found.a_ms, found.b_ms, found.c_ms) == pytest.approx((a, b, c), rel=0.02)


def test_only_batches_that_fit_the_kv_are_asked() -> None:
    asked: list[tuple[int, int]] = []

    def answer_ms(batch: int, context: int) -> float:
        asked.append((batch, context))
        return 10.0 + batch

    fit_decode(answer_ms, 64, 100_000)
    assert asked
    assert all(batch <= 64 and batch * context <= 100_000 for batch, context in asked)


def test_no_term_is_negative_where_the_source_falls() -> None:
    found, error = fit_prefill(lambda n, p: 50.0 - n / 1000, 8192, 131_072)
    assert found.b_ms == found.c_ms == 0.0
    assert error.largest > 0.01


def test_a_table_never_falls_and_ends_where_it_should() -> None:
    answers = {8: 5.0, 16: 9.0, 32: 7.0, 64: 20.0, 100: 30.004}
    assert tabulate(answers.__getitem__, 8, 100) == ((8, 5.0), (16, 9.0), (32, 9.0), (64, 20.0), (100, 30.0))
