"""Compiled: how trajectories move on through the next seconds, second by second.

A fluid of requests: what becomes ready queues for prefill at the service rate, is admitted, prefilled and answered;
the trajectory ends, or runs a tool and comes back; an ended one makes room for a dispatch while the sampler has any.
Each second is worked out from the seconds before it, so that caps and queues act when they are reached, and a request
that comes back may come back again.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled, inlined

Array = NDArray[np.float64]

GENERATIONS: Final = 4
"""Turns ahead that are told apart; later ones are like the last of these."""
FIRST: Final = GENERATIONS
"""The class of first requests; before it the next turns of what lives now, after it those of what begins."""
CLASSES: Final = 2 * GENERATIONS + 1
WAITING: Final = CLASSES
"""The class of requests that wait now."""
_NOBODY: Final = 1e-6
"""Requests of a class and second that are not followed further."""
LAST: Final = (FIRST - 1, CLASSES - 1)
"""The classes whose next turns are of the same class."""


class Cycle(NamedTuple):
    """How long the parts of a turn take and what they bring, by class of requests (C of them, the last those that wait
    now): the next turns of what lives now, and of what begins, are unlike. See :mod:`prorsa.forecast.generations`.

    Attributes:
        output: float64[C, K], probability a second of the time from admission to the end of an answer, of what waits
            now from the end of its prefill.
        answer: float64[C, K], tokens of an answer that has taken so many seconds.
        gap: float64[C, K], probability a second of the time after which such a request comes.
        reward, start: float64[K], of the time that a reward and a start-up take; all in whole seconds.
        lost, lost_share: float64[C, K], chance that a context is lost over a gap of so many seconds, and how much goes.
        growth: float64[K], what is appended after such a gap, as a multiple of ``appended``.
        appended: float64[C], tokens that the result before such a request brings.
        end: float64[C], chance that its answer is the last.
        answers: float64[C], tokens of its answer, on average.
        moved_tokens: missed by a turn, on average, because it leaves its context behind.
        answer_tokens, appended_tokens: means of the answers that are still to begin and of the next results.
        uncached_output: share of an answer that the next prefill computes again.
        first_prompt, first_new: tokens of a first prompt, and those that are not cached of what takes the place of what
            ends; ``burst_new`` of what is dispatched at once.
    """

    output: Array
    answer: Array
    gap: Array
    reward: Array
    start: Array
    lost: Array
    lost_share: Array
    growth: Array
    appended: Array
    end: Array
    answers: Array
    moved_tokens: float
    answer_tokens: float
    appended_tokens: float
    uncached_output: float
    first_prompt: float
    first_new: float
    burst_new: float


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

    ``tool``, ``box``, ``second``, ``sampler`` become ready; ``free`` float64[2, K] are requests of ``box`` that may be
    admitted, and prompt tokens; ``going`` float64[3, K] are answers that end before another
    turn, their contexts and outputs; ``ending`` float64[2, K] answers that are the last, and contexts; ``rewarded``
    float64[K] rewards that end; ``starts`` float64[3, K] requests of the queue whose prefill ends: those that go on,
    those that end, prompt tokens of all; ``admitted`` float64[4, K] requests that arrive after now and are admitted,
    their prompt tokens, prompt tokens of the queue, tokens of their answers; ``released`` float64[K] KV; ``ended``
    float64[K] trajectories; ``kv`` float64[K], KV that decode holds; ``batch`` float64[K] requests that decode.
    """

    tool: Array
    box: Array
    free: Array
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


class _Turns(NamedTuple):
    """By class: requests that decode admits a second, and their prompts, float64[2, C, K]; answers that end, contexts
    and outputs then, float64[3, C, K]; those before another turn, which is of that class, likewise; float64[K], all
    that begin and all that end.
    """

    admitted: Array
    answered: Array
    going: Array
    began: Array
    stopped: Array


class _Brings(NamedTuple):
    """What a request brings that comes back after a gap of so many seconds, by class: float64[C, K], each times the
    probability a second of such a gap.

    Attributes:
        gap: that alone.
        appended: tokens that the result appends.
        by_answer, by_request, by_context: uncached tokens, for each token of the answer before it, for each request,
            and for each token of the context.
    """

    gap: Array
    appended: Array
    by_answer: Array
    by_request: Array
    by_context: Array


@compiled
def _brings(c: Cycle) -> _Brings:
    """Uncached is what is appended, what is computed again of the answer and what is left behind; where the context is
    lost what goes of it, and the answer.
    """
    gap = c.gap[:CLASSES]
    appended = np.empty(gap.shape)
    for of in range(CLASSES):
        appended[of] = gap[of] * c.appended[of] * c.growth
    lost, gone = gap * c.lost[:CLASSES], c.lost_share[:CLASSES]
    found = gap - lost
    return _Brings(
        gap,
        appended,
        found * c.uncached_output + lost * (1.0 - gone),
        appended + found * c.moved_tokens,
        lost * gone,
    )


@compiled
def _answer_queue(c: Cycle, told: Array, s: Streams, turns: _Turns) -> None:
    """Requests that wait now begin to decode: when their answers end, and what then."""
    for start in range(len(s.kv)):
        count = s.starts[0, start] + s.starts[1, start]
        if count <= 0.0:
            continue
        end, prompt = s.starts[1, start] / count, s.starts[2, start]
        turns.began[start] += count
        for j in range(len(s.kv) - start):
            done, answer = c.output[WAITING, j] * count, told[WAITING, j] * count
            context = c.output[WAITING, j] * prompt + answer
            turns.going[0, 0, start + j] += done * (1.0 - end)
            turns.going[1, 0, start + j] += context * (1.0 - end)
            turns.going[2, 0, start + j] += answer * (1.0 - end)
            s.ending[0, start + j] += done * end
            s.released[start + j] += context
            turns.stopped[start + j] += done


