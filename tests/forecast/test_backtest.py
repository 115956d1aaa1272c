"""Phases, windows and measures of a backtest against cases worked out by hand, and on a small rollout."""

import pytest

from prorsa import events as ev
from prorsa.backtest import sample_ticks
from prorsa.clock import nanoseconds
from prorsa.forecast.backtest import backtest, report
from prorsa.forecast.measures import Comparison, Errors, by_live, by_phase, summaries
from prorsa.forecast.phases import PhaseTracker
from prorsa.forecast.windows import LIFECYCLE, Observer, Point, Window
from tests.forecast.streams import Rollout

STREAM = Rollout(trajectories=60, limit=20, turns=5, seed=11).run()


def stamped(t_s, event):
    return ev.Stamped(1, nanoseconds(t_s), "test", 0, 0, event)


def window(actual=100.0, arrivals=60.0, target="prefill", phase="steady", live=10, **forecasts):
    return Window(target, 15.0, 5.0, phase, live, actual, arrivals, forecasts)


# --- phases ---------------------------------------------------------------------------------------------------------


def test_a_run_starts_then_is_steady_then_drains():
    phases = PhaseTracker()
    phases.observe(stamped(10.0, ev.RunBegin()))
    assert phases.at(11.0, 40) == "start"
    assert phases.at(129.9, 40) == "start"
    assert phases.at(130.0, 37) == "steady"
    assert phases.at(131.0, 36) == "steady"
    assert phases.at(132.0, 35) == "drain"


@pytest.mark.parametrize("event", [ev.StepBegin(step=1), ev.WeightsUpdateEnd(version="2")])
def test_two_minutes_after_a_step_or_an_update_are_a_phase_and_the_count_begins_anew(event):
    phases = PhaseTracker()
    phases.observe(stamped(0.0, ev.RunBegin()))
    assert phases.at(100.0, 100) == "start"
    assert phases.at(200.0, 3) == "drain"
    phases.observe(stamped(300.0, event))
    assert phases.at(301.0, 20) == "sync"
    assert phases.at(419.9, 20) == "sync"
    assert phases.at(420.0, 19) == "steady"
    assert phases.at(421.0, 17) == "drain"


# --- measures -------------------------------------------------------------------------------------------------------


def test_errors_are_shares_of_what_came():
    errors = Errors()
    errors.add(window(100.0, 60.0), Point(80.0, 50.0, 70.0, 90.0, 85.0))
    errors.add(window(300.0, 140.0), Point(330.0, 160.0, 200.0, 400.0, 350.0))
    told = errors.summary()
    assert told["wape"] == pytest.approx((20 + 30) / 400)
    assert told["wape_arrivals"] == pytest.approx((10 + 20) / 200)
    assert told["bias"] == pytest.approx((-15 + 50) / 400)
    assert told["coverage_80"] == 0.5
    # Of the first: 0.1 x 30, 0.5 x 20, 0.9 x 10; of the second: 0.1 x 100, 0.5 x 30, 0.1 x 100.
    assert told["pinball"] == pytest.approx((3 + 10 + 9 + 10 + 15 + 10) / 3 / 400)


def test_forecasts_without_quantiles_have_errors_but_no_coverage():
    errors = Errors()
    errors.add(window(), Point(90.0, 50.0))
    told = errors.summary()
    assert told["wape"] == pytest.approx(0.1)
    assert told["bias"] is told["coverage_80"] is told["pinball"] is None


def test_windows_without_demand_are_counted_apart_and_a_level_has_no_arrivals():
    cell = Comparison()
    cell.add(window(0.0, 0.0, own=Point(50.0, 50.0)))
    cell.add(window(100.0, 100.0, "kv_need", own=Point(50.0, 50.0)))
    assert cell.empty == 1
    assert cell.errors["own"].summary()["wape"] == pytest.approx(0.5)
    assert cell.errors["own"].summary()["wape_arrivals"] is None


def test_sums_of_runs_merge_to_the_sums_of_all():
    first = [window(100.0 + i, own=Point(90.0, 50.0, 80.0, 110.0, 95.0)) for i in range(5)]
    second = [window(0.0), *(window(200.0, own=Point(10.0 * i, 0.0)) for i in range(3))]
    merged, whole = Comparison(), Comparison()
    for part in (first, second):
        one = Comparison()
        for item in part:
            one.add(item)
            whole.add(item)
        merged.merge(one)
    assert merged.empty == whole.empty == 1
    assert merged.errors["own"].summary() == pytest.approx(whole.errors["own"].summary())


