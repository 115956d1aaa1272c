"""The baselines on series whose forecast is known."""

import numpy as np
import pytest

from prorsa.forecast.baselines import BaselineSet, Ewma, KalmanLocalLevel, LastValue


def test_last_value_repeats_the_last_horizon():
    last = LastValue(60.0)
    for value in range(100):
        last.update(float(value), 1.0)
    assert last.over(5.0) == 95 + 96 + 97 + 98 + 99
    assert last.over(60.0) == sum(range(40, 100))


def test_last_value_scales_a_short_series_up():
    last = LastValue(60.0)
    last.update(10.0, 1.0)
    last.update(20.0, 1.0)
    assert last.over(10.0) == 150.0


def test_last_value_keeps_no_more_than_it_needs():
    last = LastValue(30.0)
    for _ in range(10_000):
        last.update(1.0, 1.0)
    assert len(last._sums) < 100
    assert last.over(30.0) == 30.0


def test_ewma_halves_after_its_half_life():
    ewma = Ewma(half_life_s=10.0)
    for _ in range(1000):
        ewma.update(100.0, 1.0)
    assert ewma.over(1.0) == pytest.approx(100.0)
    for _ in range(10):
        ewma.update(0.0, 1.0)
    assert ewma.over(1.0) == pytest.approx(50.0)


def test_ewma_starts_at_its_first_values():
    ewma = Ewma(half_life_s=20.0)
    ewma.update(40.0, 1.0)
    ewma.update(60.0, 1.0)
    assert ewma.over(2.0) == pytest.approx(100.0, rel=0.02)


def test_kalman_gain_is_that_of_the_stationary_filter():
    """For noise ratio q the stationary gain solves k^2 / (1 - k) = q."""
    ratio = 0.04
    kalman = KalmanLocalLevel(ratio)
    for _ in range(500):
        kalman.update(100.0, 1.0)
    kalman.update(200.0, 1.0)
    gain = (kalman.over(1.0) - 100.0) / 100.0
    assert gain**2 / (1 - gain) == pytest.approx(ratio, rel=1e-6)


def test_all_get_the_same_backlog():
    baselines = BaselineSet("prefill", 60.0)
    assert baselines.over(5.0, 700.0) == {"last": 700.0, "ewma": 700.0, "kalman": 700.0}
    rng = np.random.default_rng(1)
    for value in rng.poisson(50.0, 200):
        baselines.update(float(value), 1.0)
    without, with_backlog = baselines.over(15.0), baselines.over(15.0, 700.0)
    assert {name: with_backlog[name] - without[name] for name in without} == pytest.approx(
        dict.fromkeys(without, 700.0)
    )
    baselines.update(1e9, 0.0)
    assert baselines.over(15.0) == without
