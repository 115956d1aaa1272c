"""The page of results says what the sums in the results file say."""

import pytest

from benchmarks import forecast_page


def sums(missed, actual=100.0):
    return {
        "windows": 1, "actual": actual, "actual_arrivals": actual, "missed": missed, "missed_arrivals": missed,
        "spread": 10, "spread_actual": actual, "over": 3.0, "covered": 8, "pinball": 2.0,
    }  # fmt: skip


def row(seed, own, oracle, best=40.0):
    cell = {"lifecycle": sums(own), "ewma": sums(best), "kalman": sums(best + 5), "last": sums(best + 9)}
    cells = {f"{target}/{horizon}": cell for target in forecast_page.TARGETS for horizon in forecast_page.HORIZONS}
    asked = {name: {**forecasts, "oracle": sums(oracle)} for name, forecasts in cells.items()}
    return {
        "key": f"grid/v32-general-async/512x8/{seed}",
        "ticks": [1.0],
        "until_s": 600.0,
        "phases": {"transient": cells, "steady": cells, "all": cells},
        "sampled": {"transient": asked},
    }


@pytest.mark.parametrize(
    ("own", "oracle", "told"),
    [
        (25.0, 10.0, "| 40.0 % (ewma) | 25.0 % | 10.0 % | 50 % | ✓ |"),
        (26.0, 10.0, "| 40.0 % (ewma) | 26.0 % | 10.0 % | 47 % | ✗ |"),
        # A gap of under a point: at most 2 % above the better of the two.
        (40.0, 39.5, "| 40.0 % (ewma) | 40.0 % | 39.5 % | – | ✓ |"),
        (41.0, 39.5, "| 40.0 % (ewma) | 41.0 % | 39.5 % | – | ✗ |"),
    ],
)
def test_half_of_the_gap_passes(own, oracle, told):
    page = forecast_page.page([row(0, own, oracle)], [], [], [], [])
    assert told in page


def test_runs_are_pooled_and_ratios_paired():
    page = forecast_page.page([row(0, 20.0, 10.0), row(1, 30.0, 10.0)], [], [], [], [])
    assert "| 40.0 % (ewma) | 25.0 % | 10.0 % | 50 % | ✓ |" in page
    # Ratios 0.5 and 0.75: geometric mean 0.61, and with two of them an interval that says little.
    assert "0.61 (0.05–8.06)" in page
    assert "+3.0 %" in page
    assert "80.0 %" in page


def test_a_page_says_what_was_run():
    asked = {"key": "oracle/v32-general-async/512x8/0", "ticks": [1.0, 2.0], "futures": 200}
    page = forecast_page.page([row(0, 20.0, 10.0)], [asked], [], [], [])
    assert "| v32-general-async | 512 on 8 | 1 | 600 s | 2 | – | 200 |" in page


def test_a_page_without_results_says_what_to_run():
    page = forecast_page.page([], [], [], [], [])
    for part in ("grid", "sessions", "perturb", "buys"):
        assert f"python -m benchmarks.forecast {part}" in page
