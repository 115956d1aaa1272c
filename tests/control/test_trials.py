"""Moves on trial: what fails makes the next one dearer and is taken back, what pays does not, and all is forgotten."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.registry import Worker
from prorsa.control.calibration import Calibration
from prorsa.control.policies import Context
from prorsa.control.trials import LASTS_S, Trials
from prorsa.events import Split, WorkerLoad
from tests.control.test_lookahead import context

DECIDE_S = 5
STAY = np.full(120, 1_000.0)
"""Output tokens a second that staying promises; answers of 100 tokens."""


class Story:
    """A pool whose output is told, decision by decision; the model is known to be right until the first move."""

    def __init__(self) -> None:
        self.trials = Trials()
        self.calibration = Calibration()
        self.t_s = 0
        self.output = 0.0
        self.prefill = 4
        self.version = "0"
        self.run(60, 1.0)

    def pool(self) -> Context:
        load = WorkerLoad(worker_id="w0", output_tokens_total=int(self.output))
        worker = Worker("w0", "decode", 0, "", None, None, 10**6, self.version, load=load)
        given = context(Split(self.prefill, 8 - self.prefill), arrivals=1.0, decode_batch=1, t_s=self.t_s)
        return dataclasses.replace(given, workers=(worker,))

    def run(self, for_s: int, share: float) -> None:
        """Output comes at so much of what staying promises."""
        for _ in range(for_s // DECIDE_S):
            pool = self.pool()
            self.calibration.check(pool)
            self.trials.check(pool, self.calibration)
            self.calibration.expect(pool, STAY)
            self.t_s += DECIDE_S
            self.output += share * DECIDE_S * STAY[0]

    def move(self, prefill: int, *, promised: float = 0.5) -> None:
        self.trials.propose(self.pool(), prefill, promised, STAY, 100.0)
        self.prefill = prefill


def test_a_move_that_brings_clearly_less_is_taken_back_and_makes_the_next_one_dearer() -> None:
    story = Story()
    story.move(6)
    story.run(round(LASTS_S) + 15, 0.5)
    assert story.trials.take_back == 4
    assert story.trials.factor > 1.5
    assert story.trials.last == pytest.approx(0.5, rel=0.05)


def test_a_move_that_keeps_its_promise_costs_no_trust() -> None:
    story = Story()
    story.move(6)
    story.run(round(LASTS_S) + 15, 1.5)
    assert (story.trials.take_back, story.trials.factor) == (None, 1.0)


def test_doubt_grows_with_each_move_that_fails_and_is_forgotten() -> None:
    story, factors = Story(), []
    for prefill in (6, 5, 6):
        story.move(prefill)
        story.run(round(LASTS_S) + 15, 0.97)
        factors.append(story.trials.factor)
    assert factors == sorted(factors)
    assert factors[-1] > 3.0
    story.run(1_500, 1.0)
    assert story.trials.factor < 1.05


def test_a_move_that_the_guards_did_not_let_through_is_not_on_trial() -> None:
    story = Story()
    story.move(6)
    story.prefill = 4
    story.run(round(LASTS_S) + 15, 0.3)
    assert (story.trials.take_back, story.trials.factor) == (None, 1.0)


def test_a_weight_update_in_between_says_nothing_of_the_move() -> None:
    story = Story()
    story.move(6)
    story.run(50, 0.2)
    story.version = "1"
    story.run(100, 0.2)
    assert (story.trials.take_back, story.trials.factor) == (None, 1.0)


def test_what_could_not_be_taken_back_for_long_is_left() -> None:
    story = Story()
    story.move(6)
    story.run(round(LASTS_S) + 15, 0.5)
    assert story.trials.take_back == 4
    story.run(90, 0.5)  # somebody has frozen the pool meanwhile
    assert story.trials.take_back is None


@given(shares=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=8))
def test_doubt_stays_within_its_bounds_whatever_comes(shares: list[float]) -> None:
    story = Story()
    for k, share in enumerate(shares):
        story.move(5 + k % 2)
        story.run(round(LASTS_S) + 15, share)
        assert 1.0 <= story.trials.factor <= 32.0
