"""Where demand comes from: expected arrivals by source, second by second, from where each trajectory stands.

Times are bins of one second from the tick. One pass over the live trajectories (:mod:`prorsa.forecast.scan`) says when
each wait and each answer under way ends; from there on a fluid of requests moves through the seconds
(:mod:`prorsa.forecast.flow`). Bursts at step beginnings follow the announced or usual end of the update before them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.averages import following_cells, mean_loss, means_of_first, put_out_by
from prorsa.forecast.beliefs import Beliefs, Expected, Places, Slots, nothing_expected, slots_of
from prorsa.forecast.columns import Columns, State
from prorsa.forecast.ending import all_by, cut_short, left_by
from prorsa.forecast.flow import FIRST, Cycle, Pool, Streams, flow
from prorsa.forecast.following import held_back
from prorsa.forecast.fresh import FreshWaits
from prorsa.forecast.generations import Generations, convolved, generations
from prorsa.forecast.learn import Learner
from prorsa.forecast.models import DURATION_GRID, SIZE_GRID
from prorsa.forecast.plan import RunPlan
from prorsa.forecast.ranks import Ranks
from prorsa.forecast.scan import TURN_BUCKETS, after_gaps, next_answers, place, scan
from prorsa.forecast.steps import Steps
from prorsa.forecast.streams import Line, streams_of
from prorsa.forecast.waiting import Queue
from prorsa.forecast.waits import Wait

Array = NDArray[np.float64]

_UNLIKELY: Final = 1e-3
"""Bursts less likely than this are left out."""


_AHEAD_S: Final = 15
"""Seconds over which the batch to come sets how fast answers are expected to be put out."""


class Burst(NamedTuple):
    """Requests that a burst adds, in the layout of :class:`~prorsa.forecast.flow.Streams`, and KV that decode holds."""

    second: Array
    sampler: Array
    admitted: Array
    kv: Array | float


@dataclass(frozen=True)
class Outlook:
    """What is expected, by horizon (H of them) and by second (K).

    Attributes:
        expected: sums over the live trajectories.
        streams: what moves, a second, if no burst comes.
        cycle: what a turn takes and brings on average.
        appended: float64[size bins], shares of sizes of what the next results append.
        lost: chance that a context is lost over a gap, on average, and the share of it that is missing then.
        burst: what the next burst of first requests adds to that, weighted by the probability that it comes.
        burst_by: float64[H], probability that the burst has come by the horizon.
        queue: requests that wait for prefill, and how fast they are served; ``answers`` float64[n], expected tokens of
            their answers.
        pause_s: seconds for which the workers stand still (a weight update).
        decoding, resident: requests that decode now, and KV tokens that decode holds.
        going_on: float64[K], probability that an over-sampled step has not been cut off by the end of each second; None
            where none is. It is in all of the above but the queue.
    """

    expected: Expected
    streams: Streams
    cycle: Cycle
    appended: Array
    lost: tuple[float, float]
    burst: Burst
    burst_by: Array
    queue: Queue
    answers: Array
    pause_s: float
    decoding: float
    resident: float
    going_on: Array | None = None

    @cached_property
    def mean_context_tokens(self) -> float:
        """Mean prompt of the live trajectories past their first turn; a first prompt where there is none."""
        total, number = self.expected.totals[3:5]
        return float(total / number) if number > 0 else self.cycle.first_prompt

    @cached_property
    def mean_new_tokens(self) -> float:
        """Expected uncached tokens of requests that come back."""
        c = self.cycle
        found = c.uncached_output * c.answer_tokens + c.appended_tokens + c.moved_tokens
        chance, share = self.lost
        missed = share * self.mean_context_tokens + c.answer_tokens + c.appended_tokens
        return (1.0 - chance) * found + chance * missed


class Lookout:
    """Computes an :class:`Outlook` from columns and models; see the module's docstring."""

    def __init__(self, steps: Steps, learner: Learner, plan: RunPlan, ranks: Ranks) -> None:
        self._steps = steps
        self._learner = learner
        self._ranks = ranks
        self._fresh = FreshWaits(steps, learner)
        self._plan = plan
        self._at = Places(np.zeros(0, np.int32), np.zeros(0), np.zeros(0))
        self._batch_ahead: float | None = None
        self._output_rate = learner.output_rate.value
        self._begin_per_s = 0.0

    def refresh(self, columns: Columns, t_s: float) -> Slots:
        """Find where each trajectory is in its wait, and bring the models up to date with that."""
        learner, s = self._learner, slots_of(columns)
        learner.meet_classes()
        if len(self._at.key) != columns.capacity:
            self._at = Places(
                np.zeros(columns.capacity, np.int32), np.zeros(columns.capacity), np.zeros(columns.capacity)
            )
        ongoing = np.zeros((len(learner.keys), DURATION_GRID.bins))
        rate, ahead = learner.output_rate, self._batch_ahead
        self._output_rate = rate.value if ahead is None else rate.at(ahead)
        place(s, t_s, self._output_rate, learner.keys.output_key, learner.lengths.factor, self._at, ongoing)
        learner.refresh(ongoing)
        return s

    def look(self, s: Slots, queue: Queue, t_s: float, resident: float) -> Outlook:
        """What is expected from ``t_s`` on. The models must have been refreshed with ``s``."""
        steps = self._steps
        pause_s = self._pause_s(t_s)
        beliefs = self._beliefs(pause_s, queue)
        expected = nothing_expected(len(steps.edges_s), len(steps.at), SIZE_GRID.bins, len(beliefs.appended))
        scan(s, self._at, t_s, beliefs, steps.edges_s, steps.at, expected)
        ends, answers = next_answers(beliefs, s, queue.slot)
        cycle, appended, lost = self._cycle(s, expected, beliefs, ends)
        decoding, held = float(expected.totals[1]), self._held_back(s, queue)
        pool = self._pool(queue, pause_s, decoding, resident, t_s)
        calm = self._streams(expected, held, queue, ends, pool, np.zeros(steps.bins), cycle)
        flow(cycle, pool, calm)
        self._batch_ahead, self._begin_per_s = means_of_first(calm.batch, calm.box, calm.sampler, _AHEAD_S)
        over = self._step_over(s, float(expected.totals[0]), calm)
        burst, burst_by = self._burst(t_s) if over is None else self._burst_after(over)
        added = self._added(expected, held, queue, ends, cycle, pool, burst, float(burst_by[-1]), calm)
        going_on = None
        if over is not None and self._plan.groups.over_sampled:
            going_on = 1.0 - over
            expected, calm = cut_short(expected, calm, going_on, steps.bin_at)
        return Outlook(
            expected,
            calm,
            cycle,
            appended,
            lost,
            added,
            burst_by,
            queue,
            answers,
            pause_s,
            decoding,
            resident,
            going_on,
        )

    # --- what is known ----------------------------------------------------------------------------------------------

    def _beliefs(self, pause_s: float, queue: Queue) -> Beliefs:
        learner = self._learner
        waits, keys = learner.waits, learner.keys
        first_tokens = self._first_tokens()
        return Beliefs(
            survival=waits.tables.survival,
            slope=waits.tables.slope,
            edges=waits.tables.edges,
            output_key=keys.output_key,
            output_mean=waits.means[keys.output_key],
            lengths=learner.lengths.factor,
            appended=learner.appended.means,
            idle_centres=learner.growth.centres,
            growth=learner.growth.factor,
            ends_by_turn=learner.ends.tables.by_turn,
            ends_by_context=learner.ends.tables.by_context,
            loss_chance=learner.losses.tables.chance,
            loss_share=learner.losses.tables.share,
            move_chance=learner.moves.tables.chance,
            move_share=learner.moves.tables.share,
            rank_work=queue.rank_work,
            least_work=self._ranks.least_work,
            rank_tokens_per_s=self._ranks.tokens_per_s,
            first_share=learner.first_share.shares(first_tokens, self._starts()),
            output_rate=self._output_rate,
            pause_s=pause_s,
            lost_in_wait=learner.lost_in_wait,
            uncached_output=learner.uncached_output.value,
            first_tokens=first_tokens,
        )

    def _first_tokens(self) -> float:
        """Mean first prompt: what the sampler says, else what was seen."""
        learner = self._learner
        seen = float(learner.classes @ learner.first_prompts.means[: len(learner.keys.workloads)])
        return self._plan.expected_prompt_tokens or seen

    def _cycle(self, s: Slots, e: Expected, m: Beliefs, ends: Array) -> tuple[Cycle, Array, tuple[float, float]]:
        """A turn on average, the shares of sizes of what results append, and the chance that a context is lost."""
        learner, steps = self._learner, self._steps
        coming, going_on = e.coming, float(e.coming.sum())
        if going_on <= 0.0:
            coming = np.zeros(len(coming))
            coming[self._beginning() * TURN_BUCKETS] = 1.0
        sizes = following_cells(coming, learner.transitions.chance, TURN_BUCKETS)
        answered = e.totals[1] + len(ends)
        ended = float(ends.sum()) + float(e.totals[1]) - (going_on - len(ends))
        ended = min(max(ended / answered, 0.0), 1.0) if answered > 0 else float(m.ends_by_turn[0, 0])
        following = self._following(s, m, ended)
        put_out, answer = put_out_by(m.output_rate, learner.prefill_latency_s.value, steps.rounded_s)
        gap = convolved(self._fresh.gaps(following), self._fresh.of(Wait.RETURN))
        lost, gone, growth = after_gaps(m, steps.middles_s, following.second)
        cycle = Cycle(
            output=self._fresh.outputs(following, put_out),
            answer=answer,
            gap=gap,
            reward=self._fresh.by_class(learner.keys.reward_key) if learner.has_rewards else self._unit(1.0),
            start=self._fresh.by_class(learner.keys.start_key),
            lost=lost,
            lost_share=gone,
            growth=growth,
            appended=following.appended,
            end=following.end,
            answers=following.answer,
            moved_tokens=float(e.totals[6]) / max(float(e.totals[4]), 1.0),
            answer_tokens=float(following.answer[0 if following.answer[0] > 0.0 else FIRST]),
            appended_tokens=float(sizes @ m.appended),
            uncached_output=m.uncached_output,
            first_prompt=m.first_tokens,
            first_new=m.first_tokens * float(m.first_share[2]),
            burst_new=m.first_tokens * self._burst_share(m.first_tokens),
        )
        return cycle, sizes @ learner.appended.shares, mean_loss(gap[0], lost[0], gone[0])

    def _following(self, s: Slots, m: Beliefs, ended: float) -> Generations:
        """The next generations of turns, if the share ``ended`` of the answers to come are the last."""
        keys = self._learner.keys
        first = np.zeros(keys.actions)
        first[keys.beginning] = self._learner.classes
        return generations(s, m, first, self._learner.transitions.chance, keys.workload_of, ended)

    def _burst_share(self, first_tokens: float) -> float:
        """The share of first prompts that is computed of those that are dispatched at once."""
        due = self._plan.due_now()
        if due <= 0.0 and not self._plan.finishing and self._plan.anchor is None:
            return 0.0  # no burst is to come
        size = max(due, self._plan.next_burst(), 1.0)
        together = size * float(self._fresh.by_class(self._learner.keys.start_key).max())
        return float(self._learner.first_share.shares(first_tokens, max(together, self._starts()))[2])

    def _starts(self) -> float:
        """First requests that will start together."""
        return self._learner.first_share.at_rate(self._begin_per_s, self._learner.computed_s)

    def _beginning(self) -> int:
        """The beginning of the class that is dispatched most."""
        return self._learner.keys.beginning[int(np.argmax(self._learner.classes))]

    # --- what moves -------------------------------------------------------------------------------------------------

    def _added(
        self,
        e: Expected,
        held: Array,
        queue: Queue,
        ends: Array,
        cycle: Cycle,
        pool: Pool,
        burst: Array,
        likely: float,
        calm: Streams,
    ) -> Burst:
        """What the burst and all that follows from it adds to what moves without it."""
        if likely <= _UNLIKELY:
            nothing = np.zeros(calm.second.shape)
            return Burst(nothing, nothing, np.zeros(calm.admitted.shape), 0.0)
        with_it = self._streams(e, held, queue, ends, pool, burst / likely, cycle)
        left = max(pool.left - float(burst.sum()) / likely, 0.0)
        flow(cycle, pool._replace(left=left), with_it)
        return Burst(
            second=likely * (with_it.second - calm.second),
            sampler=likely * (with_it.sampler - calm.sampler),
            admitted=likely * (with_it.admitted - calm.admitted),
            kv=likely * (with_it.kv - calm.kv),
        )

    def _streams(
        self, e: Expected, held: Array, queue: Queue, ends: Array, pool: Pool, burst: Array, cycle: Cycle
    ) -> Streams:
        steps = self._steps
        seconds = steps.bins
        line = Line(
            queue.admitted_bins(pool.pause_s, seconds),
            queue.prefilled_bins(pool.pause_s, seconds),
            queue.admitted,
            queue.prompt_tokens,
            ends,
        )
        dispatched = burst + self._plan.due_now() * cycle.start
        streams = streams_of(e, held, steps.spread, line, dispatched, cycle.burst_new, cycle.first_prompt)
        # A flush that is announced takes the contexts of all that come back after it.
        streams.tool[1, pool.flush_from :] = streams.tool[2, pool.flush_from :]
        return streams

    def _held_back(self, s: Slots, queue: Queue) -> Array:
        """See :func:`~prorsa.forecast.following.held_back`."""
        ranks = self._ranks
        return held_back(
            s, self._at, queue, self._learner.waits.tables, self._steps.edges_s, ranks.tokens_per_s, ranks.slack_s
        )

    def _pool(self, queue: Queue, pause_s: float, decoding: float, resident: float, t_s: float) -> Pool:
        learner, plan = self._learner, self._plan
        return Pool(
            tokens_per_s=queue.tokens_per_s,
            waits_s=queue.waits_s,
            pause_s=pause_s,
            output_rate=self._output_rate,
            left=float(max(plan.left_to_dispatch - plan.due_now(), 0.0)),
            replaced=0.0 if plan.held_back else min(learner.replaced.value, 1.0),
            flush_from=self._flush_from(t_s),
            decoding=decoding,
            resident=resident,
        )

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

    def _step_over(self, s: Slots, live: float, calm: Streams) -> Array | None:
        """float64[K], probability that the step under way is over; None where none can end."""
        if not self._plan.finishing or live <= 0.0:
            return None
        rewarded = float((s.state == State.REWARD).sum())
        left, groups = left_by(rewarded, live - rewarded, calm), self._plan.groups
        return groups.complete_by(left) if groups.over_sampled else all_by(rewarded, live - rewarded, left)

    def _burst_after(self, over: Array) -> tuple[Array, Array]:
        """As :meth:`_burst`, after a step that is still to end."""
        comes = _convolve(np.diff(over, prepend=0.0), self._fresh.of(Wait.STEP_BREAK))
        arrives = _convolve(comes, self._fresh.by_class(self._learner.keys.start_key)) * self._plan.next_burst()
        return arrives, np.cumsum(comes)[self._steps.bin_at]

    def _burst(self, t_s: float) -> tuple[Array, Array]:
        """First requests of the next burst if it comes, and the probability that it has come by each horizon."""
        size, anchor = self._plan.next_burst(), self._plan.anchor
        if anchor is None or size <= 0:
            return self._unit(0.0), np.zeros(len(self._steps.at))
        key, since_s = anchor
        begins_in_s = self._plan.update_begins_in(t_s)
        elapsed_s, offset_s = max(t_s - since_s, 0.0), 0.0
        if begins_in_s is None and key == Wait.UPDATE:
            return self._unit(0.0), np.zeros(len(self._steps.at))  # held back, and no update is known to come
        if begins_in_s is not None:
            key, elapsed_s, offset_s = Wait.UPDATE, self._plan.update_elapsed_s(t_s), begins_in_s
        later = elapsed_s + np.maximum(self._steps.edges_s - offset_s, 0.0)
        reached = self._learner.waits.ends_by(np.array(key), np.array(elapsed_s), later)
        comes = self._steps.to_bins(np.diff(reached, prepend=0.0))
        arrives = _convolve(comes, self._fresh.by_class(self._learner.keys.start_key)) * size
        return arrives, reached[self._steps.at]


def _convolve(first: Array, second: Array) -> Array:
    """Distribution of the sum of two whole numbers of seconds, cut off at the horizon."""
    return np.convolve(first, second)[: len(first)]
