"""The predictor as its users see it: frames, determinism, bounds, and errors on rollouts whose future is known."""

import time
from itertools import pairwise

import numpy as np
import pytest

from prorsa import events as ev
from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.errors import ConfigError, InputError
from prorsa.forecast.backtest import backtest
from prorsa.forecast.predictor import ForecastConfig, Predictor, as_seen, with_totals
from tests.forecast.streams import Rollout, stamp

STREAM = Rollout(trajectories=40, limit=20, turns=5, seed=11).run()


def drive(rows, until_s=None, predictor=None):
    """Tick each second up to ``until_s`` (or past the last event); returns the frames and the predictor."""
    predictor = predictor or Predictor()
    frames, second = [], 1
    last_s = until_s or int(rows[-1].t_ns / NS_PER_S) + 1
    rows = iter(rows)
    row = next(rows, None)
    while second <= last_s:
        while row is not None and row.t_ns <= second * NS_PER_S:
            predictor.observe(row)
            row = next(rows, None)
        frames.append(predictor.tick(second * NS_PER_S))
        second += 1
    return frames, predictor


def totals(frames, target, horizon_s, source="total"):
    return np.array([frame.get(target, horizon_s, source).mean for frame in frames])


def test_a_frame_has_every_source_and_baseline():
    frame = drive(STREAM, 20)[0][-1]
    sources = {"sampler", "sandbox", "ready", "tool", "second", "retry", "arrivals", "total", "last", "ewma", "kalman"}
    for horizon_s in (5.0, 15.0, 30.0, 60.0):
        assert {row.source for row in frame.rows if (row.target, row.horizon_s) == ("prefill", horizon_s)} == sources
        for target in ("prefill", "decode_admission", "kv_need"):
            total = frame.get(target, horizon_s)
            assert 0.0 <= total.p10 <= total.p50 <= total.p90
        parts = sum(frame.get("prefill", horizon_s, s).mean for s in ("sampler", "sandbox", "ready", "tool", "second"))
        assert parts == pytest.approx(frame.get("prefill", horizon_s).mean)


def test_forecasts_grow_with_the_horizon():
    for frame in drive(STREAM, 25)[0]:
        for target in ("prefill", "decode_admission", "kv_need"):
            means = [frame.get(target, horizon_s).mean for horizon_s in (5.0, 15.0, 30.0, 60.0)]
            assert all(near <= far * (1 + 1e-9) for near, far in pairwise(means))


def test_an_unknown_row_names_what_there_is():
    frame = drive(STREAM, 3)[0][-1]
    with pytest.raises(InputError, match="5, 15, 30, 60 s"):
        frame.get("prefill", 7.0)


@pytest.mark.parametrize("options", [{"horizons_s": ()}, {"horizons_s": (0.5,)}, {"scored_s": (7.0,)}])
def test_bad_settings_are_refused(options):
    with pytest.raises(ConfigError):
        ForecastConfig(**options)


def test_an_empty_run_is_forecast_as_empty():
    frames, predictor = drive([], 10)
    assert all(frame.live_trajectories == 0 for frame in frames)
    assert all(row.mean == 0.0 for frame in frames for row in frame.rows)
    assert predictor.scores.summary()["prefill"]["5"]["wape"] is None


def test_equal_events_give_equal_frames():
    first, second = drive(STREAM)[0], drive(STREAM)[0]
    assert [ev.encode(list(frame.rows)) for frame in first] == [ev.encode(list(frame.rows)) for frame in second]
    assert [frame.settled for frame in first] == [frame.settled for frame in second]


def test_repeats_change_no_forecast():
    doubled = [row for row in STREAM for _ in (0, 1)]
    assert [frame.rows for frame in drive(doubled)[0]] == [frame.rows for frame in drive(STREAM)[0]]


def test_backlog_is_what_is_ready_and_not_prefilled():
    """Three prompts arrive at once at a server that takes a second for each."""
    rows = []
    for i in range(3):
        rid, name = ev.make_rid(f"r{i}", 0), f"t{i}"
        of = {"trajectory_id": name, "request_id": f"r{i}", "prompt_tokens": 900, "new_tokens": 900}
        rows.append((0.5, ev.TrajectoryReady(**of)))
        rows.append((0.5, ev.LlmSubmit(**of, attempt=0, turn=0)))
        rows.append((1.6 + i, ev.LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=0)))
    rows.append((2.0, ev.LlmProgress(worker_id="p", prefilled=((ev.make_rid("r1", 0), 400),))))
    rows.sort(key=lambda row: row[0])
    frames = drive(stamp(rows), 5)[0]
    assert [frame.backlog_tokens for frame in frames] == [2700.0, 1400.0, 900.0, 0.0, 0.0]
    assert [frame.get("prefill", 5.0, "ready").mean for frame in frames] == [2700.0, 1400.0, 900.0, 0.0, 0.0]
    assert [frame.decode_batch for frame in frames] == [0, 1, 2, 3, 3]


