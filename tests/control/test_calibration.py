"""What the model learns of its own errors: the pace of prefill, and the bias of the output it predicts."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.registry import Worker
from prorsa.control.calibration import Calibration, Pace
from prorsa.control.policies import Context
from prorsa.control.poolstate import known_state
from prorsa.events import Role, Split, WorkerLoad
from tests.control.test_lookahead import context

POOL = context(Split(4, 4), arrivals=20_000.0, decode_batch=100)
PER_S = np.full(60, 1_000.0)


def told(role: Role, t_s: float, **load: int) -> Context:
    """The pool with one worker that reports this."""
    report = WorkerLoad(worker_id="w0", **load)  # type: ignore[arg-type]
    worker = Worker("w0", role, 0, "", None, None, 10**6, None, load=report)
    return dataclasses.replace(POOL, t_ns=round(t_s * 1e9), workers=(worker,))


def prefilled(share: float, *, busy_s: int = 5, reports: int = 60, epoch_each: bool = False) -> float:
    """The pace after a worker has computed so much of what its profile says, with eight requests all the time."""
    pace, known = Pace(), known_state(POOL)
    assert not isinstance(known, str)
    rate = float(np.interp(8.0, known.requests, known.prefill_tokens_per_s))
    for k in range(reports):
        busy_us, tokens = k * busy_s * 10**6, round(k * busy_s * rate * share)
        epoch = k if epoch_each else 0
        given = told("prefill", 5.0 * k, prefill_tokens_total=tokens, busy_us_total=busy_us, queued=8, epoch=epoch)
        pace.check(given, known)
    return pace.value


def test_a_worker_that_computes_half_of_what_its_profile_says_halves_the_pace() -> None:
    assert prefilled(0.5) == pytest.approx(0.5, abs=0.03)


def test_a_worker_that_idles_or_starts_again_says_nothing_of_the_pace() -> None:
    assert prefilled(0.5, busy_s=0) == 1.0
    assert prefilled(0.5, epoch_each=True) == 1.0


@given(share=st.floats(0.0, 10.0))
def test_the_pace_stays_within_its_bounds(share: float) -> None:
    assert 0.25 <= prefilled(share, reports=10) <= 1.25


def test_the_bias_is_what_comes_in_relation_to_what_was_predicted() -> None:
    calibration = Calibration()
    for k in range(30):
        given = told("decode", 5.0 * k, output_tokens_total=2_500 * k)
        calibration.check(given)
        calibration.expect(given, PER_S)
    assert calibration.bias == pytest.approx(math.log(0.5))
    assert calibration.error == pytest.approx(math.log(2.0))


def test_what_scatters_around_the_prediction_is_no_bias() -> None:
    calibration, output = Calibration(), 0
    for k in range(40):
        given = told("decode", 5.0 * k, output_tokens_total=output)
        calibration.check(given)
        calibration.expect(given, PER_S)
        output += 10_000 if k % 2 else 0
    assert calibration.error < 0.15


def test_workers_that_do_not_tell_their_output_leave_the_bias_unknown() -> None:
    calibration = Calibration()
    for k in range(10):
        given = told("decode", 5.0 * k)
        calibration.check(given)
        calibration.expect(given, PER_S)
    assert (calibration.bias, calibration.error) == (None, 0.0)
