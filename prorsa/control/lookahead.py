"""``lookahead``: the first move of the best course through the next minute, by a fluid model of the pool.

At each decision every reachable course (stay; move now or later; move now and back) is run through
:mod:`prorsa.control.fluid` against the low, the middle and the high quantile of the forecast. The course that gets most
work done on average is taken, one move at a time, where it gains clearly more than it costs: what a flip takes and the
prefixes that it loses are in the model. Beside that the gain must exceed the model's own error, and the time of the
course's flips once more: a pool with room to spare has no use for them.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from prorsa.control.calibration import Calibration, Pace
from prorsa.control.cost import GOES_ON_S
from prorsa.control.courses import Course, Flipping, courses, lay_out
from prorsa.control.fluid import Array, Outcome, run_plans
from prorsa.control.policies.base import Context, Want
from prorsa.control.poolstate import arrival_spread, flush_in_s, known_state, prefix_losses
from prorsa.control.trials import Trials
from prorsa.events import Alternative, Split
from prorsa.forecast.frame import Frame

_WEIGHTS: Final = np.array([0.25, 0.5, 0.25])
"""Of the forecast's p10, p50 and p90: the three-point rule that keeps mean and spread of a skewed quantity
(Swanson's rule is 0.3, 0.4, 0.3; the middle counts for more here: p10 and p90 of all seconds at once are rare)."""
LEAST_GAIN: Final = 0.06
"""Share of the work under the present split that a course must gain at the least: less is noise."""
ERROR_WEIGHT: Final = 0.2
"""What the model's relative error adds to that share."""
AGREEING: Final = 2
"""Decisions in a row that must want the same direction."""
_TAIL_S: Final = 60
"""Seconds beyond the decision horizon that are looked at, so that what a course leaves behind counts."""
_LAST_S: Final = 45
"""Last seconds whose rate of work is taken to go on for ``GOES_ON_S``."""


@dataclass(frozen=True, slots=True)
class _Best:
    course: Course
    gain_s: float
    needed_s: float
    stay_s: float
    answers_per_s: Array
    by_split: dict[int, float]

    @property
    def pays(self) -> bool:
        return self.gain_s > self.needed_s


class Lookahead:
    """Model-predictive control of the split."""

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, name: str = "lookahead") -> None:
        self.name = name
        self._pace = Pace()
        self._calibration = Calibration()
        self._trials = Trials()
        self._direction = 0
        self._agreed = 0

    def state(self) -> str:
        """Prefill's pace, the model's error, what moves brought, and for how long which direction has been wanted."""
        return (
            f"{self._pace.state()} {self._calibration.state()} {self._trials.state()} {self._direction} {self._agreed}"
        )

    def decide(self, context: Context) -> Want:
        """The first move of the best course; without a forecast, a profile or a known capacity the split stays."""
        known = known_state(context)
        if isinstance(known, str):
            self._agree(0)
            return Want(split=context.current, reason=f"no {known} yet: the split stays")
        assert context.frame is not None
        self._pace.check(context, known)
        known = replace(known, prefill_tokens_per_s=self._pace.value * known.prefill_tokens_per_s)
        self._calibration.check(context)
        self._trials.check(context, self._calibration)
        seconds = min(round(context.config.decision_horizon_s), len(context.frame.arrivals_per_s)) + _TAIL_S
        flipping = _flipping(context)
        found = courses(context.current.prefill, context.bounds, seconds, flipping.flush_s)
        plans = lay_out(found, context.current.prefill, context.bounds.workers, seconds, flipping)
        outcome = run_plans(known, plans, _arrivals(context.frame, seconds), _weights(seconds))
        best = _choose(found, outcome, context, self._calibration.error, self._trials.factor)
        stay_tokens_per_s = best.answers_per_s * known.output_tokens
        self._calibration.expect(context, stay_tokens_per_s)
        taken, reason = self._take(best, context)
        if taken != context.current.prefill and self._trials.take_back is None:
            self._trials.propose(context, taken, best.gain_s / best.stay_s, stay_tokens_per_s, known.output_tokens)
        return Want(
            split=Split(prefill=taken, decode=context.bounds.workers - taken),
            reason=reason,
            inputs={
                "away_s": round(known.away / context.frame.requests_per_s, 1),
                "waiting_tokens": round(known.waiting_tokens),
                "decoding": known.decoding,
                "new_tokens": round(known.new_tokens),
                "prefix_tokens": round(known.prefix_tokens),
                "decode_places": round(known.places, 1),
                "stay_work_s": round(best.stay_s, 2),
                "best_gain_s": round(best.gain_s, 2),
                "needed_gain_s": round(best.needed_s, 2),
                "prefill_pace": round(self._pace.value, 3),
                "model_error": round(self._calibration.error, 3),
                "moves_doubt": round(self._trials.factor, 2),
                "last_move_brought": None if self._trials.last is None else round(self._trials.last, 3),
                "flip_lost_share": round(flipping.to_decode_lost[0], 4) if flipping.to_decode_lost else None,
            },
            alternatives=_alternatives(best, context),
        )

    def _take(self, best: _Best, context: Context) -> tuple[int, str]:
        """The split to be at now, as prefill workers, and why."""
        current, back = context.current.prefill, self._trials.take_back
        if back is not None and context.bounds.low <= back <= context.bounds.high:
            self._agree(0)
            assert self._trials.last is not None
            split = f"{back}P:{context.bounds.workers - back}D"
            return back, f"{split} again: the move from it brought {self._trials.last:.2f}x of what staying promised"
        moving = best.pays and best.course.at_s == 0
        self._agree(int(np.sign(best.course.prefill - current)) if moving else 0)
        taken = best.course if moving and self._agreed >= AGREEING else Course(current)
        return taken.prefill, _explain(best, taken, context)

    def _agree(self, direction: int) -> None:
        self._agreed = self._agreed + 1 if direction and direction == self._direction else int(direction != 0)
        self._direction = direction


