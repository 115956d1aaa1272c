"""The bounded series behind the charts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.console.feeds import affordable_s
from prorsa.console.history import DemandHistory, DemandPoint, SplitHistory, WorkerHistory, resample
from prorsa.events import ForecastRow, Settled, Split, Stamped, WorkerView
from tests.console import story

ticks = st.lists(st.integers(min_value=0, max_value=500), min_size=1, max_size=80)


def row(value: float) -> ForecastRow:
    return ForecastRow("prefill", 15.0, "total", value, value * 0.8, value, value * 1.2)


def settled(tick_s: float, actual: float) -> Settled:
    return Settled("prefill", 15.0, nanoseconds(tick_s), actual, 0.0, 5.0, 4.0, 5.0, 6.0, 0.0, {})


@given(ticks)
def test_points_stay_in_the_order_of_time_whatever_order_they_come_in(seconds: list[int]) -> None:
    history = DemandHistory()
    for tick_s in seconds:
        history.forecast(nanoseconds(tick_s), row(tick_s))
    assert [point.t_s for point in history.points] == sorted(set(map(float, seconds)))


@given(ticks, st.integers(min_value=1, max_value=20))
def test_a_history_keeps_at_most_its_limit_and_the_newest(seconds: list[int], limit: int) -> None:
    history = DemandHistory(limit)
    for tick_s in sorted(seconds):
        history.forecast(nanoseconds(tick_s), row(tick_s))
    assert [point.t_s for point in history.points] == sorted(set(map(float, seconds)))[-limit:]


def test_an_actual_stands_at_its_tick_beside_the_forecast_made_then() -> None:
    history = DemandHistory()
    for tick_s in range(20):
        history.forecast(nanoseconds(tick_s), row(100.0 + tick_s))
    history.settle(settled(3.0, 111.0))
    point = history.points[3]
    assert (point.t_s, point.p50, point.actual) == (3.0, 5.0, 111.0)
    assert history.last_actual() is point
    assert history.points[4].actual is None


def test_a_settled_forecast_from_before_the_console_came_has_its_place() -> None:
    history = DemandHistory()
    history.forecast(nanoseconds(50), row(1.0))
    history.settle(settled(34.0, 9.0))
    assert [point.t_s for point in history.points] == [34.0, 50.0]


def test_a_window_has_both_its_ends() -> None:
    history = DemandHistory()
    for tick_s in range(10):
        history.forecast(nanoseconds(tick_s), row(tick_s))
    assert [point.t_s for point in history.window(3.0, 6.0)] == [3.0, 4.0, 5.0, 6.0]


def test_the_split_is_a_step_function_and_unknown_outside_of_what_was_seen() -> None:
    history = SplitHistory()
    for t_s, split in ((10, Split(4, 4)), (12, Split(4, 4)), (20, Split(5, 3)), (30, Split(5, 3))):
        history.add(t_s, split)
    assert len(history.times_s) == 2
    assert history.at(9.9) is None
    assert history.at(19.9) == Split(4, 4)
    assert history.at(30.0) == Split(5, 3)
    assert history.at(30.1) is None
    assert history.columns(0.0, 30.0, 3) == [Split(4, 4), Split(5, 3), Split(5, 3)]


@given(ticks, st.integers(min_value=1, max_value=60))
def test_resampling_neither_invents_values_nor_loses_the_ends(seconds: list[int], columns: int) -> None:
    points = [DemandPoint(float(t_s), p50=float(t_s)) for t_s in sorted(set(seconds))]
    sampled = resample(points, 0.0, 500.0, columns)
    assert len(sampled) == columns
    known = [point.p50 for point in sampled if point is not None]
    assert min(seconds) <= min(known)
    assert max(known) <= max(seconds)
    first = next(index for index, point in enumerate(sampled) if point is not None)
    assert first == min(int(min(seconds) / 500.0 * columns), columns - 1)


def test_a_hole_in_the_series_stays_a_hole() -> None:
    points = [DemandPoint(float(t_s), p50=1.0) for t_s in (*range(100), *range(400, 500))]
    sampled = resample(points, 0.0, 500.0, 50)
    assert sampled[5] is not None
    assert sampled[25] is None
    assert sampled[45] is not None
    assert sampled[45].actual is None


@pytest.mark.parametrize(("workers", "expected_s"), [(0, 1800.0), (8, 1800.0), (64, 1800.0), (512, 225.0)])
def test_a_console_asks_a_large_pool_for_less_of_the_past(workers: int, expected_s: float) -> None:
    rows = tuple(WorkerView(f"w{index}", "decode", "serving", 0) for index in range(workers))
    snapshot = [Stamped(1, 0, "t", 1, 0, story.view_at(1.0, workers=rows))] if workers else []
    assert affordable_s(1800.0, snapshot) == expected_s


def test_the_history_of_a_worker_keeps_every_late_point_and_some_of_the_early_ones() -> None:
    history = WorkerHistory(recent=10, older=4, older_every_s=5.0)
    for tick in range(60):
        rows = tuple(WorkerView(f"w{index}", "decode", "serving", 0, queued=tick) for index in range(12))
        history.add(float(tick), rows if tick != 55 else rows[:3])
    points = history.points("w11")
    early, late = [30.0, 35.0, 40.0, 45.0], [50.0, 51.0, 52.0, 53.0, 54.0, 56.0, 57.0, 58.0, 59.0]
    assert [t_s for t_s, _ in points] == early + late  # it was not there at 55 s
    assert history.series("w11", lambda worker: worker.queued, 6) == [54, None, 56, 57, 58, 59]
    assert history.points("w99") == []
