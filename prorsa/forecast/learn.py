"""What the forecast has learnt of a run: the models, fed by the lifecycle as facts come in."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.models import EndModel, EvictionModel, Frequencies, HazardModel, Prior, Ratio, Share, SizeModel
from prorsa.forecast.requests import Request
from prorsa.forecast.scoring import ScoreKeeper
from prorsa.forecast.waits import Wait, WaitKeys

Array = NDArray[np.float64]

GAP_EDGES_S: Final = np.array([5.0, 20.0, 60.0])
"""Classes of gaps: the longer a tool ran, the more new tokens it brings and the likelier its cache is gone."""
GAPS: Final = len(GAP_EDGES_S) + 1

_PRIORS: Final[dict[Wait, Prior]] = {
    Wait.START: Prior(median=10.0, strength=1.0),
    Wait.RETURN: Prior(median=0.1, strength=1.0),
    Wait.REWARD: Prior(median=2.0, strength=1.0),
    Wait.OUTPUT: Prior(median=250.0),
    Wait.STEP_GAP: Prior(median=5.0),
    Wait.UPDATE: Prior(median=20.0, shape=4.0),
    Wait.RESUME: Prior(median=0.5, strength=1.0),
    Wait.HINTED: Prior(median=1.0, shape=6.0),
    Wait.UNKNOWN_TOOL: Prior(median=5.0),
}
_FOUND_BELOW: Final = 0.1
"""A prompt that misses less than this share of its previous one in the cache has found its context."""


class Learner:
    """Feeds the models and the score keeper; a :class:`~prorsa.forecast.requests.LifecycleSink`. O(1) a fact.

    Attributes:
        waits: how long tools, start-ups, rewards, updates (seconds) and answers (tokens) last.
        hits: uncached tokens of prompts that find their context cached, by (tool, gap class).
        evicted: the share of its context that a returning prompt no longer finds cached.
        next_gap: how often which (tool, gap class) follows an answer.
        ends: whether a trajectory ends with a turn.
        first_share: the uncached share of first prompts.
        first_prompts: sizes of first prompts.
        decode_rate: output tokens a second of one decoding request.
        prefill_latency_s: from admission to the end of prefill.
        wait_s: from ready to admission.
        replaced: dispatches an ended trajectory.
        new_wait_s: how long a request that arrives now will wait, as of the last tick.
    """

    def __init__(self, keys: WaitKeys, scores: ScoreKeeper) -> None:
        self.keys = keys
        self.waits = HazardModel(tuple(_PRIORS[wait] for wait in Wait))
        self.hits = SizeModel(prior_tokens=500.0)
        self.evicted = EvictionModel()
        self.first_share = Share(prior=1.0, keys=1)
        self.first_prompts = SizeModel(prior_tokens=8000.0, half_life=200.0)
        self.next_gap = Frequencies()
        self.ends = EndModel()
        self.decode_rate = Ratio(prior=40.0, time_constant_s=10.0, prior_weight=4.0)
        self.prefill_latency_s = Ratio(prior=0.5, time_constant_s=20.0)
        self.wait_s = Ratio(prior=0.0, time_constant_s=20.0)
        self.replaced = Ratio(prior=1.0, time_constant_s=300.0)
        self.has_rewards = False
        self.new_wait_s = 0.0
        self.ready_tokens = 0.0
        self.admitted_tokens = 0.0
        self.admitted_uncached = 0.0
        self._scores = scores
        self._mean_output = 300.0
        self._progress = [0.0, 0.0]
        self._latency = [0.0, 0.0]
        self._waiting = [0.0, 0.0]
        self._dispatched = 0
        self._ended = 0

    # --- the sink ---------------------------------------------------------------------------------------------------

    def dispatched(self) -> None:
        """See :class:`~prorsa.forecast.requests.LifecycleSink`, here and below."""
        self._dispatched += 1

    def waited(self, key: int, duration_s: float, expected_s: float | None) -> None:
        self.waits.add(key, duration_s)
        if expected_s:
            self.waits.add(Wait.HINTED, duration_s / expected_s)
        if key == Wait.REWARD:
            self.has_rewards = True

    def turn_over(self, turn: int, *, ended: bool) -> None:
        self.ends.add(turn, ended=ended)

    def ready(self, t_s: float, request: Request) -> None:
        self._scores.ready(t_s, request)
        self.ready_tokens += self.expected_uncached(request)
        if request.turn == 0:
            self.first_prompts.add(0, request.prompt_tokens)
        if request.tool_key >= Wait.UNKNOWN_TOOL:
            self.next_gap.add(hit_key(request.tool_key, gap_class(request.gap_s)))

    def admitted(self, t_s: float, request: Request) -> None:
        self._scores.admitted(t_s, request)
        self.admitted_tokens += request.kv_tokens + self._mean_output
        self.admitted_uncached += self.expected_uncached(request)
        self._waiting[0] += t_s - request.ready_s
        self._waiting[1] += 1.0

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
        self.waits.add(Wait.OUTPUT, request.output_tokens)

    def lost(self, t_s: float, request: Request) -> None:
        self._scores.lost(t_s, request)

    def ended(self) -> None:
        self._ended += 1

    def _learn_uncached(self, request: Request) -> None:
        uncached = request.uncached_tokens
        assert uncached is not None
        if request.turn == 0:
            self.first_share.add(0, uncached / max(request.prompt_tokens, 1))
            return
        before = request.previous_prompt_tokens
        if before is None or request.flushed:
            return
        grown = max(request.prompt_tokens - before, 0)
        gone = min(max(uncached - grown, 0) / max(before, 1), 1.0)
        gap = gap_class(request.gap_s)
        if request.answered_s is not None and request.prefilled_s is not None:
            self.evicted.add(request.prefilled_s - request.answered_s, gone)
        if gone < _FOUND_BELOW:
            self.hits.add(hit_key(request.tool_key, gap), uncached)

    # --- a tick -----------------------------------------------------------------------------------------------------

    def close_tick(self, elapsed_s: float) -> None:
        """Take what has gathered since the last tick into the rates."""
        self.decode_rate.add(self._progress[0], self._progress[1], elapsed_s)
        self.prefill_latency_s.add(self._latency[0], self._latency[1], elapsed_s)
        self.wait_s.add(self._waiting[0], self._waiting[1], elapsed_s)
        self.replaced.add(min(self._dispatched, self._ended), self._ended, elapsed_s)
        self._progress, self._latency, self._waiting = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self._dispatched = self._ended = 0
        self.ready_tokens = self.admitted_tokens = self.admitted_uncached = 0.0

    def refresh(self, ongoing_key: NDArray[np.integer], ongoing_x: Array) -> None:
        """Bring every model up to date with the waits under way."""
        self.waits.refresh(len(self.keys), ongoing_key, ongoing_x)
        self.hits.refresh(hit_key(len(self.keys) - 1, GAPS - 1) + 1)
        self.first_prompts.refresh(1)
        self.evicted.refresh()
        self.ends.refresh()
        self._mean_output = self.waits.mean(Wait.OUTPUT)

    def next_tools(self) -> tuple[list[int], Array]:
        """Tools by key, and how likely each follows an answer; an unknown one before any was seen."""
        keys, shares = self.next_gap.frequencies()
        if not keys:
            return [Wait.UNKNOWN_TOOL], np.ones(1)
        tools = np.bincount(np.array(keys) // GAPS, shares).astype(np.float64)
        return [int(tool) + Wait.UNKNOWN_TOOL for tool in np.flatnonzero(tools)], tools[tools > 0]

    def typical_hits(self) -> tuple[Array, float]:
        """Shares of size bins, and mean, of a returning prompt that finds its context, over gaps as they come."""
        keys, shares = self.next_gap.frequencies()
        if not keys:
            return self.hits.shares[0], float(self.hits.means[0])
        return shares @ self.hits.shares[keys], float(shares @ self.hits.means[keys])

    def typical_eviction(self, wait_s: float) -> float:
        """Share of its context that a returning prompt no longer finds, over gaps as they come, after ``wait_s``."""
        keys, shares = self.next_gap.frequencies()
        if not keys:
            return float(self.evicted.by(np.array([wait_s]))[0])
        return float(shares @ self.evicted.by(_TYPICAL_GAP_S[np.array(keys) % GAPS] + wait_s))

    def _evicted_in_wait(self, request: Request) -> float:
        if request.answered_s is None or request.admitted_s is not None:
            return 0.0
        idle = np.array([request.ready_s - request.answered_s])
        gone = float(self.evicted.between(idle, idle + self.new_wait_s)[0])
        return gone * (request.prompt_tokens - (request.index_tokens or 0))

    @property
    def mean_output_tokens(self) -> float:
        """Mean of an answer, as of the last refresh."""
        return self._mean_output

    def expected_uncached(self, request: Request) -> float:
        """Uncached tokens of a request: by the router's index and what may be evicted before its prefill; without an
        index the whole prompt of a first turn, else a typical turn.
        """
        if request.uncached_tokens is not None:
            return float(request.uncached_tokens)
        if request.index_tokens is not None:
            return request.index_tokens + self._evicted_in_wait(request)
        if request.turn == 0 or len(self.hits.means) == 0:
            return float(request.prompt_tokens)
        return float(min(self.hits.means[0], request.prompt_tokens))


_TYPICAL_GAP_S: Final = np.array([2.0, 10.0, 35.0, 90.0])
"""A gap of each class."""


def gap_class(gap_s: float | None) -> int:
    """The class of a gap; an unknown one is the most common."""
    return 1 if gap_s is None else int(np.searchsorted(GAP_EDGES_S, gap_s))


def hit_key(tool_key: int, gap: int) -> int:
    """Key of :attr:`Learner.hits` for a tool and a class of gaps; waits that are no tool count as unknown."""
    return max(tool_key - Wait.UNKNOWN_TOOL, 0) * GAPS + gap