def _weights(seconds: int) -> Array:
    """How often the work of each second counts: that of the last ones goes on."""
    weights = np.ones(seconds)
    weights[-_LAST_S:] += GOES_ON_S / _LAST_S
    return weights


def _flipping(context: Context) -> Flipping:
    config, bounds = context.config, context.bounds
    return Flipping(
        parallel=config.parallel_flips or max(1, bounds.workers // 4),
        flip_s=config.flip_s,
        to_decode_lost=prefix_losses(context),
        to_prefill_lost=0.0 if config.cache == "l3" else context.homes.cached_share,
        flush_s=flush_in_s(context),
    )


def _arrivals(frame: Frame, seconds: int) -> Array:
    """Requests that become ready in each second, as the forecast's p10, p50 and p90 have it: ``[3, second]``."""
    bins = np.array(frame.arrivals_per_s[:seconds])
    requests = bins * (frame.requests_per_s / max(float(np.mean(frame.arrivals_per_s)), 1e-9))
    spread = arrival_spread(frame, _WEIGHTS)
    return np.tile(requests, (3, 1)) if spread is None else np.asarray(spread[:, None] * requests)


def _choose(found: list[Course], outcome: Outcome, context: Context, error: float, factor: float) -> _Best:
    current = context.current.prefill
    done_s = _WEIGHTS @ outcome.work_s
    stay_s = float(done_s[0])
    gains = done_s - stay_s
    by_split: dict[int, float] = {}
    for course, gain_s in zip(found, gains.tolist(), strict=True):
        first = course.prefill if course.at_s == 0 else current
        by_split[first] = max(by_split.get(first, -np.inf), gain_s)
    trouble_s = context.config.flip_s * np.array([course.flips(current) for course in found])
    at = int(np.argmax(gains - trouble_s))
    needed_s = factor * (LEAST_GAIN + ERROR_WEIGHT * error) * stay_s + float(trouble_s[at])
    answers_per_s = np.asarray(_WEIGHTS @ outcome.answers)
    return _Best(found[at], float(gains[at]), needed_s, stay_s, answers_per_s, by_split)


def _alternatives(best: _Best, context: Context) -> tuple[Alternative, ...]:
    """For each split, the worker-seconds that the best course which begins with it gets done less than staying."""
    workers = context.bounds.workers
    return tuple(
        Alternative(split=Split(prefill=prefill, decode=workers - prefill), cost=round(-gain_s, 2))
        for prefill, gain_s in sorted(best.by_split.items())
    )


def _explain(best: _Best, taken: Course, context: Context) -> str:
    horizon_s, workers = context.config.decision_horizon_s, context.bounds.workers
    split = f"{taken.prefill}P:{workers - taken.prefill}D"
    gain = f"{best.gain_s:.1f} worker-seconds within {horizon_s:g} s"
    if taken.prefill != context.current.prefill:
        then = ""
        if best.course.then is not None:
            back = workers - best.course.then
            then = f", and {best.course.then}P:{back}D {best.course.back_at_s} s later,"
        return f"{split}{then} gains {gain} over staying"
    wanted = f"{best.course.prefill}P:{workers - best.course.prefill}D"
    if not best.pays:
        return f"{split} stays: the best other course gains {gain}, less than the {best.needed_s:.1f} that count"
    if best.course.at_s > 0:
        return f"{split} stays: {wanted} gains {gain}, but only from {best.course.at_s} s on"
    return f"{split} stays: {wanted} gains {gain}, to be confirmed by the next decision"