def test_an_ended_run_leaves_nothing_behind():
    frames, predictor = drive(STREAM)
    last_s = len(frames)
    for second in range(last_s + 1, last_s + 120):
        frame = predictor.tick(second * NS_PER_S)
    assert predictor.table.live == 0
    assert predictor.table.known_requests == 0
    assert (predictor.table.columns.state < 0).all()
    assert frame.backlog_tokens == frame.resident_kv_tokens == 0.0
    assert len(predictor._keeper._made) < 60


def test_memory_does_not_grow_with_the_length_of_a_run():
    def held(trajectories):
        rows = Rollout(trajectories=trajectories, limit=8, turns=3, seed=5).run()
        _, predictor = drive(rows)
        return predictor.table.columns.capacity, len(predictor._keeper._made), predictor.table.known_requests

    short, long = held(16), held(120)
    assert long[0] == short[0]
    assert long[1] < short[1] + 40
    assert long[2] <= 8 * 2 + 40


def test_a_sampler_that_is_about_to_dispatch_is_seen_before_any_request():
    rows = stamp(
        [(0.1, ev.SamplerState(mode="async", queued=50, in_flight=0, limit=10, expected_prompt_tokens=3000.0))]
    )
    frame = drive(rows, 1)[0][-1]
    assert frame.get("prefill", 60.0, "sampler").mean > 0.5 * 10 * 3000.0
    assert frame.get("prefill", 60.0, "ewma").mean == 0.0


def test_an_empty_sampler_dispatches_no_more():
    rows = Rollout(trajectories=20, limit=20, turns=3, seed=2).run()
    drained = ev.SamplerState(mode="async", queued=0, in_flight=20, limit=20)
    rows = [*stamp([(0.0, drained)], source="sampler"), *rows]
    frames = drive(rows)[0]
    assert all(frame.get("prefill", 60.0, "sampler").mean == 0.0 for frame in frames)


def step_events(step, begin_s, update_s):
    """A synchronous step of 8 one-turn trajectories, and the weight update after it."""
    sampler = ev.SamplerState(mode="sync", queued=80, in_flight=0, limit=8, batch_size=8)
    out = [(begin_s, sampler), (begin_s, ev.StepBegin(step=step))]
    for i in range(8):
        name, request = f"s{step}t{i}", f"s{step}r{i}"
        rid = ev.make_rid(request, 0)
        end_s = begin_s + 3.0 + i
        out += [
            (begin_s, ev.TrajectoryDispatched(trajectory_id=name, prompt_tokens=1000)),
            (begin_s, ev.TrajectoryReady(trajectory_id=name, request_id=request, prompt_tokens=1000, new_tokens=1000)),
            (
                begin_s,
                ev.LlmSubmit(trajectory_id=name, request_id=request, attempt=0, turn=0, prompt_tokens=1000),
            ),
            (begin_s + 0.5, ev.LlmAdmitted(rid=rid, worker_id="d", kv_tokens=1000)),
            (begin_s + 1.0, ev.LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=0)),
            (end_s, ev.LlmEnd(request_id=request, attempt=0, output_tokens=100, finish_reason="stop")),
            (end_s, ev.TrajectoryEnd(trajectory_id=name, status="completed")),
        ]
    over_s = begin_s + 11.0
    out += [
        (over_s, ev.StepEnd(step=step)),
        (over_s, ev.WeightsUpdateBegin(version=str(step), cache_flushed=True)),
        (over_s + update_s, ev.WeightsUpdateEnd(version=str(step), cache_flushed=True)),
    ]
    return out


def test_a_step_is_seen_coming_from_the_update_before_it():
    """No time series can know: nothing arrives for 31 s, and then everything at once."""
    update_s, steps = 20.0, 5
    rows = sorted((row for k in range(steps) for row in step_events(k, k * 31.0, update_s)), key=lambda row: row[0])
    frames = drive(stamp(rows))[0]
    begin_s = int((steps - 1) * 31.0)
    before = frames[begin_s - 8 - 1]
    assert before.get("prefill", 15.0).p50 == pytest.approx(8000.0, rel=0.2)
    assert before.get("prefill", 15.0, "ewma").mean < 4000.0
    early = frames[begin_s - 19 - 1]
    assert early.get("prefill", 5.0).p50 < 800.0


