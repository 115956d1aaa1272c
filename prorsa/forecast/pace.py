"""Compiled: how long ranks take for what their queues hold, as the contexts that they work on grow.

Ranks of a worker go in step, and a step takes as long as the rank with the longest context: what a rank has to do costs
its neighbours too. How far into the queues the ranks are says how long the contexts are that they work on then.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled
from prorsa.forecast.speed import Line

Array = NDArray[np.float64]

_STEP_TOKENS: Final = 1024.0
"""Work of a rank that is looked at as one, at least: a chunk of prompts."""
_STEPS: Final = 128
"""... and so many pieces at most."""
_AHEAD_S: Final = 20.0
"""Seconds ahead that set how fast ranks are expected to be for what arrives."""


class Pace(NamedTuple):
    """When work is done.

    Attributes:
        begins_s, ends_s: float64[n], when the work before each request, and its own, has been done.
        idle_s: float64[ranks], when each has nothing to do any more.
        context: the longest context that a worker that serves works on now, on average; 0 counts where it has nothing
            to do.
        tokens_per_s: of a rank that stays busy, over the next 20 s.
    """

    begins_s: Array
    ends_s: Array
    idle_s: Array
    context: float
    tokens_per_s: float


@compiled
def _seconds_a_token(line: Line, context: float) -> float:
    now_s = line.now_s
    return float(min(max(now_s + line.slope_s * (context - line.load), now_s / line.most), now_s * line.most))


@compiled
def _longest(
    prompt: Array,
    costs: Array,
    ahead: Array,
    at: NDArray[np.intp],
    work: Array,
    worker: NDArray[np.int32],
    serving: NDArray[np.bool_],
    step: float,
    usual: float,
) -> Array:
    """float64[workers, steps], the longest context that a worker is at after so much work of each of its ranks."""
    steps = int(work.max() / step) + 1
    reached = np.zeros((len(work), steps))
    for i in range(len(prompt)):
        done, begin, end = prompt[i] - costs[i], ahead[i], ahead[i] + costs[i]
        for k in range(int(begin / step), min(int(end / step), steps - 1) + 1):
            low, high = max(begin, k * step), min(end, (k + 1) * step)
            reached[at[i], k] += max(high - low, 0.0) / step * (done + 0.5 * (low + high) - begin)
    longest = np.zeros((worker.max() + 1, steps))
    for rank in range(len(work)):
        if not serving[rank]:
            continue
        for k in range(steps):
            # Where the queue has ended something else comes.
            context = reached[rank, k] if work[rank] >= (k + 1) * step else max(reached[rank, k], usual)
            longest[worker[rank], k] = max(longest[worker[rank], k], context)
    return longest


@compiled
def _after(times: Array, step: float, tokens: float) -> float:
    k = min(int(tokens / step), len(times) - 2)
    return float(times[k] + (tokens / step - k) * (times[k + 1] - times[k]))


@compiled
def paced(
    prompt: Array,
    costs: Array,
    ahead: Array,
    at: NDArray[np.intp],
    work: Array,
    worker: NDArray[np.int32],
    serving: NDArray[np.bool_],
    line: Line,
) -> Pace:
    """How long the queues of ranks take.

    Args:
        prompt, costs: float64[n], whole prompts, and tokens to compute of each.
        ahead: float64[n], tokens that its rank, int[n] ``at``, computes before it.
        work: float64[ranks], all tokens of each.
        worker: int32[ranks], the number of its worker; bool[ranks] ``serving``, at least one of which is true.
        line: seconds a token by the longest context.
    """
    step = max(_STEP_TOKENS, work.max() / _STEPS)
    longest = _longest(prompt, costs, ahead, at, work, worker, serving, step, line.usual)
    workers, steps = longest.shape
    times = np.zeros((workers, steps + 1))
    for w in range(workers):
        for k in range(steps):
            times[w, k + 1] = times[w, k] + step * _seconds_a_token(line, longest[w, k])
    begins_s, ends_s = np.empty(len(prompt)), np.empty(len(prompt))
    for i in range(len(prompt)):
        of = times[worker[at[i]]]
        begins_s[i], ends_s[i] = _after(of, step, ahead[i]), _after(of, step, ahead[i] + costs[i])
    idle_s, done, ranks, serves = np.zeros(len(work)), 0.0, 0, np.zeros(workers)
    for rank in range(len(work)):
        of = times[worker[rank]]
        idle_s[rank] = _after(of, step, work[rank])
        if serving[rank]:
            ranks += 1
            serves[worker[rank]] = 1.0
            k = min(np.searchsorted(of, _AHEAD_S), steps)
            left_s = _AHEAD_S - of[k]
            token_s = _seconds_a_token(line, line.usual) if left_s > 0.0 else (of[k] - of[k - 1]) / step
            done += k * step + left_s / token_s
    context = (longest[:, 0] * serves).sum() / serves.sum()
    return Pace(begins_s, ends_s, idle_s, context, done / (ranks * _AHEAD_S))
