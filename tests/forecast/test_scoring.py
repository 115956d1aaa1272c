"""Settling forecasts against cases worked out by hand."""

import numpy as np
import pytest

from prorsa.clock import nanoseconds
from prorsa.events import Settled
from prorsa.forecast.calibration import Corrected
from prorsa.forecast.requests import Request
from prorsa.forecast.scoring import Made, ScoreKeeper, Scores

H = 5.0


def request(ready_s, prompt=1000):
    return Request(
        request_id=f"r{ready_s}",
        slot=0,
        turn=0,
        prompt_tokens=prompt,
        previous_prompt_tokens=None,
        index_tokens=None,
        answered_s=None,
        flushed=False,
        ready_s=ready_s,
    )


def made(p50=0.0):
    return Made(p50, p50, Corrected(p50, p50, p50, p50, np.zeros(0)), {})


class Script:
    """Runs events and ticks in order of time and keeps what settles, by (target, tick in seconds)."""

    def __init__(self, max_pending=3600):
        self.keeper = ScoreKeeper((H,), max_pending=max_pending)
        self.settled = {}
        self.events = []

    def at(self, t_s, what):
        self.events.append((t_s, what))

    def life(self, ready_s, admitted_s, prefilled_s, ended_s, uncached=600, output=50, prompt=1000):
        item = request(ready_s, prompt)

        def admit():
            item.admitted_s, item.kv_tokens = admitted_s, prompt
            self.keeper.admitted(admitted_s, item)

        def prefill():
            item.prefilled_s, item.uncached_tokens = prefilled_s, uncached
            self.keeper.prefilled(prefilled_s, item)

        def answer():
            item.output_tokens = output
            self.keeper.answered(item)

        self.at(ready_s, lambda: self.keeper.ready(ready_s, item))
        self.at(admitted_s, admit)
        self.at(prefilled_s, prefill)
        self.at(ended_s, answer)
        return item

    def run(self, until_s, computed=None, levels=None):
        events = sorted(self.events, key=lambda row: row[0])
        for second in range(1, until_s + 1):
            while events and events[0][0] <= second:
                events.pop(0)[1]()
            for row, _ in self.keeper.tick(
                nanoseconds(second),
                computed_tokens=(computed or {}).get(second, 0.0),
                resident_kv_tokens=(levels or {}).get(second, 0.0),
            ):
                self.settled[row.target, round(row.tick_ns / 1e9)] = row
            self.keeper.made({(target, H): made() for target in ("prefill", "decode_admission", "kv_need")})
        return self.settled


def actuals(settled, target):
    return {tick: (row.actual, row.actual_arrivals) for (name, tick), row in settled.items() if name == target}


def test_arrivals_and_backlog_are_what_they_turned_out_to_be():
    script = Script()
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=6.5, ended_s=8.0, uncached=600)
    got = actuals(script.run(20), "prefill")
    # Ready in (3, 4]: an arrival for ticks -1..3 (of those, 1, 2 and 3 exist), then backlog until 6.5.
    assert {tick: got[tick] for tick in range(1, 9)} == {
        1: (600.0, 600.0),
        2: (600.0, 600.0),
        3: (600.0, 600.0),
        4: (600.0, 0.0),
        5: (600.0, 0.0),
        6: (600.0, 0.0),
        7: (0.0, 0.0),
        8: (0.0, 0.0),
    }


def test_chunks_already_computed_are_no_backlog():
    script = Script()
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=6.5, ended_s=8.0, uncached=600)
    got = actuals(script.run(20, computed={5: 200.0, 6: 500.0}), "prefill")
    assert [got[tick][0] for tick in (4, 5, 6, 7)] == [600.0, 400.0, 100.0, 0.0]


def test_admissions_count_prompt_and_the_whole_answer_when_decode_admits():
    script = Script()
    script.life(ready_s=3.5, admitted_s=6.5, prefilled_s=7.5, ended_s=18.0, output=50, prompt=1000)
    got = actuals(script.run(30), "decode_admission")
    # Admitted in (6, 7]: in the windows of ticks 2..6; an arrival only for those before it was ready (2 and 3).
    assert {tick: got[tick] for tick in range(1, 8)} == {
        1: (0.0, 0.0),
        2: (1050.0, 1050.0),
        3: (1050.0, 1050.0),
        4: (1050.0, 0.0),
        5: (1050.0, 0.0),
        6: (1050.0, 0.0),
        7: (0.0, 0.0),
    }


def test_a_window_waits_until_everything_in_it_is_known():
    script = Script()
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=16.5, ended_s=28.0)
    early = actuals(script.run(15), "prefill")
    assert not [tick for tick in early if tick + H >= 4]
    script = Script()
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=16.5, ended_s=28.0)
    settled = script.run(24)
    assert actuals(settled, "prefill")[15] == (600.0, 0.0)
    assert actuals(settled, "decode_admission") == {}