def test_transients_are_forecast_better_than_by_any_series():
    """A burst of first prompts, a middle, a drain: two rollouts one after another, pooled."""
    runs = [Rollout(trajectories=60, limit=60, turns=6, tool_s=8.0, seed=seed).run() for seed in range(2)]
    report = backtest(runs, (5.0, 15.0, 30.0))
    for horizon in ("15", "30"):
        cell = report["prefill"][horizon]
        assert cell["wape"] < 0.75 * min(cell["ewma"], cell["kalman"], cell["last"])
        cell = report["decode_admission"][horizon]
        assert cell["wape"] < 0.9 * min(cell["ewma"], cell["kalman"], cell["last"])


def test_steady_state_is_no_worse_than_an_ewma_and_covered():
    sampler = stamp([(0.0, ev.SamplerState(mode="async", queued=10_000, in_flight=24, limit=24))], source="sampler")
    runs = [Rollout(trajectories=120, limit=24, turns=8, tool_s=6.0, seed=seed).run() for seed in (8, 9)]
    report = backtest([[*sampler, *rows[: len(rows) * 9 // 10]] for rows in runs], (5.0, 15.0, 30.0))
    for horizon in ("5", "15", "30"):
        prefill, admission = report["prefill"][horizon], report["decode_admission"][horizon]
        assert prefill["wape"] < 0.9 * prefill["ewma"]
        assert admission["wape"] < 1.1 * admission["ewma"]
        assert 0.65 <= prefill["coverage_80"] <= 0.93
        assert 0.65 <= admission["coverage_80"] <= 0.93


def test_pooling_runs_adds_their_windows():
    rows = Rollout(trajectories=8, limit=8, turns=2, seed=1).run()
    one, two = backtest([rows]), backtest([rows, rows])
    assert two["prefill"]["5"]["windows"] == 2 * one["prefill"]["5"]["windows"]
    assert two["prefill"]["5"]["wape"] == pytest.approx(one["prefill"]["5"]["wape"])


def test_nothing_to_backtest_is_null():
    assert backtest([[]])["prefill"]["15"]["wape"] is None


def test_a_policy_can_be_shown_the_ewma_instead():
    frame = drive(STREAM, 20)[0][-1]
    assert as_seen(frame, "lifecycle") is frame
    seen = as_seen(frame, "ewma")
    total = seen.get("prefill", 15.0)
    assert total.mean == frame.get("prefill", 15.0, "ewma").mean
    assert total.p50 is None
    assert seen.backlog_tokens == frame.backlog_tokens
    assert frame.get("prefill", 15.0).p50 is not None
    replaced = with_totals(frame, [ev.ForecastRow("prefill", 15.0, "total", 7.0)])
    assert replaced.get("prefill", 15.0).mean == 7.0
    assert replaced.get("prefill", 5.0) == frame.get("prefill", 5.0)


def test_events_and_ticks_stay_cheap():
    """Budgets with ample room for slow machines, in CPU time: an event 20 µs, a tick 1 ms at 512 trajectories."""
    rows = Rollout(trajectories=512, limit=512, turns=2, tool_s=60.0, prefill_tokens_per_s=2e6, seed=4).run()
    middle = [row for row in rows if row.t_ns < nanoseconds(20.0)]
    predictor = Predictor()
    begin = time.process_time()
    for row in middle:
        predictor.observe(row)
    per_event_s = (time.process_time() - begin) / len(middle)
    assert predictor.table.live > 400
    begin = time.process_time()
    for second in range(20, 60):
        predictor.tick(second * NS_PER_S)
    per_tick_s = (time.process_time() - begin) / 40
    assert per_event_s < 100e-6
    assert per_tick_s < 10e-3


def test_the_demand_of_a_tick_is_what_the_baselines_are_fed():
    of = {"trajectory_id": "t0", "request_id": "r0", "prompt_tokens": 900, "new_tokens": 700}
    rows = stamp([(1.5, ev.TrajectoryReady(**of)), (1.5, ev.LlmSubmit(**of, attempt=0, turn=0))])
    predictor = Predictor()
    seen = []
    for second in (1, 2, 3):
        for row in rows:
            if second - 1 < row.t_ns / NS_PER_S <= second:
                predictor.observe(row)
        predictor.tick(second * NS_PER_S)
        seen.append(predictor.demand["prefill"])
    assert seen == [0.0, 700.0, 0.0]
