"""What the forecast has learnt of a run: the models, fed by the lifecycle as facts come in."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.habits import LOST_FROM, AnswerLengths, EndModel, Growth, LossModel, Transitions
from prorsa.forecast.models import HazardModel, Prior, Ratio, Recent, SizeModel
from prorsa.forecast.moves import MOVES_FROM, MoveModel
from prorsa.forecast.priors import Expectant
from prorsa.forecast.requests import Request
from prorsa.forecast.scan import TURN_BUCKETS, turn_bucket
from prorsa.forecast.scoring import ScoreKeeper
from prorsa.forecast.siblings import FirstShare
from prorsa.forecast.speed import LoadedSpeed
from prorsa.forecast.waiting import WaitLoss
from prorsa.forecast.waits import MAX_WORKLOADS, Wait, WaitKeys

Array = NDArray[np.float64]

_PRIORS: Final[dict[Wait, Prior]] = {
    Wait.START: Prior(median=10.0, strength=1.0),
    Wait.RETURN: Prior(median=0.1, strength=1.0),
    Wait.REWARD: Prior(median=2.0, strength=1.0),
    Wait.OUTPUT: Prior(median=250.0),
    Wait.STEP_GAP: Prior(median=5.0),
    Wait.UPDATE: Prior(median=25.0, shape=4.0),
    Wait.RESUME: Prior(median=0.5, strength=1.0),
    Wait.HINTED: Prior(median=1.0, shape=6.0),
    Wait.STEP_BREAK: Prior(median=20.0, strength=0.3),
    Wait.UNKNOWN_TOOL: Prior(median=5.0),
}
_KEEP_CLASSES: Final = 0.99
"""How the mix of classes of what is dispatched forgets, a dispatch."""
_UNKNOWN_CLASS: Final = np.array([1e-9] + [0.0] * (MAX_WORKLOADS - 1))
"""Dispatches that are taken as seen before any was: of no known class."""
_MOMENT_S: Final = 1.0
"""While a prompt waits for less than this, hardly anything is evicted: what is missing elsewhere is at home."""


class Learner:
    """Feeds the models and the score keeper; a :class:`~prorsa.forecast.requests.LifecycleSink`. O(1) a fact.

    Attributes:
        waits: how long tools, start-ups, rewards, updates (seconds) and answers (tokens over ``lengths``) last.
        appended: tokens that the result of an action appends to the context, by action and class of turns.
        growth: how much more is appended after a long gap, less after a short one.
        lengths: how much longer answers are at some turns than at others.
        losses: whether a returning prompt no longer finds its context cached anywhere.
        moves: whether a turn leaves its context behind.
        wait_losses: how much of what the router's index counts as cached at home is gone after a wait.
        transitions: which action follows which.
        ends: whether a trajectory ends with a turn.
        first_share: the uncached share of first prompts.
        first_prompts: sizes of first prompts by workload class.
        uncached_output: the share of an answer that the next prefill computes again.
        output_rate: output tokens a second of one decoding request, by how many decode.
        prefill_latency_s: from admission to the end of prefill.
        replaced: dispatches an ended trajectory.
        new_wait_s: how long a request that arrives now will wait, as of the last tick.
        mean_output_tokens: of an answer, as of the last tick.
        classes: float64[classes], shares of the workload classes in what is dispatched, as of the last tick; all
            unknown before anything was.
    """

    def __init__(self, keys: WaitKeys, scores: ScoreKeeper) -> None:
        self.keys = keys
        self.waits = HazardModel(tuple(_PRIORS[wait] for wait in Wait))
        self.appended = SizeModel(prior_tokens=500.0)
        self.growth = Growth()
        self.lengths = AnswerLengths()
        self.losses = LossModel()
        self.moves = MoveModel()
        self.wait_losses = WaitLoss()
        self.transitions = Transitions()
        self.ends = EndModel()
        self.first_share = FirstShare()
        self.first_prompts = SizeModel(prior_tokens=8000.0, half_life=200.0, shrinkage=2.0)
        self.uncached_output = Recent(prior=1.0, memory=1e5, prior_weight=1e3)
        self.output_rate = LoadedSpeed(40.0, memory=300.0, prior_weight=4.0)
        self.prefill_latency_s = Recent(prior=0.5, memory=64.0)
        self.replaced = Ratio(prior=1.0, time_constant_s=300.0)
        self.has_rewards = False
        self._expectant = Expectant(
            keys,
            self.waits,
            self.appended,
            self.first_prompts,
            self.transitions,
            self.ends,
            self.losses,
            self.lengths,
        )
        self.new_wait_s = 0.0
        self.mean_output_tokens = 300.0
        self.ready_tokens = 0.0
        self.admitted_tokens = 0.0
        self.admitted_uncached = 0.0
        self.prefilled_tokens = 0.0
        self._scores = scores
        self._progress = [0.0, 0.0]
        self._latency = [0.0, 0.0]
        self._again = [0.0, 0.0]
        self._dispatched = 0
        self._ended = 0
        self._dispatched_of = np.zeros(MAX_WORKLOADS)
        self._turn_groups = np.zeros(0, np.int32)
        self.classes = np.ones(1)

    # --- the sink ---------------------------------------------------------------------------------------------------

    def dispatched(self, workload: int, *, sibling: bool) -> None:
        """See :class:`~prorsa.forecast.requests.LifecycleSink`, here and below."""
        self.first_share.dispatched(sibling=sibling)
        self._dispatched += 1
        self._dispatched_of *= _KEEP_CLASSES
        self._dispatched_of[workload] += 1.0

    def waited(self, key: int, duration_s: float, expected_s: float | None, slower: float = 1.0) -> None:
        self.waits.add(key, duration_s / slower if self.keys.kind[key] == Wait.UNKNOWN_TOOL else duration_s)
        if expected_s:
            self.waits.add(Wait.HINTED, duration_s / expected_s)
        if self.keys.kind[key] == Wait.REWARD:
            self.has_rewards = True

    def turn_over(
        self, workload: int, turn: int, context_tokens: float, *, ended: bool, truncated: bool = False
    ) -> float:
        chance = self.ends.chance(workload, turn)
        self.ends.add(workload, turn, context_tokens, ended=ended, truncated=truncated)
        return chance

    def ready(self, t_s: float, request: Request) -> None:
        if request.turn == 0:
            self.first_share.ready(t_s)
        self._scores.ready(t_s, request)
        self.ready_tokens += self.expected_uncached(request)
        if request.turn == 0:
            self.first_prompts.add(request.workload, request.prompt_tokens)
        elif request.previous_action is not None:
            self.transitions.add(request.previous_action, request.action)
            grown = request.grown_tokens
            if grown is not None:
                self._learn_appended(request, max(grown, 1.0))

    def _learn_appended(self, request: Request, tokens: float) -> None:
        cell = request.action * TURN_BUCKETS + turn_bucket(request.turn)
        if request.gap_s is not None and cell < len(self.appended.means):
            self.growth.add(request.gap_s, tokens, float(self.appended.means[cell]))
        self.appended.add(cell, tokens)

    def admitted(self, t_s: float, request: Request) -> None:
        self._scores.admitted(t_s, request)
        self.admitted_tokens += request.kv_tokens + self.mean_output_tokens
        self.admitted_uncached += self.expected_uncached(request)

    def prefilled(self, t_s: float, request: Request) -> None:
        self._scores.prefilled(t_s, request)
        if request.admitted_s is not None:
            self._latency[0] += max(t_s - request.admitted_s, 0.0)
            self._latency[1] += 1.0
        self._learn_uncached(request)

    def progressed(self, tokens: float, duration_s: float) -> None:
        self._progress[0] += tokens
        self._progress[1] += duration_s

    def answered(self, request: Request) -> None:
        self._scores.answered(request)
        assert request.output_tokens is not None
        key = int(self.keys.output_key[request.action])
        if key < len(self.waits.means):
            self.lengths.add(request.workload, request.turn, request.output_tokens, float(self.waits.means[key]))
        usual = self.lengths.of(request.workload, request.turn) * request.longer
        self.waits.add(key, request.output_tokens / usual)

    def lost(self, t_s: float, request: Request) -> None:
        self._scores.lost(t_s, request)

    def ended(self) -> None:
        self._ended += 1

    def _learn_uncached(self, request: Request) -> None:
        uncached = request.uncached_tokens
        assert uncached is not None
        self.prefilled_tokens += uncached
        if request.turn == 0:
            took_s = (request.prefilled_s or request.ready_s) - request.ready_s
            starts = self.first_share.starts(request.ready_s, took_s)
            self.first_share.prefilled(uncached, request.prompt_tokens, sibling=request.sibling, starts=starts)
            return
        before = request.previous_prompt_tokens
        if before is None or request.flushed:
            return
        lost = self._learn_lost(request, uncached, before)
        self._learn_wait(request, uncached)
        grown = request.grown_tokens
        if not lost and grown is not None and request.previous_output_tokens:
            # Where a context shrank its answer came back shorter: that much less of it is computed again.
            self._again[0] += min(max(uncached - max(grown, 0.0), 0.0), request.previous_output_tokens)
            self._again[1] += request.previous_output_tokens

    def _learn_lost(self, request: Request, uncached: int, before: int) -> bool:
        """Whether a context was missed: gone from every cache, or left behind at a home that was crowded."""
        fresh = max(request.prompt_tokens - before, 0)
        gone = _share(uncached - fresh, before)
        if request.answered_s is None or request.prefilled_s is None:
            return gone >= LOST_FROM
        found = request.ready_index_tokens
        if found is None:  # all that was lost was lost by then
            self.losses.add(request.prefilled_s - request.answered_s, gone, before, second=request.turn == 1)
            return gone >= LOST_FROM
        missing = _share(found - fresh, before)
        self.losses.add(request.ready_s - request.answered_s, missing, before, second=request.turn == 1)
        if missing >= LOST_FROM:
            return True
        held = request.prompt_tokens - found
        later = _share(uncached - max(found, self._at_home(request, fresh)), held)
        waited_s = max((request.admitted_s or request.ready_s) - request.ready_s, 0.0)
        moved = request.home not in (None, 0)
        if moved and (request.crowding_sent >= MOVES_FROM or waited_s < _MOMENT_S):
            self.moves.add(request.crowding, held, later, first_tokens=request.first_tokens)
            return True
        if later < LOST_FROM:
            self.moves.add(request.crowding, held, 0.0, first_tokens=request.first_tokens)
        return later >= LOST_FROM

    def _at_home(self, request: Request, fresh: int) -> float:
        """Tokens that a turn computes where it was before: decode has the answer, prefill may not."""
        grown = request.grown_tokens
        if grown is None or grown < 0 or request.previous_output_tokens is None:
            return float(fresh)
        return grown + self.uncached_output.value * request.previous_output_tokens

    def _learn_wait(self, request: Request, uncached: int) -> None:
        index = request.ready_index_tokens
        if request.home is None or index is None or request.admitted_s is None:
            return
        held, waited_s = max(request.prompt_tokens - index, 0), max(request.admitted_s - request.ready_s, 0.0)
        self.wait_losses.add(waited_s, held, min(max(uncached - index, 0), held), at_home=request.home == 0)

    # --- a tick -----------------------------------------------------------------------------------------------------

    def close_tick(self, elapsed_s: float, decoding: float) -> None:
        """Take what has gathered since the last tick into the rates; so many requests decode."""
        self.output_rate.add(self._progress[0], self._progress[1], decoding, elapsed_s)
        self.prefill_latency_s.add(*self._latency)
        self.uncached_output.add(*self._again)
        self.replaced.add(min(self._dispatched, self._ended), self._ended, elapsed_s)
        self._progress, self._latency = [0.0, 0.0], [0.0, 0.0]
        self._again = [0.0, 0.0]
        self._dispatched = self._ended = 0
        self.ready_tokens = self.admitted_tokens = self.admitted_uncached = self.prefilled_tokens = 0.0

    def meet_classes(self) -> None:
        """Take in what is known of workload classes that have begun since the last call: this may number new keys."""
        self._expectant.catch_up()
        self.has_rewards |= self._expectant.has_rewards

    def refresh(self, ongoing: Array) -> None:
        """Bring every model up to date with the waits under way: float64[keys, bins], how many are where."""
        keys = self.keys
        self.waits.refresh(len(keys), ongoing, keys.kinds)
        if len(self._turn_groups) < keys.actions * TURN_BUCKETS:
            self._turn_groups = _by_class_and_turn(keys.workload_of)
        self.appended.refresh(len(self._turn_groups), self._turn_groups)
        self.growth.refresh()
        self.lengths.refresh()
        self.first_prompts.refresh(len(keys.workloads))
        self.transitions.refresh(keys.actions, keys.workload_of)
        self.losses.refresh()
        self.moves.refresh()
        self.wait_losses.refresh()
        self.ends.refresh()
        of = self._dispatched_of[: len(keys.workloads)] + _UNKNOWN_CLASS[: len(keys.workloads)]
        self.classes = of / of.sum()

    @property
    def computed_s(self) -> float:
        """How long it takes until what arrives now has been computed."""
        return self.new_wait_s + self.prefill_latency_s.value

    def _lost_in_wait(self, request: Request) -> float:
        """Tokens that will be lost while a request waits for its admission."""
        if request.answered_s is None or request.admitted_s is not None:
            return 0.0
        held = request.prompt_tokens - (request.index_tokens or 0)
        left = 0.0 if request.placed else self.moves.missing_of(request.crowding, held, request.first_tokens)
        return (1.0 - (1.0 - self.lost_in_wait) * (1.0 - left)) * held

    @property
    def lost_in_wait(self) -> float:
        """Share of a context that is gone from where it was found when a request that arrives now is prefilled."""
        return float(self.wait_losses.after(np.array(self.new_wait_s))) if self.new_wait_s > 0.0 else 0.0

    def expected_uncached(self, request: Request) -> float:
        """Uncached tokens of a request: by the router's index and what may be lost before its prefill; without an
        index the whole prompt of a first turn, else a typical turn. What a sibling computes before it is not counted.
        """
        if request.uncached_tokens is not None:
            return float(request.uncached_tokens)
        if request.turn == 0 and request.sibling and not request.placed:
            index = request.prompt_tokens if request.index_tokens is None else request.index_tokens
            prompt = np.array(float(request.prompt_tokens))
            again = self.first_share.of_siblings(prompt, self.first_share.starts(request.ready_s, self.computed_s))
            return min(float(index), float(again))
        if request.index_tokens is not None:
            return request.index_tokens + self._lost_in_wait(request)
        if request.turn == 0 or len(self.appended.means) == 0:
            return float(request.prompt_tokens)
        return float(min(self.appended.means[0], request.prompt_tokens))


def _by_class_and_turn(workload_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """The group of each cell of an action and a class of turns: whatever the action, turns of a class are alike."""
    groups: NDArray[np.int32] = (workload_of[:, None] * TURN_BUCKETS + np.arange(TURN_BUCKETS)).ravel().astype(np.int32)
    return groups


def _share(part: float, whole: float) -> float:
    """From 0 to 1."""
    return min(max(part / max(whole, 1.0), 0.0), 1.0)
