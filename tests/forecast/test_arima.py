"""ARIMA beside the other baselines: it never looks ahead, and finds what a series holds."""

import numpy as np
import pytest

from prorsa.clock import nanoseconds
from prorsa.forecast.windows import Observer, Point, Window

pytest.importorskip("statsforecast", reason="the baselines extra is not installed")
from prorsa.arima import ARIMA, EVERY, FIRST_FIT, add_arima

pytestmark = pytest.mark.slow

SECONDS = 200
H = 5.0


def swinging(seed=0):
    """A series that comes back to its mean slowly: what came last is worth little five seconds on."""
    rng = np.random.default_rng(seed)
    x = [0.0]
    for _ in range(SECONDS - 1):
        x.append(-0.7 * x[-1] + rng.normal())
    return 1000.0 + 100.0 * np.array(x)


def run(series, known=0.0):
    """A run with this series of prefill tokens, and its settled windows."""
    observer = Observer((H,))
    observer.ticks_s = [float(second) for second in range(1, SECONDS + 1)]
    observer.series = {target: list(series) for target in observer.series}
    windows = []
    for at in range(SECONDS - int(H)):
        arrived = float(np.sum(series[at + 1 : at + 1 + int(H)]))
        for target in ("prefill", "decode_admission"):
            observer.known[target, H, nanoseconds(at + 1)] = known
            last = Point(series[at] * H, series[at] * H)
            windows.append(Window(target, H, float(at + 1), "steady", 9, arrived, arrived, {"last": last}))
    add_arima(observer, windows)
    return windows


def told(windows, target="prefill"):
    return {w.tick_s: w.forecasts[ARIMA] for w in windows if w.target == target and ARIMA in w.forecasts}


@pytest.fixture(scope="module")
def windows():
    return run(swinging())


def test_it_speaks_every_fifth_second_from_its_first_fit_on(windows):
    assert list(told(windows)) == [float(t + 1) for t in range(FIRST_FIT, SECONDS - int(H), EVERY)]


def test_it_finds_a_series_that_swings(windows):
    spoken = [w for w in windows if ARIMA in w.forecasts]
    own, last = (sum(abs(w.forecasts[name].total - w.actual) for w in spoken) for name in (ARIMA, "last"))
    assert own < 0.7 * last


def test_it_never_looks_ahead(windows):
    changed = swinging()
    changed[150:] *= 3.0
    before = {tick: point for tick, point in told(run(changed)).items() if tick <= 150.0}
    assert before
    assert before == {tick: told(windows)[tick] for tick in before}


def test_prefill_has_its_backlog_on_top_and_admissions_have_their_queue_within(windows):
    with_known = run(swinging(), known=2000.0)
    for tick, point in told(with_known).items():
        assert point.total == pytest.approx(told(windows)[tick].total + 2000.0)
        assert point.arrivals == pytest.approx(told(windows)[tick].arrivals)
    for tick, point in told(with_known, "decode_admission").items():
        assert point.total == pytest.approx(told(windows, "decode_admission")[tick].total)
        assert point.arrivals == pytest.approx(max(point.total - 2000.0, 0.0))
