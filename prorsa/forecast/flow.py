"""Compiled: how trajectories move on through the next seconds, second by second.

A fluid of requests: what becomes ready queues for prefill at the service rate, is admitted, prefilled and answered;
the trajectory ends, or runs a tool and comes back; an ended one makes room for a dispatch while the sampler has any.
Each second is worked out from the seconds before it, so that caps and queues act when they are reached, and a request
that comes back may come back again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]


class Cycle(NamedTuple):
    """How long the parts of a turn take and what they bring.

    Attributes:
        output, gap, reward, start: float64[K], probability a second of the time from admission to the end of an
            answer, and of the time that a gap, a reward and a start-up take, rounded to whole seconds.
        lost, lost_share: float64[K], chance that a context is lost over a gap of so many seconds, and how much goes.
        growth: float64[K], what is appended after such a gap, as a multiple of ``appended_tokens``.
        moved_tokens: missed by a turn, on average, because it leaves its context behind.
        answer_tokens: mean of an answer; ``appended_tokens`` of what a tool brings.
        uncached_output: share of an answer that the next prefill computes again.
        end: chance that a turn is the last.
        first_prompt, first_new: tokens of a first prompt, and those that are not cached.
    """

    output: Array
    gap: Array
    reward: Array
    start: Array
    lost: Array
    lost_share: Array
    growth: Array
    moved_tokens: float
    answer_tokens: float
    appended_tokens: float
    uncached_output: float
    end: float
    first_prompt: float
    first_new: float


class Pool(NamedTuple):
    """The workers and the sampler.

    Attributes:
        tokens_per_s: uncached tokens that admission lets through a second.
        waits_s: float64[W], how long what arrives now waits, at equally likely ranks; ``pause_s`` for which the workers
            stand still.
        output_rate: output tokens a second of one request.
        left: trajectories that may still be dispatched; ``replaced`` of those that end, how many are replaced.
        flush_from: second from which contexts of before are gone.
        decoding: requests that decode now; ``resident`` KV tokens that decode holds.
    """

    tokens_per_s: float
    waits_s: Array
    pause_s: float
    output_rate: float
    left: float
    replaced: float
    flush_from: int
    decoding: float
    resident: float


class Streams(NamedTuple):
    """What moves, a second: float64[3, K] are requests, uncached tokens and prompt tokens unless said otherwise.

    ``tool``, ``box``, ``second``, ``sampler`` become ready; ``going`` float64[3, K] are answers that end before another
    turn, their contexts and outputs; ``ending`` float64[2, K] answers that are the last, and contexts; ``rewarded``
    float64[K] rewards that end; ``starts`` float64[3, K] requests of the queue that are admitted: those that go on,
    those that end, prompt tokens of all; ``admitted`` float64[3, K] requests that arrive after now and are admitted,
    their prompt tokens, prompt tokens of the queue; ``released`` float64[K] KV; ``ended`` float64[K] trajectories;
    ``kv`` float64[K], KV that decode holds; ``batch`` float64[K] requests that decode.
    """

    tool: Array
    box: Array
    second: Array
    sampler: Array
    going: Array
    ending: Array
    rewarded: Array
    starts: Array
    admitted: Array
    released: Array
    ended: Array
    kv: Array
    batch: Array


@compiled
def _answer(
    k: int, start: int, count: float, prompt: float, end: float, c: Cycle, s: Streams, began: Array, stopped: Array
) -> None:
    """Requests begin to decode in a second: when their answers end, and what then."""
    seconds = len(c.output)
    if start >= seconds:
        return
    began[start] += count
    for j in range(seconds - start):
        done = c.output[j]
        # Second k is being worked out: what would come back within it comes back in the next.
        at = start + j if start + j > k else k + 1
        if at >= seconds or done <= 0.0:
            continue
        ended, context = done * count, done * (prompt + count * c.answer_tokens)
        s.going[0, at] += ended * (1.0 - end)
        s.going[1, at] += context * (1.0 - end)
        s.going[2, at] += ended * (1.0 - end) * c.answer_tokens
        s.ending[0, at] += ended * end
        s.released[at] += context
        stopped[at] += ended


@compiled
def _come_back(k: int, c: Cycle, p: Pool, s: Streams) -> None:
    """Answers that end in second ``k``: their tools run and they come back."""
    count, context, answer = s.going[0, k], s.going[1, k], s.going[2, k]
    if count <= 0.0:
        return
    for j in range(len(c.gap) - k):
        share = c.gap[j]
        if share <= 0.0:
            continue
        at = k + j
        appended = count * c.appended_tokens * c.growth[j]
        prompt = context + appended
        flushed = k < p.flush_from <= at
        lost, gone = (1.0, 1.0) if flushed else (c.lost[j], c.lost_share[j])
        found = c.uncached_output * answer + appended + count * c.moved_tokens
        missed = gone * (context - answer) + answer + appended
        s.second[0, at] += share * count
        s.second[1, at] += share * ((1.0 - lost) * found + lost * missed)
        s.second[2, at] += share * prompt


@compiled
def _replace(k: int, left: float, c: Cycle, p: Pool, s: Streams) -> float:
    """Trajectories end in second ``k`` and are replaced while the sampler has any; returns what it has left."""
    for j in range(len(c.reward) - k):
        s.ended[k + j] += s.ending[0, k] * c.reward[j]
    s.ended[k] += s.rewarded[k]
    dispatched = min(s.ended[k] * p.replaced, left)
    for j in range(len(c.start) - k):
        s.sampler[0, k + j] += dispatched * c.start[j]
        s.sampler[1, k + j] += dispatched * c.start[j] * c.first_new
        s.sampler[2, k + j] += dispatched * c.start[j] * c.first_prompt
    return float(left - dispatched)


@compiled
def _queue_after(k: int, queue_s: float, work_s: float, p: Pool) -> float:
    """The mean wait after second ``k``, in which ``work_s`` seconds of work of the whole pool came.

    What comes to ranks that have nothing to do is done at once, as long as it is no more than they do; where a few
    ranks have all of the queue, they alone work it off.
    """
    busy, mean_s = 0.0, p.waits_s.mean()
    for wait_s in p.waits_s:
        busy += wait_s > 0.0
    busy /= len(p.waits_s)
    if queue_s > mean_s or mean_s <= 0.0:
        busy = 1.0 - (1.0 - busy) * mean_s / max(queue_s, 1e-9)
    more_s = work_s - min(max(k + 1.0 - p.pause_s, 0.0), 1.0)
    return max(queue_s + (more_s if more_s > 0.0 else busy * more_s), 0.0)


@compiled
def _admit(
    k: int,
    queue_s: float,
    work_s: float,
    count: float,
    prompt: float,
    c: Cycle,
    p: Pool,
    s: Streams,
    began: Array,
    stopped: Array,
) -> None:
    """Requests become ready in second ``k``: when they are admitted, over ranks with their own queues."""
    ranks, mean_s = len(p.waits_s), p.waits_s.mean()
    if queue_s <= 0.0 and work_s <= 1.0:
        ranks = 1  # nobody waits: one rank stands for all
    for rank in range(ranks):
        # Queues keep their proportions while the work that waits grows or shrinks.
        wait_s = p.waits_s[rank] * queue_s / mean_s if mean_s > 0.0 else queue_s
        # More than a second's work that comes at once is admitted piece by piece.
        wait_s += (rank + 0.5) / ranks * max(work_s - 1.0, 0.0)
        at = int(max(k + 0.5, p.pause_s) + wait_s)
        if at < len(c.output):
            s.admitted[0, at] += count / ranks
            s.admitted[1, at] += prompt / ranks
            _answer(k, at, count / ranks, prompt / ranks, c.end, c, s, began, stopped)


@compiled
def flow(c: Cycle, p: Pool, s: Streams) -> None:
    """Work out the next seconds in place; ``s`` holds what is known of them from where each trajectory stands."""
    seconds = len(c.output)
    began, stopped = np.zeros(seconds), np.zeros(seconds)
    for k in range(seconds):
        stopped[k] = s.going[0, k] + s.ending[0, k]
    for k in range(seconds):
        if s.starts[0, k] + s.starts[1, k] > 0.0:
            count = s.starts[0, k] + s.starts[1, k]
            _answer(-1, k, count, s.starts[2, k], s.starts[1, k] / count, c, s, began, stopped)
    left, queue_s = p.left, p.waits_s.mean()
    for k in range(seconds):
        _come_back(k, c, p, s)
        left = _replace(k, left, c, p, s)
        count = s.tool[0, k] + s.box[0, k] + s.second[0, k] + s.sampler[0, k]
        if count <= 0.0:
            queue_s = _queue_after(k, queue_s, 0.0, p)
            continue
        new = s.tool[1, k] + s.box[1, k] + s.second[1, k] + s.sampler[1, k]
        prompt = s.tool[2, k] + s.box[2, k] + s.second[2, k] + s.sampler[2, k]
        work_s = new / p.tokens_per_s
        _admit(k, queue_s, work_s, count, prompt, c, p, s, began, stopped)
        queue_s = _queue_after(k, queue_s, work_s, p)
    _hold(p, s, began, stopped)


@compiled
def _hold(p: Pool, s: Streams, began: Array, stopped: Array) -> None:
    """KV that decode holds, and requests that decode, at the end of each second."""
    batch, kv = p.decoding, p.resident
    for k in range(len(began)):
        before = batch
        batch = max(batch + began[k] - stopped[k], 0.0)
        moving = min(max(k + 1.0 - p.pause_s, 0.0), 1.0)
        kv += s.admitted[1, k] + s.admitted[2, k] - s.released[k] + 0.5 * (before + batch) * p.output_rate * moving
        s.kv[k], s.batch[k] = max(kv, 0.0), batch
