"""Where demand comes from: expected arrivals by source, second by second, from where each trajectory stands.

Times are bins of one second from the tick. A trajectory that waits (a tool, a sandbox) arrives with the conditional
probability of its wait's end. One that decodes finishes, runs a tool and arrives (``second``); one that waits for
prefill does so after the queue before it. What arrives may arrive again: with ``c`` the distribution of a whole cycle,
all arrivals are ``direct * (1 + c + c*c + …)``, summed by doubling. An ended trajectory makes room for a dispatch while
the sampler has any; bursts at step beginnings follow the announced or usual end of the update before them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import FREE, Columns, State
from prorsa.forecast.learn import GAP_EDGES_S, Learner
from prorsa.forecast.models import binned
from prorsa.forecast.plan import RunPlan
from prorsa.forecast.waiting import Queue
from prorsa.forecast.waits import Wait

Array = NDArray[np.float64]
Ints = NDArray[np.intp]

_DOUBLINGS: Final = 4
"""Cycles up to 2^4 - 1 within the longest horizon are counted; more would each take less than four seconds."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The live trajectories at a tick, as gathered from their slots: arrays of one length.

    ``idle_s`` is the time since the last answer (0 where there was none).
    ``key``, ``x`` and ``speed`` say how far each is in its wait: ``x`` now, ``x + speed * t`` in ``t`` seconds.
    """

    slot: Ints
    state: NDArray[np.int8]
    key: NDArray[np.int32]
    x: Array
    speed: Array
    tool: NDArray[np.int32]
    turn: NDArray[np.int32]
    prompt_tokens: Array
    output_tokens: Array
    flushed: NDArray[np.bool_]
    idle_s: Array

    @property
    def waiting(self) -> NDArray[np.bool_]:
        """Whose next request comes when a wait ends."""
        state = self.state
        return np.asarray((state == State.TOOL) | (state == State.SANDBOX) | (state == State.DISPATCHED))

    @property
    def decoding(self) -> NDArray[np.bool_]:
        """Whose answer is under way."""
        return np.asarray(self.state == State.DECODE)


def gather(columns: Columns, t_s: float, decode_rate: float, mean_prompt_tokens: float) -> Rows:
    """Rows of all live trajectories at ``t_s``; a first prompt that is not known is taken as the mean."""
    slot = np.flatnonzero(columns.state != FREE)
    state, key = columns.state[slot], columns.key[slot]
    hint = columns.expected_s[slot]
    hinted = np.isfinite(hint)
    elapsed_s = np.maximum(np.nan_to_num(t_s - columns.since_s[slot]), 0.0)
    speed = np.where(hinted, 1.0 / np.where(hinted, hint, 1.0), 1.0)
    decoding = state == State.DECODE
    since_report_s = np.maximum(np.nan_to_num(t_s - columns.output_at_s[slot]), 0.0)
    # Reports come once a second: what has been put out since then is known well enough, but not for ever.
    output = columns.output_tokens[slot] + decode_rate * np.minimum(since_report_s, 2.0) * decoding
    prompt = columns.prompt_tokens[slot]
    return Rows(
        slot=slot,
        state=state,
        key=np.where(decoding, np.int32(Wait.OUTPUT), np.where(hinted, np.int32(Wait.HINTED), key)).astype(np.int32),
        x=np.where(decoding, output, elapsed_s * speed),
        speed=np.where(decoding, decode_rate, speed),
        tool=columns.tool[slot],
        turn=columns.turn[slot],
        prompt_tokens=np.where(np.isnan(prompt), mean_prompt_tokens, prompt),
        output_tokens=output,
        flushed=columns.flushed[slot],
        idle_s=np.nan_to_num(t_s - columns.answered_s[slot]),
    )


class Steps:
    """The time axis: coarse edges at which trajectories are evaluated, and bins of one second.

    Args:
        horizons_s: horizons; all become edges. Bins reach to the longest.
    """

    def __init__(self, horizons_s: tuple[float, ...]) -> None:
        self.horizons_s = horizons_s
        longest = int(np.ceil(max(horizons_s)))
        coarse = [t for t in _COARSE_S if t < longest]
        self.edges_s = np.array(sorted({*coarse, *horizons_s, float(longest)}))
        self.bins = longest
        self.ends_s = np.arange(1, longest + 1, dtype=np.float64)
        self.rounded_s = np.concatenate(([0.0], np.arange(longest) + 0.5))
        """Edges that round a duration to whole seconds, so that sums of durations are not biased."""
        self.at = np.searchsorted(self.edges_s, np.array(horizons_s))
        """Index of each horizon among the edges."""
        self.bin_at = np.minimum(np.ceil(np.array(horizons_s)).astype(np.intp), longest) - 1
        """Index of the bin that each horizon ends with."""
        self._spread = self._make_spread()

    def _make_spread(self) -> Array:
        begins = np.concatenate(([0.0], self.edges_s[:-1]))
        first, last = self.ends_s - 1.0, self.ends_s
        overlap = np.minimum(self.edges_s[:, None], last) - np.maximum(begins[:, None], first)
        spread: Array = np.maximum(overlap, 0.0) / (self.edges_s - begins)[:, None]
        return spread

    def to_bins(self, reached: Array) -> Array:
        """Cumulative values at the edges (last axis) as increments a bin."""
        increments: Array = np.diff(reached, axis=-1, prepend=0.0) @ self._spread
        return increments


_COARSE_S: Final = (
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
    10.0,
    12.0,
    15.0,
    20.0,
    25.0,
    30.0,
    40.0,
    50.0,
    60.0,
    90.0,
    120.0,
)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected, by horizon (H of them) and by bin (K seconds).

    Attributes:
        arrives: float64[rows, H], probability that a row's own next request becomes ready within the horizon.
        finishes: float64[rows, K], probability a bin that a decoding row's answer ends.
        tool, sandbox: float64[K], requests from waits under way.
        second: float64[K], requests that come back after an answer that is not complete yet, or a further turn.
        sampler: float64[K], first requests of trajectories not yet dispatched, but for a burst.
        burst: float64[K], first requests of the next burst, if it comes.
        burst_by: float64[H], probability that the burst has come by the horizon.
        queue: requests that wait for prefill, and how fast they are served.
        pause_s: seconds for which the workers stand still (a weight update).
        flush_from: first bin from which contexts are gone, by a flush that is announced; K if none is.
    """

    arrives: Array
    finishes: Array
    tool: Array
    sandbox: Array
    second: Array
    sampler: Array
    burst: Array
    burst_by: Array
    queue: Queue
    pause_s: float
    flush_from: int

    @property
    def requests(self) -> Array:
        """float64[K], all requests that become ready, without the burst."""
        return self.tool + self.sandbox + self.second + self.sampler