@inlined
def _answer(k: int, c: Cycle, told: Array, turns: _Turns, under_way: bool) -> None:
    """Requests begin to decode in second ``k``: when their answers end, here and below in a loop for each row, since
    such loops take several seconds at once.

    ``under_way``: whether that second is being worked out; what would end within it ends in the next.
    """
    for of in range(CLASSES):
        count, prompt = turns.admitted[0, of, k], turns.admitted[1, of, k]
        if count <= _NOBODY:
            continue
        turns.began[k] += count
        done, context, answer = turns.answered[0, of, k:], turns.answered[1, of, k:], turns.answered[2, of, k:]
        output, tokens, first = c.output[of], told[of], 0
        if under_way:
            first = 1
            if len(done) > 1:
                done[1] += output[0] * count
                context[1] += output[0] * prompt + tokens[0] * count
                answer[1] += tokens[0] * count
        for j in range(first, len(done)):
            done[j] += output[j] * count
        for j in range(first, len(done)):
            context[j] += output[j] * prompt + tokens[j] * count
        for j in range(first, len(done)):
            answer[j] += tokens[j] * count
        turns.admitted[:, of, k] = 0.0


@inlined
def _end_or_go_on(k: int, c: Cycle, s: Streams, turns: _Turns) -> None:
    """Answers that end in second ``k``: the trajectory ends, or has another turn, which is of the next class."""
    for of in range(CLASSES):
        done, context, answer = turns.answered[0, of, k], turns.answered[1, of, k], turns.answered[2, of, k]
        next_class = of if of in LAST else of + 1
        turns.going[0, next_class, k] += done * (1.0 - c.end[of])
        turns.going[1, next_class, k] += context * (1.0 - c.end[of])
        turns.going[2, next_class, k] += answer * (1.0 - c.end[of])
        s.ending[0, k] += done * c.end[of]
        s.released[k] += context
        turns.stopped[k] += done


@inlined
def _come_back(k: int, b: _Brings, p: Pool, s: Streams, turns: _Turns, back: Array) -> None:
    """Answers that end in second ``k``: their tools run and they come back, in ``back`` (float64[2, C, K]): requests
    and prompts.
    """
    for of in range(CLASSES):
        count, context, answer = turns.going[0, of, k], turns.going[1, of, k], turns.going[2, of, k]
        if count <= _NOBODY:
            continue
        requests, prompts, new = back[0, of, k:], back[1, of, k:], s.second[1, k:]
        gap, appended = b.gap[of], b.appended[of]
        by_request, by_answer, by_context = b.by_request[of], b.by_answer[of], b.by_context[of]
        for j in range(len(requests)):
            requests[j] += gap[j] * count
        for j in range(len(prompts)):
            prompts[j] += gap[j] * context + appended[j] * count
        kept = min(p.flush_from - k, len(new)) if k < p.flush_from else len(new)
        for j in range(kept):
            new[j] += by_request[j] * count + by_answer[j] * answer + by_context[j] * context
        for j in range(kept, len(new)):
            new[j] += gap[j] * context + appended[j] * count
    for of in range(CLASSES):
        s.second[0, k] += back[0, of, k]
        s.second[2, k] += back[1, of, k]


@inlined
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


@inlined
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


@inlined
def _admit(k: int, queue_s: float, work_s: float, back: Array, c: Cycle, p: Pool, s: Streams, turns: _Turns) -> None:
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
        if at >= len(s.kv):
            continue
        for of in range(CLASSES):
            turns.admitted[0, of, at] += back[0, of, k] / ranks
            turns.admitted[1, of, at] += back[1, of, k] / ranks
            s.admitted[0, at] += back[0, of, k] / ranks
            s.admitted[1, at] += back[1, of, k] / ranks
            s.admitted[3, at] += back[0, of, k] / ranks * c.answers[of]


@compiled
def flow(c: Cycle, p: Pool, s: Streams) -> None:
    """Work out the next seconds in place; ``s`` holds what is known of them from where each trajectory stands."""
    seconds = len(c.growth)
    turns = _Turns(
        np.zeros((2, CLASSES, seconds)),
        np.zeros((3, CLASSES, seconds)),
        np.zeros((3, CLASSES, seconds)),
        np.zeros(seconds),
        np.zeros(seconds),
    )
    told, brings = c.output * c.answer, _brings(c)
    back = np.zeros((2, CLASSES, seconds))
    turns.going[:, 0] = s.going
    for k in range(seconds):
        turns.stopped[k] = s.going[0, k] + s.ending[0, k]
    _answer_queue(c, told, s, turns)
    left, queue_s = p.left, p.waits_s.mean()
    for k in range(seconds):
        _answer(k, c, told, turns, under_way=False)
        _end_or_go_on(k, c, s, turns)
        _come_back(k, brings, p, s, turns, back)
        left = _replace(k, left, c, p, s)
        count = s.tool[0, k] + s.box[0, k] + s.free[0, k] + s.second[0, k] + s.sampler[0, k]
        if count <= 0.0:
            queue_s = _queue_after(k, queue_s, 0.0, p)
            continue
        for row, of in ((0, 0), (2, 1)):
            back[of, 0, k] += s.tool[row, k]
            back[of, FIRST, k] += s.free[of, k] + s.sampler[row, k]
        new = s.tool[1, k] + s.box[1, k] + s.second[1, k] + s.sampler[1, k]
        work_s = new / p.tokens_per_s
        _admit(k, queue_s, work_s, back, c, p, s, turns)
        _answer(k, c, told, turns, under_way=True)
        queue_s = _queue_after(k, queue_s, work_s, p)
    _hold(p, s, turns.began, turns.stopped)


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