def test_kv_need_is_the_highest_level_of_the_window():
    levels = dict.fromkeys(range(1, 20), 100.0) | {9: 900.0}
    got = actuals(Script().run(20, levels=levels), "kv_need")
    assert [got[tick][0] for tick in (3, 4, 8, 9)] == [100.0, 900.0, 900.0, 100.0]


def test_what_never_tells_leaves_its_windows_unsettled_and_no_others():
    script = Script()
    lost = script.life(ready_s=10.5, admitted_s=10.6, prefilled_s=99.0, ended_s=99.0)
    script.at(13.5, lambda: script.keeper.lost(13.5, lost))
    settled = script.run(40)
    prefill, admission = actuals(settled, "prefill"), actuals(settled, "decode_admission")
    # Ready in bin 11: windows of ticks 6..10 hold it as an arrival, 11..13 as backlog.
    assert set(range(1, 6)) | set(range(14, 33)) <= prefill.keys()
    assert not prefill.keys() & set(range(6, 14))
    assert not admission.keys() & set(range(6, 11))
    assert {5, 11, 12} <= admission.keys()
    assert script.keeper.unsettled["prefill", H] == 8
    assert script.keeper.unsettled["decode_admission", H] == 5


def test_at_the_end_what_still_waits_is_unsettled():
    script = Script()
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=99.0, ended_s=99.0)
    settled = script.run(20)
    script.keeper.finish()
    for target in ("prefill", "decode_admission"):
        assert len(actuals(settled, target)) + script.keeper.unsettled[target, H] == 20


def test_an_event_that_comes_after_its_tick_is_booked_where_it_belongs():
    script = Script()
    item = request(3.9)

    def late():
        script.keeper.ready(3.9, item)
        item.uncached_tokens, item.prefilled_s = 70, 4.4
        script.keeper.prefilled(4.4, item)

    script.at(4.4, late)
    got = actuals(script.run(20), "prefill")
    assert got[3] == (70.0, 70.0)
    assert got[4] == (70.0, 0.0)
    assert got[5] == (0.0, 0.0)


def test_memory_is_bounded_by_what_waits():
    script = Script(max_pending=50)
    script.life(ready_s=3.5, admitted_s=3.6, prefilled_s=9e9, ended_s=9e9)
    script.run(400)
    keeper = script.keeper
    assert len(keeper._made) <= 51
    assert len(keeper._ticks_ns) <= 51
    done = Script()
    done.life(ready_s=3.5, admitted_s=3.6, prefilled_s=4.5, ended_s=5.0)
    done.run(400)
    assert len(done.keeper._made) < 20
    assert len(done.keeper._ready.totals) < 20
    assert not any(running._changes for running in done.keeper._backlog.values())


def settled(actual, p50, *, p10=0.0, p90=0.0, arrivals=None, p50_arrivals=0.0, mean=0.0, **baselines):
    return Settled(
        target="prefill",
        horizon_s=5.0,
        tick_ns=0,
        actual=actual,
        actual_arrivals=actual if arrivals is None else arrivals,
        mean=mean,
        p10=p10,
        p50=p50,
        p90=p90,
        p50_arrivals=p50_arrivals,
        baselines=baselines,
    )


def test_the_summary_is_that_of_the_definitions():
    scores = Scores((5.0, 15.0))
    scores.add(settled(100.0, 80.0, p10=50.0, p90=120.0, arrivals=40.0, p50_arrivals=50.0, mean=110.0, ewma=130.0))
    scores.add(settled(300.0, 350.0, p10=310.0, p90=400.0, arrivals=60.0, p50_arrivals=30.0, mean=330.0, ewma=280.0))
    scores.add(settled(0.0, 500.0, ewma=10.0))
    cell = scores.summary()["prefill"]["5"]
    assert cell["wape"] == pytest.approx(70 / 400)
    assert cell["wape_arrivals"] == pytest.approx(40 / 100)
    assert cell["bias"] == pytest.approx(40 / 400)
    assert cell["coverage_80"] == pytest.approx(0.5)
    assert cell["ewma"] == pytest.approx(50 / 400)
    assert (cell["windows"], cell["empty"], cell["unsettled"]) == (2, 1, 0)
    assert cell["last"] is None


def test_what_has_not_settled_is_null():
    summary = Scores((5.0,)).summary()
    assert set(summary) == {"prefill", "decode_admission", "kv_need"}
    cell = summary["decode_admission"]["5"]
    assert {name for name, value in cell.items() if value is None} == {
        "wape", "wape_arrivals", "bias", "coverage_80", "last", "ewma", "kalman",
    }  # fmt: skip


def test_pooling_is_as_if_it_were_one_run():
    rows = [settled(100.0 + i, 90.0, p90=200.0, p50_arrivals=50.0, mean=95.0, last=1.0 * i) for i in range(10)]
    whole, left, right = Scores((5.0,)), Scores((5.0,)), Scores((5.0,))
    for i, row in enumerate(rows):
        whole.add(row)
        (left if i < 4 else right).add(row)
    left.add_unsettled({("prefill", 5.0): 3})
    whole.add_unsettled({("prefill", 5.0): 3})
    left.merge(right)
    assert left.summary() == whole.summary()
