"""Sums by horizon and their quantiles: what is certain, what a burst brings, what is known less well."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.forecast.horizons import LATER_ERROR, SIZES, Z90, arrived, by_horizon, upto, widen

H = 3
NONE = np.zeros(H)
SECONDS = np.array([4, 14, 29])
TOKENS = st.floats(0.0, 1e6)


def quantiles_of(spread, counts, **changes):
    given_ = {"mean": counts @ SIZES, "sure": NONE, "burst": NONE, "burst_by": NONE, "later": NONE} | changes
    return arrived(np.asarray(spread), counts, *given_.values())


def counts_of(size):
    counts = np.zeros((H, len(SIZES)))
    counts[:, size] = [1.0, 2.0, 4.0]
    return counts


@settings(deadline=None)  # the first example compiles
@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_a_wider_sum_keeps_its_median_and_its_order(middle, below, above, deviation):
    narrow = np.tile([middle - below, middle, middle + above], (H, 1))
    wide = widen(narrow, np.full(H, deviation))
    assert wide[:, 1] == pytest.approx(narrow[:, 1])
    assert np.all(wide[:, 0] <= narrow[:, 0] + 1e-6)
    assert np.all(wide[:, 2] >= narrow[:, 2] - 1e-6)
    assert wide[:, 2] - middle == pytest.approx(np.full(H, np.hypot(above, Z90 * deviation)), abs=1e-3)


def test_what_comes_for_certain_and_what_is_rounded_leave_the_mean_as_it_is():
    """Sizes are those of bins: the random part is scaled to what of the mean is not certain."""
    counts = counts_of(20)
    spread = np.outer(counts @ SIZES, [0.5, 1.0, 2.0])
    mean = 1.1 * (counts @ SIZES) + 1000.0
    said = quantiles_of(spread, counts, mean=mean, sure=np.full(H, 1000.0))
    assert said[:, 1] == pytest.approx(mean)
    assert said[:, 2] - 1000.0 == pytest.approx(2.0 * (mean - 1000.0))


def test_a_burst_is_in_the_quantiles_that_it_is_likelier_than():
    chance = np.array([0.05, 0.3, 0.95])
    said = quantiles_of(np.zeros((H, 3)), np.zeros((H, len(SIZES))), burst=8000.0 * chance, burst_by=chance)
    assert said.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 8000.0], [8000.0, 8000.0, 8000.0]]


def test_what_comes_later_is_known_less_well():
    later = np.array([0.0, 100.0, 1000.0])
    said = quantiles_of(np.zeros((H, 3)), np.zeros((H, len(SIZES))), later=later)
    assert said[:, 2] == pytest.approx(Z90 * LATER_ERROR * later)
    assert said[:, 0] == pytest.approx(-said[:, 2])


def test_horizons_end_with_their_last_seconds():
    rng = np.random.default_rng(1)
    rows = [rng.uniform(0.0, 10.0, (3, 30)) for _ in range(6)]
    come = by_horizon(*rows, SECONDS)
    for row, sums in zip(rows, come[:6], strict=True):
        assert sums == pytest.approx(np.stack([row[:, : last + 1].sum(axis=1) for last in SECONDS], axis=1))
    assert upto(np.stack([come.requests, come.tokens]), SECONDS) == pytest.approx(sum(come[:6])[:2])
