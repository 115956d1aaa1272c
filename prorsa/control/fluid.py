"""A fluid model of the pool: what a plan of splits would get done in the next minute.

Requests are a liquid that flows from *away* (tools, sandboxes, rewards) through *waiting* (for prefill) into *decoding*
and back. A second of it costs a few multiplications, so that hundreds of plans can be compared at every decision. It
leaves out what queues do at random and whom a request belongs to; plans are compared with each other under the same
model, which forgives much of that.

- Trajectories are neither made nor lost: who is away returns, who has an answer goes away. Under plan 0, the present
  split, the forecast's arrivals come; what share of those away they are is how fast a trajectory returns at that second
  under all other plans, and arrivals that are more than those away come from outside under every plan. Beyond the
  forecast the speed of its last seconds goes on.
- Prefill computes, a worker, ``prefill_tokens_per_s`` by how many requests it has; it starts a request once decode has
  KV for its context, which decode reserves first.
- Decode takes a step for every token of each request; how long one takes depends on the batch a worker has.
- A flip takes its worker out of both until it serves again. The prefixes that are lost with it come back as prompts of
  the trajectories that return (``lost_share`` of them, each once).
- Work done is counted in worker-seconds as at full load: ``prefill_work_s`` for a request that has been prefilled,
  ``decode_work_s`` for an answer. Requests that are under way count for what was done.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]

STEP_S: Final = 1.0
"""Time step of the model."""
LAST_S: Final = 15
"""Last seconds of the forecast whose mean speed of return goes on beyond it: one alone is noise."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The pool as a fluid; see the module's text. Requests unless the name says otherwise.

    Attributes:
        away: trajectories in tools, sandboxes and rewards.
        waiting, waiting_tokens: ready and not yet prefilled, and the uncached tokens that they bring.
        decoding: requests that decode.
        new_tokens, prefix_tokens: of a typical next request: to be computed, and cached.
        output_tokens: of a typical answer.
        places: requests that the KV of one decode worker has room for.
        requests: grid of requests at one worker, for the two tables that follow; linear between, rising.
        prefill_tokens_per_s: what a prefill worker computes with so many requests.
        decode_step_s: how long a decode step of a worker takes with so many requests.
        cached_share: by number of prefill workers (index), the share of what could be cached that they have room
            for, in relation to what it is now.
    """

    away: float
    waiting: float
    waiting_tokens: float
    decoding: float
    new_tokens: float
    prefix_tokens: float
    output_tokens: float
    places: float
    requests: Array
    prefill_tokens_per_s: Array
    decode_step_s: Array
    cached_share: Array

    @property
    def prefill_work_s(self) -> float:
        """Worker-seconds of prefilling a typical request at full load."""
        return self.new_tokens / float(self.prefill_tokens_per_s[-1])

    @property
    def decode_work_s(self) -> float:
        """Worker-seconds of a typical answer in as large a batch as the KV allows."""
        step_s = float(np.interp(self.places, self.requests, self.decode_step_s))
        return self.output_tokens * step_s / self.places


class Plans(NamedTuple):
    """Candidate courses: workers serving in each second, and what flips lose.

    Attributes:
        prefill, decode: ``[plan, second]``, workers that serve.
        lost_share: ``[plan, second]``, share of the live trajectories whose prefix a flip that starts then takes away.
        moved: ``[plan, second]``, share of the decoding requests that a flip that starts then sends back to prefill.
    """

    prefill: Array
    decode: Array
    lost_share: Array
    moved: Array


class Outcome(NamedTuple):
    """What plans come to: ``work_s[scenario, plan]``, and the answers of plan 0 by second, ``[scenario, second]``."""

    work_s: Array
    answers: Array


def run_plans(state: PoolState, plans: Plans, arrivals: Array, weights: Array | None = None) -> Outcome:
    """Worker-seconds of work that each plan gets done.

    Args:
        arrivals: ``[scenario, second]``, requests that are forecast to become ready under plan 0; of as many seconds
            as the plans have, or fewer.
        weights: ``[second]``, how often the work of each second counts; once each by default.
    """
    weights = np.ones(plans.prefill.shape[1]) if weights is None else weights
    tables = (state.requests, state.prefill_tokens_per_s, state.decode_step_s, state.cached_share)
    pool = _Pool(_scalars(state), *tables)
    done_s = np.empty((len(arrivals), len(plans.prefill)))
    answers = np.zeros((len(arrivals), plans.prefill.shape[1]))
    returning, outside = np.zeros_like(answers), np.zeros_like(answers)
    _run(pool, plans, arrivals, weights, done_s, _Course(answers, returning, outside))
    return Outcome(done_s, answers)


class _Pool(NamedTuple):
    """A pool's state as the compiled model takes it: the single figures, and the tables by requests or workers."""

    scalars: Array
    requests: Array
    prefill_tokens_per_s: Array
    decode_step_s: Array
    cached_share: Array


