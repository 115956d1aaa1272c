"""Terms from what workers were seen to do: counters, and journals."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import Fit
from prorsa.cluster.profiling.live import Known, Launch, live_profile
from prorsa.cluster.profiling.observed import Observed, Steps, add_counters, fit_steps, observe_journal
from prorsa.cluster.sglang import Loads
from prorsa.cluster.sglang.replies import RankLoad
from prorsa.errors import InputError
from prorsa.events import LlmPrefillEnd, LlmPrefillStart, Stamped, WorkerLoad
from tests.sim.pools import Trip, Turn, make_profile, pool, run


def busy_s(fit: Fit, count: float, work: float, context: float) -> float:
    return (fit.a_ms * count + fit.b_ms * work + fit.c_ms * context) / 1e3


@given(a=st.floats(1, 50), b=st.floats(0.01, 1), c=st.floats(1e-5, 1e-3), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_terms_come_back_from_sums_over_steps(a: float, b: float, c: float, seed: int) -> None:
    rng, true = np.random.default_rng(seed), Fit(a_ms=a, b_ms=b, c_ms=c)
    works = [(n, n * batch, n * batch * ctx) for n, batch, ctx in zip(*_draws(rng), strict=True)]
    found = fit_steps("decode", [Steps(*work, busy_s(true, *work)) for work in works])
    assert (found.a_ms, found.b_ms, found.c_ms) == pytest.approx((a, b, c), rel=0.01)


def _draws(rng: np.random.Generator) -> Sequence[list[float]]:
    return [
        rng.integers(1, 30, 60).tolist(),
        rng.integers(1, 64, 60).tolist(),
        rng.uniform(500, 40_000, 60).tolist(),
    ]


def test_too_little_is_no_fit() -> None:
    with pytest.raises(InputError, match="only 3 observations of prefill"):
        fit_steps("prefill", [Steps(1, 100, None, 0.1)] * 3)


def loads(tokens: int, busy_us: int, moments: list[float] | None, used: int = 1000) -> Loads:
    return Loads(
        loads=[
            RankLoad(
                num_running_reqs=0,
                num_waiting_reqs=0,
                num_used_tokens=used,
                max_total_num_tokens=10_000,
                total_prefill_uncached_tokens=tokens,
                total_prefill_busy_us=busy_us,
                decode_moments=moments,
            )
        ]
    )


def test_counters_are_read_as_differences() -> None:
    seen = Observed()
    before = loads(1_000, 50_000, [10.0, 40.0, 100_000.0, 0.0, 0.0, 40.0], used=2_000)
    add_counters(seen, before, loads(6_000, 350_000, [14.0, 64.0, 148_000.0, 0.0, 0.0, 64.0], used=4_000), 2_048, 1.0)
    assert seen.prefill == [Steps(3, 5_000, None, 0.3, certain=False)]
    assert seen.decode == [Steps(4.0, 24.0, 4 * 3_000.0, 0.048)]


@pytest.mark.parametrize("after", [loads(1_000, 50_000, None), loads(10, 500, [1.0, 1.0, 9.0, 1.0, 9.0, 1.0])])
def test_standing_or_restarted_counters_say_nothing(after: Loads) -> None:
    seen = Observed()
    add_counters(seen, loads(1_000, 50_000, [9.0, 9.0, 90.0, 9.0, 90.0, 9.0]), after, 2_048, 1.0)
    assert seen == Observed()


def test_a_span_shorter_than_half_of_the_work_had_one_step() -> None:
    seen = Observed()
    for span_s in (0.1, 0.2):
        add_counters(seen, loads(0, 0, None), loads(1_000, 300_000, None), 2_048, span_s)
    assert [step.certain for step in seen.prefill] == [True, False]


def test_uncertain_counts_are_left_out_where_there_are_enough_others() -> None:
    sure = [Steps(1, n, None, (100 + 0.1 * n) / 1e3) for n in range(100, 1_500, 100)]
    merged = [Steps(1, 3_000, None, 0.6, certain=False)] * 50
    found = fit_steps("prefill", sure + merged)
    assert (found.a_ms, found.b_ms) == pytest.approx((100, 0.1), rel=0.01)


def stamped(t_s: float, event: object) -> Stamped:
    return Stamped(1, round(t_s * 1e9), "w", 1, 0, event)  # type: ignore[arg-type]


def test_a_journal_counts_the_time_in_which_prompts_are_under_way() -> None:
    start, end = (lambda rid: LlmPrefillStart(rid=rid, worker_id="w0")), _end
    events = [
        stamped(1.0, start("a")),
        stamped(1.2, start("b")),
        stamped(1.5, end("a", 500, 100)),
        stamped(2.0, end("b", 1_500, 0)),
        stamped(3.0, start("c")),
        stamped(3.5, end("c", 100, 0)),
        stamped(4.0, end("unheard", 7, 0)),
    ]
    found = observe_journal(events, 1_024)
    pairs = 500 * (250 + 100) + 1_500 * 750
    assert found.prefill == [
        Steps(2, 2_000, pairs, pytest.approx(1.0), certain=False),
        Steps(1, 100, 5_000, pytest.approx(0.5), certain=False),
    ]


def _end(rid: str, computed: int, cached: int) -> LlmPrefillEnd:
    return LlmPrefillEnd(rid=rid, worker_id="w0", cached_tokens=cached, computed_tokens=computed)


def test_a_colocated_workers_reports_are_not_decode_alone() -> None:
    report = [
        stamped(
            t, WorkerLoad(worker_id="w", role="mixed", running=4, kv_used=10, output_tokens_total=t, busy_us_total=t)
        )
        for t in (1, 50)
    ]
    assert observe_journal(report, 1_024).decode == []


def test_the_journal_of_a_simulated_run_gives_the_profile_back() -> None:
    """The simulator's events are those of live workers, so that its own profile must come out."""
    rng = np.random.default_rng(3)
    trips = [
        Trip((Turn(int(rng.integers(100, 2_000)), int(rng.integers(100, 400))),), sandbox_s=float(rng.uniform(0, 60)))
        for _ in range(300)
    ]
    true = make_profile(kv_tokens=200_000)
    events = [stamped(t_s, event) for t_s, event in run(pool(trips, profile=true), pace_s=1.0)]
    launch = Launch("toy", "live", 1, true.kv_tokens, true.chunk_tokens, true.max_running, None)
    found = live_profile(launch, observe_journal(events, true.chunk_tokens), Known("toy", 1), "a simulation")
    assert found.prefill_s(1_500) == pytest.approx(true.prefill_s(1_500), rel=0.05)
    assert found.decode_step_s(8, 8_000) == pytest.approx(true.decode_step_s(8, 8_000), rel=0.05)
    assert found.flippable
    assert not found.validated
