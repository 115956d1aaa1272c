"""Sums of heavy-tailed sizes against Monte Carlo, and the correction of quantiles."""

import numpy as np
import pytest

from prorsa.forecast.calibration import Combiners, Kind, Outcome, Raw
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


class Combiner:
    """The only one of its kind."""

    def __init__(self, horizon_s, series, *, whole=False):
        self._all = Combiners([Kind(horizon_s, whole=whole)], series)

    def correct(self, raw):
        return self._all.correct([0], [raw])[0]

    def learn(self, said, actual, after_s):
        self._all.learn([Outcome(0, said, actual, after_s)])


def settle_late(combiner, draws, delay):
    """Forecasts of (raw, actual arrivals), each settled ``delay`` forecasts later; returns what was said."""
    said = []
    for step, (raw, _) in enumerate(draws):
        said.append(combiner.correct(raw))
        if step >= delay:
            past, arrivals = draws[step - delay]
            combiner.learn(said[step - delay], past.known + arrivals, delay)
    return said


def test_widths_come_right_though_scores_come_late():
    rng = np.random.default_rng(2)
    draws = [(Raw(1000.0, 800.0, 20.0, 20.0, (1800.0,)), 800.0 + rng.normal(0.0, 150.0)) for _ in range(12_000)]
    said = settle_late(Combiner(5.0, 1), draws, delay=200)
    inside = [one.p10 <= 1000.0 + draw[1] <= one.p90 for one, draw in zip(said, draws, strict=True)]
    assert np.mean(inside[6000:]) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("off", [0.3, 0.8])
@pytest.mark.parametrize("best", range(4))
def test_the_combination_is_nearly_as_good_as_its_best_part(best, off):
    """Whoever is right, and however far off the others are."""
    rng = np.random.default_rng(best)
    draws = []
    for _ in range(800):
        truth = float(np.exp(rng.normal(6.0, 0.3)))
        points = [truth * off] * 4
        points[best] = truth * float(np.exp(rng.normal(0.0, 0.02)))
        draws.append((Raw(0.0, points[0], 1.0, 1.0, tuple(points[1:])), truth))
    said = settle_late(Combiner(1.0, 3), draws, delay=15)
    errors = [abs(one.p50 / draw[1] - 1.0) for one, draw in zip(said, draws, strict=True)]
    assert np.mean(errors[400:]) < 0.02 + 0.12 * (1.0 - off)


def test_a_forecast_that_sees_a_change_coming_is_not_averaged_away():
    """At steady state the series are as good; before the burst, of which they know nothing, they have no say."""
    combiner = Combiner(15.0, 3)
    steady = [(Raw(0.0, 100.0, 5.0, 5.0, (101.0, 99.0, 100.0)), 100.0)] * 600
    settle_late(combiner, steady, delay=15)
    burst = combiner.correct(Raw(0.0, 900.0, 50.0, 50.0, (101.0, 99.0, 100.0), transient=True))
    assert burst.p50 > 850.0


def test_in_a_steady_phase_a_wrong_forecast_is_left_within_a_few_windows():
    """Whatever it was worth in the transient before: a third too high, beside series that are right within a tenth."""
    rng = np.random.default_rng(5)
    combiner = Combiner(15.0, 3)

    def run(seconds, off, *, transient):
        draws = []
        for _ in range(seconds):
            truth = 100.0 * float(np.exp(rng.normal(0.0, 0.1)))
            draws.append((Raw(0.0, off * 100.0, 5.0, 5.0, (100.0, 100.0, 100.0), transient), truth))
        said = settle_late(combiner, draws, delay=15)
        return np.array([one.p50 for one in said])

    run(120, 1.0, transient=True)
    assert run(120, 1.33, transient=False)[60:].mean() == pytest.approx(100.0, rel=0.07)


def test_a_forecast_that_is_short_on_average_is_mended():
    """No series is right, and the forecast says two thirds of what comes: what it is short of is made up for."""
    rng = np.random.default_rng(6)
    draws = []
    for _ in range(900):
        truth = float(np.exp(rng.normal(6.0, 0.5)))
        draws.append((Raw(500.0, truth / 1.5, 20.0, 20.0, (600.0, 600.0, 600.0)), truth))
    said = settle_late(Combiner(15.0, 3), draws, delay=15)
    arrivals = sum(draw[1] for draw in draws[450:])
    assert sum(one.p50_arrivals for one in said[450:]) == pytest.approx(arrivals, rel=0.1)


@pytest.mark.parametrize("whole", [False, True])
def test_a_known_part_that_is_not_known_any_better_is_mended_too(whole):
    """Nothing arrives, and of what waits a third more comes than is said; nobody else is right."""
    rng = np.random.default_rng(7)
    draws = []
    for _ in range(900):
        comes = float(np.exp(rng.normal(6.0, 0.5)))
        draws.append((Raw(comes / 1.33, 0.0, 20.0, 20.0, (2000.0, 2000.0, 2000.0)), comes - comes / 1.33))
    said = settle_late(Combiner(15.0, 3, whole=whole), draws, delay=15)
    comes = sum(raw.known + more for raw, more in draws[450:])
    assert (sum(one.p50 for one in said[450:]) == pytest.approx(comes, rel=0.1)) is whole


def test_what_a_series_says_beyond_a_queue_that_is_not_known_any_better_does_not_all_arrive():
    """Nothing is expected to arrive, and a series that is right says more than the forecast of what waits."""
    raw = Raw(1000.0, 0.0, 20.0, 20.0, (1400.0, 1400.0, 1400.0))
    for whole in (True, False):
        combiner = Combiner(15.0, 3, whole=whole)
        settle_late(combiner, [(raw, 400.0)] * 300, delay=15)
        said = combiner.correct(raw)
        assert said.p50 == pytest.approx(1400.0, rel=0.05)
        assert said.p50_arrivals == pytest.approx(0.0 if whole else 400.0, rel=0.2)


def test_corrected_quantiles_keep_their_order_and_stay_positive():
    combiner = Combiner(1.0, 1)
    for _ in range(500):
        raw = Raw(0.0, 10.0, 8.0, 8.0, (9.0,))
        combiner.learn(combiner.correct(raw), 1000.0, 1.0)
    said = combiner.correct(Raw(5.0, 10.0, 40.0, 8.0, (9.0,)))
    assert 0.0 <= said.p10 <= said.p50 <= said.p90