class _Course(NamedTuple):
    """What plan 0 comes to and the others start from, ``[scenario, second]``.

    Answers; the share of those away that return; and the requests that come from outside.
    """

    answers: Array
    returning: Array
    outside: Array


def _scalars(state: PoolState) -> Array:
    return np.array(
        [
            state.away,
            state.waiting,
            state.waiting_tokens,
            state.decoding,
            state.new_tokens,
            state.prefix_tokens,
            state.output_tokens,
            state.places,
            state.prefill_work_s,
            state.decode_work_s,
        ]
    )


@compiled
def _run(pool: _Pool, plans: Plans, arrivals: Array, weights: Array, done_s: Array, staying: _Course) -> None:
    for scenario in range(arrivals.shape[0]):
        for plan in range(plans.prefill.shape[0]):
            done_s[scenario, plan] = _course(pool, plans, plan, arrivals[scenario], weights, staying, scenario)


@compiled
def _at(x: float, xs: Array, ys: Array) -> float:
    """Linear interpolation; the first and last values go on beyond the ends."""
    y: float = ys[-1]
    if x <= xs[0]:
        y = ys[0]
    else:
        for k in range(1, len(xs)):
            if x <= xs[k]:
                y = ys[k - 1] + (x - xs[k - 1]) * (ys[k] - ys[k - 1]) / (xs[k] - xs[k - 1])
                break
    return y


@compiled
def _course(
    pool: _Pool, plans: Plans, plan: int, arrivals: Array, weights: Array, staying: _Course, scenario: int
) -> float:
    """Work done on one course. The first one fills ``staying``."""
    away, waiting, tokens, decoding, new, prefix, output, places, prefill_work_s, decode_work_s = pool.scalars
    live = max(away + waiting + decoding, 1.0)
    prefill, decode = plans.prefill[plan], plans.decode[plan]
    lost_share, moved = plans.lost_share[plan], plans.moved[plan]
    answered, returning, outside = staying.answers[scenario], staying.returning[scenario], staying.outside[scenario]
    forecast_s = len(arrivals)
    done_s, lost = 0.0, 0.0
    for t in range(len(prefill)):
        if plan == 0:
            if t < forecast_s:
                coming = min(arrivals[t], away)
                returning[t] = coming / away if away > 0.0 else 0.0
                outside[t] = arrivals[t] - coming
            else:
                returning[t] = np.mean(returning[max(forecast_s - LAST_S, 0) : forecast_s])
        arriving = returning[t] * away
        away -= arriving
        arriving += outside[t]
        # Trajectories whose prefix is gone prefill it again when they return, each once.
        lost += lost_share[t]
        again = min(arriving * lost, arriving)
        lost -= again / live
        missed = prefix * (1.0 - pool.cached_share[int(prefill[t])])
        sent_back = moved[t] * decoding
        decoding -= sent_back
        done_s -= weights[t] * sent_back * prefill_work_s  # done once more, and counted once
        waiting += arriving + sent_back
        tokens += arriving * max(new + missed, 1.0) + again * prefix + sent_back * 0.5 * output
        answers = 0.0
        if decode[t] > 0.0 and decoding > 0.0:
            steps = STEP_S / _at(decoding / decode[t], pool.requests, pool.decode_step_s)
            answers = min(decoding * steps / output, decoding)
        decoding -= answers
        away += answers
        served = 0.0
        if waiting > 1e-9 and tokens > 0.0 and prefill[t] > 0.0:
            # A request holds its room on a decode worker from before its prefill on.
            admitted = min(waiting, max(decode[t] * places - decoding, 0.0))
            per_worker = admitted / prefill[t]
            rate = prefill[t] * _at(per_worker, pool.requests, pool.prefill_tokens_per_s) * min(per_worker, 1.0)
            served = min(admitted, waiting * rate * STEP_S / tokens)
            tokens -= tokens * served / waiting
            waiting -= served
        decoding += served
        done_s += weights[t] * (served * prefill_work_s + answers * decode_work_s)
        if plan == 0:
            answered[t] = answers
    return done_s