def test_transients_are_the_phases_that_are_not_steady():
    windows = [window(phase=phase, own=Point(90.0, 60.0)) for phase in ("start", "sync", "drain", "steady", "steady")]
    groups = by_phase(windows)
    counts = {name: cells["prefill", "15"].errors["own"].windows for name, cells in groups.items()}
    assert counts == {"start": 1, "sync": 1, "drain": 1, "steady": 2, "transient": 3, "all": 5}


def test_concurrency_is_grouped_in_octaves():
    windows = [window(live=live, own=Point(1.0, 1.0)) for live in (0, 1, 2, 33, 64, 65)]
    assert list(by_live(windows)) == ["0-1", "2-2", "33-64", "65-128"]


def test_the_oracle_is_asked_evenly_over_each_phase_where_all_horizons_have_settled():
    def at(tick_s, phase, horizons=(5.0, 15.0)):
        return [Window("prefill", h, tick_s, phase, 9, 10.0, 5.0, {}) for h in horizons]

    windows = [row for tick in range(10) for row in at(float(tick), "start")]
    windows += [row for tick in range(10, 14) for row in at(float(tick), "steady")]
    windows += at(14.0, "drain", horizons=(5.0,))
    assert sample_ticks(windows, 2) == [2.0, 7.0, 11.0, 13.0]
    assert sample_ticks(windows, 1) == [5.0, 12.0]
    assert sample_ticks(windows, 0) == []


# --- runs -----------------------------------------------------------------------------------------------------------


def observed(rows=STREAM, horizons=(5.0, 15.0)):
    observer = Observer(horizons)
    observer.feed(rows)
    return observer, observer.finish()


def test_windows_agree_with_the_scores_of_the_run():
    observer, windows = observed()
    scores, cells = observer.predictor.scores.summary(), by_phase(windows)["all"]
    for (target, horizon), cell in cells.items():
        told, own = scores[target][horizon], cell.summary()
        assert own["windows"] == told["windows"]
        assert own["empty"] == told["empty"]
        for name in ("wape", "wape_arrivals", "bias", "coverage_80"):
            assert own["forecasts"][LIFECYCLE][name] == pytest.approx(told[name])
        for name in ("last", "ewma", "kalman"):
            assert own["forecasts"][name]["wape"] == pytest.approx(told[name])


def test_baselines_are_scored_on_arrivals_by_what_they_add_to_the_backlog():
    observer, windows = observed()
    for item in windows:
        known = observer.known.get((item.target, item.horizon_s, nanoseconds(item.tick_s)), 0.0)
        for name in ("last", "ewma", "kalman"):
            point = item.forecasts[name]
            assert point.arrivals == pytest.approx(max(point.total - known, 0.0))


def test_the_series_has_a_value_for_each_tick():
    observer, _ = observed()
    assert observer.ticks_s == [float(s) for s in range(int(observer.ticks_s[0]), int(observer.ticks_s[-1]) + 1)]
    assert all(len(series) == len(observer.ticks_s) for series in observer.series.values())
    arrived = sum(observer.series["prefill"])
    prompts = sum(row.event.new_tokens or 0 for row in STREAM if isinstance(row.event, ev.LlmSubmit))
    assert arrived == pytest.approx(prompts, rel=0.01)


def test_a_backtest_pools_runs():
    one, two = backtest([STREAM], (5.0,)), backtest([STREAM, STREAM], (5.0,))
    assert two["prefill"]["5"]["windows"] == 2 * one["prefill"]["5"]["windows"]
    assert two["prefill"]["5"]["wape"] == pytest.approx(one["prefill"]["5"]["wape"])


def test_a_report_compares_forecasts_where_all_of_them_spoke():
    observer, windows = observed()
    scored = [item for item in windows if item.actual > 0]
    for item in scored[::7]:
        item.forecasts["oracle"] = Point(item.actual, item.actual_arrivals)
    told = report([(observer, windows)], (5.0, 15.0))
    whole, sampled = (summary["all"]["prefill"]["15"] for summary in (told["phases"], told["sampled"]))
    assert 0 < sampled["windows"] < whole["windows"]
    assert sampled["forecasts"]["oracle"]["wape"] == 0.0
    assert sampled["forecasts"].keys() == {LIFECYCLE, "last", "ewma", "kalman", "oracle"}
    assert summaries(by_phase(windows)["all"]) == told["phases"]["all"]
