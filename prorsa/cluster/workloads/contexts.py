"""Prompts of generated trajectories: the first one, and how each later one follows from the context before it."""

from statistics import NormalDist
from typing import Final

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.fitted import Fitted
from prorsa.cluster.workloads.limits import Floats, Ints
from prorsa.cluster.workloads.sizes import Sizes
from prorsa.errors import ConfigError

FIRST_ANSWER_TOKENS: Final = 256
"""Room that a first prompt leaves for its answer; a longer first answer ends at the context limit."""


def first_prompts(fitted: Fitted, scores: Floats, profile: Profile) -> Ints:
    """First prompts, drawn from those that leave room for an answer: int64[N]."""
    values = np.array(fitted.first_prompt)
    longest = profile.max_context - FIRST_ANSWER_TOKENS
    if longest < values[0]:
        raise ConfigError(
            f"the shortest first prompt of {fitted.name} has {values[0]:.0f} tokens, and {profile.name} allows a "
            f"context of {profile.max_context}: use another profile"
        )
    probabilities = np.linspace(0.0, 1.0, len(values))
    normal = NormalDist()
    share = np.array([normal.cdf(score) for score in scores]) * np.interp(longest, values, probabilities)
    prompts: Ints = np.rint(np.interp(share, probabilities, values)).astype(np.int64)
    return prompts


def contexts(fitted: Fitted, first_turn: Ints, first_prompt: Ints, sizes: Sizes) -> tuple[Ints, Ints]:
    """Prompts and what of them the context before holds: two int64[T].

    A prompt is, by its draw, a compacted context, a rewritten one, one whose answer was dropped, or (nearly always) the
    whole context with something appended.
    """
    grid = np.array(fitted.scores)
    grown, kept, size, part = (
        table.at(sizes.share, grid).tolist()
        for table in (fitted.dropped_growth, fitted.rewritten_kept, fitted.compacted_size, fitted.compacted_kept)
    )
    output, appended, kind, rewritten = (
        column.tolist() for column in (sizes.output, sizes.appended, sizes.kind, sizes.rewritten)
    )
    dropped = fitted.answer_dropped.at(sizes.output.astype(np.float64)).tolist()
    firsts = dict(zip(first_turn[:-1].tolist(), first_prompt.tolist(), strict=True))
    prompts: list[int] = []
    reuses: list[int] = []
    for k, u in enumerate(kind):
        if k in firsts:
            prompt, reuse = firsts[k], 0
        else:
            before, answer = prompts[-1], output[k - 1]
            context = before + answer
            compacted = fitted.compacted.one(context)
            if u < compacted:
                prompt = max(1, round(size[k] * before))
                reuse = min(round(part[k] * prompt), prompt - 1)
            elif u < compacted + rewritten[k]:
                prompt, reuse = context + appended[k], round(kept[k] * before)
            elif u < compacted + rewritten[k] + dropped[k - 1]:
                prompt, reuse = before + max(1, round(grown[k] * answer)), before
            else:
                prompt, reuse = context + appended[k], context
        prompts.append(prompt)
        reuses.append(reuse)
    return np.array(prompts, dtype=np.int64), np.array(reuses, dtype=np.int64)