class Lookout:
    """Computes an :class:`Outlook` from rows and models; see the module's docstring."""

    def __init__(self, steps: Steps, learner: Learner, plan: RunPlan) -> None:
        self._steps = steps
        self._learner = learner
        self._plan = plan

    def look(self, rows: Rows, queue: Queue, t_s: float) -> Outlook:
        """What is expected from ``t_s`` on. The models must have been refreshed with ``rows``."""
        steps, _learner = self._steps, self._learner
        pause_s = self._pause_s(t_s)
        reached = self._reached(rows, pause_s)
        waiting, decoding = rows.waiting, rows.decoding
        bins = steps.to_bins(reached)
        started = (rows.state == State.DISPATCHED) | (rows.state == State.SANDBOX)
        tool = bins[rows.state == State.TOOL].sum(axis=0)
        sandbox = bins[started].sum(axis=0)
        finishes = np.where(decoding[:, None], bins, 0.0)
        rewarded = bins[rows.state == State.REWARD].sum(axis=0)
        second, ended = self._returns(rows, finishes, queue, pause_s)
        burst, burst_by = self._burst(t_s)
        start = self._fresh(Wait.START, 1.0)
        due = _convolve(self._unit(self._plan.due_now()), start)
        replaced, again = self._again(tool + sandbox + second + due, ended + rewarded, queue, rows)
        return Outlook(
            arrives=np.where(waiting[:, None], reached[:, steps.at], 0.0),
            finishes=finishes,
            tool=tool,
            sandbox=sandbox,
            second=second + again,
            sampler=due + replaced,
            burst=burst,
            burst_by=burst_by,
            queue=queue,
            pause_s=pause_s,
            flush_from=self._flush_from(t_s),
        )

    # --- rows -------------------------------------------------------------------------------------------------------

    def _reached(self, rows: Rows, pause_s: float) -> Array:
        """float64[rows, edges]: probability that each wait has ended by each edge."""
        still_s = np.where(rows.decoding, pause_s, 0.0)[:, None]
        later = rows.x[:, None] + rows.speed[:, None] * np.maximum(self._steps.edges_s - still_s, 0.0)
        ends = self._learner.waits.ends_by(rows.key[:, None], rows.x[:, None], later)
        queued = (rows.state == State.READY) | (rows.state == State.PREFILL)
        ends[queued] = 0.0
        return ends

    # --- after an answer --------------------------------------------------------------------------------------------

    def _returns(self, rows: Rows, finishes: Array, queue: Queue, pause_s: float) -> tuple[Array, Array]:
        """Requests that come back after answers under way or queued, and trajectories that end with these."""
        ends = self._end_chance(rows)
        start_bin = queue.prefilled_bins(pause_s + self._learner.prefill_latency_s.value, self._steps.bins)
        output = self._fresh(Wait.OUTPUT, self._learner.decode_rate.value)
        slots = np.searchsorted(rows.slot, queue.slot)
        queue_ends = ends[slots]
        going = finishes.T @ (1.0 - ends) + _convolve(_histogram(start_bin, 1.0 - queue_ends, self._steps.bins), output)
        ends_now = finishes.T @ ends + _convolve(_histogram(start_bin, queue_ends, self._steps.bins), output)
        return _convolve(going, self._gap()), _convolve(ends_now, self._reward())

    def _again(self, direct: Array, ended: Array, queue: Queue, rows: Rows) -> tuple[Array, Array]:
        """First requests of what replaces ended trajectories, and further turns of what arrives within the horizon."""
        learner, bins = self._learner, self._steps.bins
        start = self._fresh(Wait.START, 1.0)
        replace = min(learner.replaced.value, 1.0) if self._plan.left_to_dispatch > 0 else 0.0
        served = self._unit(1.0, round(queue.new_wait_s + learner.prefill_latency_s.value))
        answered = _convolve(served, self._fresh(Wait.OUTPUT, learner.decode_rate.value))
        end = float(self._end_chance(rows).mean()) if len(rows.slot) else float(self._learner.ends.chance[0])
        goes_on = (1.0 - end) * _convolve(answered, self._gap())
        is_replaced = end * replace * _convolve(_convolve(answered, self._reward()), start)
        firsts = _convolve(ended * replace, start)
        cycle = goes_on + is_replaced
        arriving = direct + firsts
        for _ in range(_DOUBLINGS):
            arriving = arriving + _convolve(arriving, cycle)
            cycle = _convolve(cycle, cycle)
        sampled = firsts + _convolve(arriving, is_replaced)
        sampled = self._cap(sampled)
        return sampled, np.maximum(_convolve(arriving, goes_on), 0.0)[:bins]

    def _cap(self, dispatches: Array) -> Array:
        """No more dispatches than the sampler has left."""
        reached = np.minimum(np.cumsum(dispatches), self._plan.left_to_dispatch)
        return np.diff(reached, prepend=0.0)

    def _end_chance(self, rows: Rows) -> Array:
        ends = self._learner.ends
        chance: Array = ends.chance[ends.bins(np.maximum(rows.turn, 0))]
        return chance

    def _gap(self) -> Array:
        """float64[K]: from an answer to the next request, over the tools as they come."""
        keys, shares = self._learner.next_tools()
        gap = np.zeros(self._steps.bins)
        for key, share in zip(keys, shares, strict=True):
            gap += share * self._fresh(key, 1.0)
        return _convolve(gap, self._fresh(Wait.RETURN, 1.0))

    def _reward(self) -> Array:
        """float64[K]: from the last answer to the end of the trajectory."""
        return self._fresh(Wait.REWARD, 1.0) if self._learner.has_rewards else self._unit(1.0)

    def _fresh(self, key: int, speed: float) -> Array:
        """float64[K]: a wait that begins now, rounded to whole seconds."""
        return self._learner.waits.fresh(key, self._steps.rounded_s * speed)

    def _unit(self, amount: float, at: int = 0) -> Array:
        unit = np.zeros(self._steps.bins)
        if at < self._steps.bins:
            unit[at] = amount
        return unit

    # --- planned events ---------------------------------------------------------------------------------------------

    def _pause_s(self, t_s: float) -> float:
        """Seconds for which an update under way keeps the workers still: the median of what is left."""
        if not self._plan.updating(t_s):
            return 0.0
        elapsed_s = self._plan.update_elapsed_s(t_s)
        return self._learner.waits.quantile(Wait.UPDATE, elapsed_s, 0.5) - elapsed_s

    def _flush_from(self, t_s: float) -> int:
        begins_in_s = self._plan.update_begins_in(t_s)
        if begins_in_s is None or not self._plan.flush_at_resume:
            return self._steps.bins
        lasts_s = self._pause_s(t_s) or self._learner.waits.quantile(Wait.UPDATE, 0.0, 0.5)
        return min(int(begins_in_s + lasts_s), self._steps.bins)

    def _burst(self, t_s: float) -> tuple[Array, Array]:
        """First requests of the next burst if it comes, and the probability that it has come by each horizon."""
        size, anchor = self._plan.next_burst(), self._plan.anchor
        if anchor is None or size <= 0:
            return self._unit(0.0), np.zeros(len(self._steps.at))
        key, since_s = anchor
        begins_in_s = self._plan.update_begins_in(t_s)
        elapsed_s, offset_s = max(t_s - since_s, 0.0), 0.0
        if begins_in_s is not None:
            key, elapsed_s, offset_s = Wait.UPDATE, self._plan.update_elapsed_s(t_s), begins_in_s
        later = elapsed_s + np.maximum(self._steps.edges_s - offset_s, 0.0)
        reached = self._learner.waits.ends_by(np.array(key), np.array(elapsed_s), later)
        comes = self._steps.to_bins(reached)
        arrives = _convolve(comes, self._fresh(Wait.START, 1.0)) * size
        return arrives, reached[self._steps.at]


def gap_classes(rows: Rows, ahead_s: float) -> NDArray[np.intp]:
    """The class of each row's gap if it ends within ``ahead_s``: half of that is added to what has passed."""
    return np.searchsorted(GAP_EDGES_S, rows.idle_s + ahead_s / 2)


def _convolve(first: Array, second: Array) -> Array:
    """Distribution of the sum of two whole numbers of seconds, cut off at the horizon."""
    return np.convolve(first, second)[: len(first)]


def _histogram(bins: NDArray[np.intp], weights: Array, length: int) -> Array:
    inside = bins < length
    return binned(bins[inside], weights[inside], length)
