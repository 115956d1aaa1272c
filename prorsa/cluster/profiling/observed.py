"""A profile's terms from what a live worker was seen to do: counters of SGLang's, or the events of a journal.

Both say over some time how many steps there were, what these worked on in all, and how long they took, which is linear
in the terms. What runs between two looks is one observation.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from prorsa.clock import seconds
from prorsa.cluster.profile import Fit
from prorsa.cluster.profiling.terms import PER_PAIR, PER_TOKEN, solve_nonnegative
from prorsa.cluster.sglang.replies import Loads, RankLoad
from prorsa.errors import InputError
from prorsa.events import LlmPrefillEnd, LlmPrefillStart, Stamped, WorkerLoad

LEAST_OBSERVATIONS: Final = 12
"""Fewer make no fit."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one kind, prefill or decode, that a rank did.

    Attributes:
        count: how many.
        work: new tokens, or requests in the batch, summed over the steps.
        context: pairs of tokens n(n/2 + p), or tokens of KV of the batch, summed over the steps; None is unknown.
        busy_s: how long they took in all.
        certain: whether the count is known, rather than the least that is possible.
    """

    count: float
    work: float
    context: float | None
    busy_s: float
    certain: bool = True


@dataclass(slots=True)
class Observed:
    """What was seen of workers that are alike."""

    prefill: list[Steps] = field(default_factory=list)
    decode: list[Steps] = field(default_factory=list)


def fit_steps(kind: str, steps: Sequence[Steps]) -> Fit:
    """Terms that explain the steps best; ``c_ms`` is 0 where nothing is known of contexts.

    Long observations weigh more, by the root of their duration, as their errors grow with it. Where enough counts are
    certain, the others are left out.

    Raises:
        InputError: if too little was seen.
    """
    known = [step for step in steps if step.count > 0 and step.busy_s > 0]
    if len(known) < LEAST_OBSERVATIONS:
        raise InputError(
            f"only {len(known)} observations of {kind} steps, {LEAST_OBSERVATIONS} are needed: "
            "watch longer (--for), or under more load"
        )
    certain = [step for step in known if step.certain]
    known = certain if len(certain) >= LEAST_OBSERVATIONS else known
    design = np.array([[step.count, step.work * PER_TOKEN, (step.context or 0.0) * PER_PAIR] for step in known])
    busy_ms = np.array([step.busy_s * 1e3 for step in known])
    weights = 1 / np.sqrt(busy_ms)
    a, b, c = solve_nonnegative(design * weights[:, None], busy_ms * weights)
    return Fit(a_ms=_round(a), b_ms=_round(b * PER_TOKEN), c_ms=_round(c * PER_PAIR))


def add_counters(seen: Observed, before: Loads, after: Loads, chunk_tokens: int, span_s: float) -> None:
    """Add what each rank did between two looks at ``/v1/loads``, ``span_s`` apart.

    SGLang counts the time and the tokens of prefill, not its steps. A step is counted when it ends, so of several in
    one span all but the first have taken place within it: a span shorter than half of their time had one step only.
    In others there were at least as many as the tokens need.
    """
    for old, new in zip(before.loads, after.loads, strict=True):
        if (prefill := _prefill(old, new, chunk_tokens, span_s)) is not None:
            seen.prefill.append(prefill)
        if (decode := _decode(old, new)) is not None:
            seen.decode.append(decode)


def _prefill(old: RankLoad, new: RankLoad, chunk_tokens: int, span_s: float) -> Steps | None:
    tokens = (new.total_prefill_uncached_tokens or 0) - (old.total_prefill_uncached_tokens or 0)
    busy_us = (new.total_prefill_busy_us or 0) - (old.total_prefill_busy_us or 0)
    if tokens <= 0 or busy_us <= 0:  # nothing ran, or another process of the worker counts from 0
        return None
    busy_s = busy_us / 1e6
    return Steps(math.ceil(tokens / chunk_tokens), tokens, None, busy_s, certain=span_s < busy_s / 2)


def _decode(old: RankLoad, new: RankLoad) -> Steps | None:
    if not new.decode_moments:
        return None
    was = old.decode_moments or [0.0] * len(new.decode_moments)
    count, batches, busy_us = (new.decode_moments[k] - was[k] for k in range(3))
    if count <= 0 or busy_us <= 0:
        return None
    kv_tokens = (old.num_used_tokens + new.num_used_tokens) / 2
    return Steps(count, batches, count * kv_tokens, busy_us / 1e6)


def observe_journal(events: Iterable[Stamped], chunk_tokens: int) -> Observed:
    """What a journal says of its workers: their prompts with prefixes, and the counters that they published.

    Prefill: spans in which a rank has prompts under way, with what it computed in them. Decode: from one report of a
    worker that only decodes to the next.
    """
    spans: dict[tuple[str, int], _Spans] = defaultdict(_Spans)
    loads: dict[str, list[WorkerLoad]] = defaultdict(list)
    for stamped in events:
        match stamped.event:
            case LlmPrefillStart() as start:
                spans[start.worker_id, start.dp_rank or 0].start(start.rid, seconds(stamped.t_ns))
            case LlmPrefillEnd() as end if end.computed_tokens is not None:
                spans[end.worker_id, end.dp_rank or 0].end(
                    end.rid, seconds(stamped.t_ns), end.computed_tokens, end.cached_tokens
                )
            case WorkerLoad() as load:
                loads[load.worker_id].append(load)
    prefill = [span for each in spans.values() for span in each.steps(chunk_tokens)]
    decode = [_reported(old, new) for each in loads.values() for old, new in pairwise(each)]
    return Observed(prefill, [step for step in decode if step is not None])


class _Spans:
    """Times in which a rank has prompts under way."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._since_s = 0.0
        self._tokens = self._pairs = 0.0
        self._done: list[tuple[float, float, float]] = []

    def start(self, rid: str, t_s: float) -> None:
        if not self._open:
            self._since_s, self._tokens, self._pairs = t_s, 0.0, 0.0
        self._open[rid] = t_s

    def end(self, rid: str, t_s: float, computed: int, cached: int) -> None:
        if self._open.pop(rid, None) is None:
            return
        self._tokens += computed
        self._pairs += computed * (computed / 2 + cached)
        if not self._open and t_s > self._since_s:
            self._done.append((self._tokens, self._pairs, t_s - self._since_s))

    def steps(self, chunk_tokens: int) -> list[Steps]:
        return [
            Steps(math.ceil(tokens / chunk_tokens), tokens, pairs, busy_s, certain=False)
            for tokens, pairs, busy_s in self._done
        ]


def _reported(old: WorkerLoad, new: WorkerLoad) -> Steps | None:
    """Steps between two reports of a worker that decodes in both: its tokens by the requests that run."""
    running, kv_tokens = _mean(old.running, new.running), _mean(old.kv_used, new.kv_used)
    tokens = (new.output_tokens_total or 0) - (old.output_tokens_total or 0)
    busy_us = (new.busy_us_total or 0) - (old.busy_us_total or 0)
    decoding = (old.role, new.role) == ("decode", "decode")
    if not decoding or running is None or kv_tokens is None or running < 1 or tokens <= 0 or busy_us <= 0:
        return None
    count = tokens / running
    return Steps(count, tokens, count * kv_tokens, busy_us / 1e6)


def _mean(old: int | None, new: int | None) -> float | None:
    return None if old is None or new is None else (old + new) / 2


def _round(value: float) -> float:
    return float(f"{value:.4g}")
