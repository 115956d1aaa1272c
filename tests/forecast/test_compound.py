"""Sums of heavy-tailed sizes against Monte Carlo, and the correction of quantiles."""

import numpy as np
import pytest

from prorsa.forecast.calibration import Calibrator, Raw
from prorsa.forecast.compound import compound_quantiles
from prorsa.forecast.models import SIZE_GRID

Q = np.array([0.1, 0.5, 0.9])
SIZES = (SIZE_GRID.edges[:-1] + SIZE_GRID.edges[1:]) / 2


def counts_of(sizes, expected):
    shares = np.bincount(SIZE_GRID.indices(sizes), minlength=SIZE_GRID.bins) / len(sizes)
    return shares * expected


@pytest.mark.parametrize("expected", [1.0, 8.0, 60.0])
def test_quantiles_are_those_of_many_draws(expected):
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.normal(6.6, 1.5, 50_000))
    found = compound_quantiles(counts_of(sizes, expected)[None], SIZES, Q)[0]
    draws = np.array([rng.choice(sizes, n).sum() for n in rng.poisson(expected, 20_000)])
    truth = np.quantile(draws, Q)
    mean = sizes.mean() * expected
    assert found == pytest.approx(truth, abs=0.04 * mean)


def test_the_median_of_a_rare_giant_is_not_its_mean():
    """2 % of the arrivals carry half of the tokens: the median of a few arrivals lies well below the mean."""
    counts = np.zeros(SIZE_GRID.bins)
    counts[SIZE_GRID.index(700.0)], counts[SIZE_GRID.index(50_000.0)] = 9.8, 0.2
    low, middle, high = compound_quantiles(counts[None], SIZES, Q)[0]
    mean = float(counts @ SIZES)
    assert middle < 0.6 * mean
    assert low < middle < high


def test_nothing_expected_is_nothing():
    assert compound_quantiles(np.zeros((2, SIZE_GRID.bins)), SIZES, Q) == pytest.approx(np.zeros((2, 3)))


def test_the_correction_finds_bias_and_coverage_though_scores_come_late():
    rng = np.random.default_rng(2)
    calibrator, late, inside, errors = Calibrator(5.0), [], [], []
    for step in range(12_000):
        raw = Raw(1000.0, 500.0, 20.0, 20.0, 500.0)
        said = calibrator.correct(raw)
        arrivals = 800.0 + rng.normal(0.0, 150.0)
        late.append((raw, said, 1000.0 + arrivals, arrivals))
        if step >= 200:
            calibrator.settle(*late[step - 200])
        if step >= 6000:
            inside.append(said.p10 <= 1000.0 + arrivals <= said.p90)
            errors.append(said.p50_arrivals - 800.0)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)
    assert abs(np.mean(errors)) < 40.0
    assert np.std(errors) < 40.0


def test_corrected_quantiles_keep_their_order_and_stay_positive():
    calibrator = Calibrator(1.0)
    for _ in range(500):
        raw = Raw(0.0, 10.0, 8.0, 8.0, 9.0)
        calibrator.settle(raw, calibrator.correct(raw), 1000.0, 1000.0)
    said = calibrator.correct(Raw(5.0, 10.0, 40.0, 8.0, 9.0))
    assert 0.0 <= said.p10 <= said.p50 <= said.p90
