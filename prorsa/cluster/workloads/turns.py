"""The generators' model one turn at a time, for many trajectories at once: draws, and the scores behind what is seen.

The same model as :mod:`prorsa.cluster.workloads.generators`, which draws whole trajectories in order; a test holds the
two together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from prorsa.cluster.workloads.contexts import FIRST_ANSWER_TOKENS
from prorsa.cluster.workloads.fitted import Fitted, Steps
from prorsa.cluster.workloads.posterior import APPENDED, FIRST, GAP, OUTPUT
from prorsa.cluster.workloads.scores import (
    Bools,
    Floats,
    Ints,
    TableStack,
    pick,
    probability_between,
    truncated_normal,
)

_EXACT: Final = 1e-9
"""Relative half-width of the interval that a real number read from a table stands for."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a workload was generated from: statistics and limits.

    Attributes:
        fitted: the statistics.
        max_context: prompt + output at most, tokens.
        gap_cap_s: longer gaps were cut to this.
        max_turns: turns at most; None for no limit.
    """

    fitted: Fitted
    max_context: int
    gap_cap_s: float
    max_turns: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """One turn each of n trajectories, [n] each.

    Attributes:
        prompt, reuse, output, gap_s: as in a workload.
        before: the action that the turn follows; -1 for first turns.
        action: what its answer calls for.
        fits: whether prompt and output fit the context.
    """

    prompt: Ints
    reuse: Ints
    output: Ints
    gap_s: Floats
    before: Ints
    action: Ints
    fits: Bools

    def of(self, chosen: Ints | Bools) -> "Turns":
        """Those that are chosen, in that order."""
        return Turns(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def put(self, at: Ints, turns: "Turns") -> None:
        """Replace those ``at``."""
        for field in fields(self):
            getattr(self, field.name)[at] = getattr(turns, field.name)

    def column(self, name: str) -> Ints | Floats:
        """By the names of :class:`~prorsa.cluster.workloads.workload.Workload`."""
        values: Ints | Floats = getattr(self, _WORKLOAD_NAMES[name])
        return values

    @classmethod
    def joined(cls, parts: Sequence["Turns"]) -> "Turns":
        """All of ``parts``, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


_WORKLOAD_NAMES: Final = {
    "prompt_tokens": "prompt",
    "reuse_tokens": "reuse",
    "output_tokens": "output",
    "gap_s": "gap_s",
    "tool": "before",
}


class TurnModel:
    """Draws turns, and says which scores what is seen of a turn stands for. Actions are indices; -1 for none."""

    def __init__(self, source: Source) -> None:
        fitted = self._fitted = source.fitted
        self.source = source
        actions, grid = fitted.actions, fitted.scores
        self._actions, self._buckets = len(actions), len(fitted.buckets)
        self._output = TableStack([table for action in actions for table in action.output], grid)
        self._appended = TableStack([table for action in actions for table in action.appended], grid)
        self._gap = TableStack([action.gap_s for action in actions], grid)
        self._shares = TableStack([getattr(fitted, name) for name in _SHARES], grid)
        self._turns = TableStack([fitted.turns], grid)
        self._chain = np.array([action.next for action in actions] + [[action.start for action in actions]])
        self._first_share = _share_that_fits(fitted, source.max_context)

    # --- scores of what is seen -------------------------------------------------------------------------------------

    def first_scores(self, prompts: Ints) -> tuple[Floats, Floats]:
        """From and to which scores give these first prompts."""
        tokens = prompts.astype(np.float64)
        return self._first_score(tokens - 0.5), self._first_score(tokens + 0.5)

    def _first_score(self, tokens: Floats) -> Floats:
        values = np.array(self._fitted.first_prompt)
        probabilities = np.linspace(0.0, 1.0, len(values))
        reached = np.interp(tokens, values, probabilities) / self._first_share
        score: Floats = ndtri(np.clip(reached, 0.0, 1.0))
        return score

    def turns_scores(self, turns: Ints, *, exact: Bools) -> tuple[Floats, Floats]:
        """Of trajectories that have at least so many turns, or ``exact``-ly so many."""
        return self.turns_reached(turns), np.where(exact, self.turns_reached(turns + 1), np.inf)

    def turns_reached(self, turns: Ints) -> Floats:
        """Lowest scores of trajectories that have at least so many turns."""
        low = self._turns.reached(np.zeros(len(turns), np.int64), turns.astype(np.float64) - 0.5)
        return np.where(turns <= 1, -np.inf, low)

    def output_scores(self, position: Ints, action: Ints, tokens: Ints) -> tuple[Floats, Floats]:
        """Of answers that call for ``action``."""
        return self._output.whole(self._table(action, position), tokens)

    def any_scores(self, position: Ints, tokens: Ints) -> tuple[Floats, Floats]:
        """Of answers, under each action: two float64[n, A]."""
        bounds = [self.output_scores(position, np.full(len(position), a), tokens) for a in range(self._actions)]
        low, high = (np.column_stack(part) for part in zip(*bounds, strict=True))
        return low, high

    def open_scores(self, position: Ints, out: Ints, prompt: Ints) -> tuple[Floats, Floats]:
        """Of answers that have more than ``out`` tokens and fit, under each action: two float64[n, A]."""
        low, _ = self.any_scores(position, out + 1)
        _, high = self.any_scores(position, self.source.max_context - prompt)
        # A first answer that does not fit is cut to what does.
        return low, np.where((position == 0)[:, None], np.inf, high)

    def gap_scores(self, before: Ints, gap_s: Floats) -> tuple[Floats, Floats]:
        """Of gaps that are over; one at the cap may have been longer."""
        width = _EXACT * (1.0 + gap_s)
        low, high = self._gap.reached(before, gap_s - width), self._gap.reached(before, gap_s + width)
        return low, np.where(gap_s >= self.source.gap_cap_s, np.inf, high)

    def gap_reached(self, before: Ints, elapsed_s: Floats) -> Floats:
        """Of gaps that last longer than ``elapsed_s``."""
        return self._gap.reached(before, elapsed_s)

    def appended_scores(self, position: Ints, before: Ints, tokens: Ints) -> tuple[Floats, Floats]:
        """Of what is appended after ``before``."""
        return self._appended.whole(self._table(before, position), tokens)

    def chances(self, before: Ints) -> Floats:
        """Chances float64[n, A] of what an answer calls for, by the action before it."""
        return self._chain[before]

    # --- draws ------------------------------------------------------------------------------------------------------

    def natural_turns(self, scores: Floats) -> Ints:
        """Numbers of turns, the context aside."""
        turns = np.maximum(1, np.rint(self._turns.at(np.zeros(len(scores), np.int64), scores))).astype(np.int64)
        limit = self.source.max_turns
        return turns if limit is None else np.minimum(turns, limit)

    def first_prompts(self, scores: Floats) -> Ints:
        """First prompts, of those that leave room for an answer."""
        values = np.array(self._fitted.first_prompt)
        share = ndtr(scores) * self._first_share
        prompts: Ints = np.rint(np.interp(share, np.linspace(0.0, 1.0, len(values)), values)).astype(np.int64)
        return prompts

    def first_turns(self, rng: np.random.Generator, prompt: Ints, effect: Floats) -> Turns:
        """First turns with these prompts."""
        none, zero = np.full(len(prompt), -1), np.zeros(len(prompt), np.int64)
        action = pick(rng, self.chances(none))
        output = self._outputs(rng, zero, action, effect)
        return Turns(
            prompt=prompt,
            reuse=zero,
            output=np.minimum(output, self.source.max_context - prompt),
            gap_s=np.zeros(len(prompt)),
            before=none,
            action=action,
            fits=np.ones(len(prompt), np.bool_),
        )

    def answers(self, rng: np.random.Generator, position: Ints, before: Ints, effect: Floats, turns: Turns) -> Turns:
        """``turns`` with answers that go on from ``turns.output`` tokens, given that they are longer and fit."""
        share = self._fitted.correlations.output
        mean, sd = math.sqrt(share) * effect, math.sqrt(1.0 - share)
        low, high = self.open_scores(position, turns.output, turns.prompt)
        chances = self.chances(before)
        weight = chances * probability_between(mean[:, None], sd, low, high)
        action = pick(rng, np.where(weight.sum(axis=1, keepdims=True) > 0, weight, chances))
        at = np.arange(len(action))
        scores = truncated_normal(rng, mean, sd, low[at, action], high[at, action])
        output = np.rint(self._output.at(self._table(action, position), scores)).astype(np.int64)
        # Beyond its table an answer is known to be longer, but not by how much.
        output = np.clip(output, turns.output + 1, np.maximum(self.source.max_context - turns.prompt, turns.output + 1))
        return Turns(turns.prompt, turns.reuse, output, turns.gap_s, before, action, turns.fits)

    def next_turns(
        self, rng: np.random.Generator, scores: Floats, position: Ints, before: Turns, elapsed_s: Floats
    ) -> Turns:
        """The turns at ``position`` that follow ``before``, whose gaps last longer than ``elapsed_s``.

        Args:
            scores: float64[n, 5] of the trajectories.
        """
        c, count = self._fitted.correlations, len(position)
        low = np.where(elapsed_s > 0, self.gap_reached(before.action, elapsed_s), -np.inf)
        mean, sd = math.sqrt(c.gap) * scores[:, GAP], math.sqrt(1.0 - c.gap)
        gap_score = truncated_normal(rng, mean, sd, low, np.full(count, np.inf))
        gap_s = np.maximum(self._gap.at(before.action, gap_score), elapsed_s)
        grown = self._grown(rng, scores, position, before.action, (gap_score - mean) / sd)
        prompt, reuse = self._prompts(rng, position, before, gap_s, grown)
        action = pick(rng, self.chances(before.action))
        output = self._outputs(rng, position, action, scores[:, OUTPUT])
        return Turns(
            prompt=prompt,
            reuse=reuse,
            output=output,
            gap_s=np.minimum(gap_s, self.source.gap_cap_s),
            before=before.action,
            action=action,
            fits=prompt + output <= self.source.max_context,
        )

    def fitted_in(self, turns: Turns) -> Turns:
        """``turns`` cut to the context: the last resort where a turn is known to fit and no draw does."""
        longest = self.source.max_context - 1
        prompt = np.minimum(turns.prompt, longest)
        return Turns(
            prompt=prompt,
            reuse=np.minimum(turns.reuse, prompt - 1),
            output=np.minimum(turns.output, self.source.max_context - prompt),
            gap_s=turns.gap_s,
            before=turns.before,
            action=turns.action,
            fits=np.ones(len(prompt), np.bool_),
        )

    # --- parts of a turn --------------------------------------------------------------------------------------------

    def _table(self, action: Ints, position: Ints) -> Ints:
        bucket = np.searchsorted(self._fitted.buckets, position, side="right") - 1
        index: Ints = action * self._buckets + bucket
        return index

    def _outputs(self, rng: np.random.Generator, position: Ints, action: Ints, effect: Floats) -> Ints:
        score = _blend(self._fitted.correlations.output, effect, rng.standard_normal(len(effect)))
        return np.maximum(1, np.rint(self._output.at(self._table(action, position), score))).astype(np.int64)

    def _grown(self, rng: np.random.Generator, scores: Floats, position: Ints, before: Ints, own_gap: Floats) -> Ints:
        """Tokens that the result appends; longer gaps go with more."""
        c = self._fitted.correlations
        own = c.gap_appended * own_gap + math.sqrt(1.0 - c.gap_appended**2) * rng.standard_normal(len(own_gap))
        score = _blend(c.appended, scores[:, APPENDED], own)
        tied = c.first_appended * scores[:, FIRST] + math.sqrt(1.0 - c.first_appended**2) * score
        score = np.where(position == 1, tied, score)
        return np.maximum(1, np.rint(self._appended.at(self._table(before, position), score))).astype(np.int64)

    def _prompts(
        self, rng: np.random.Generator, position: Ints, before: Turns, gap_s: Floats, grown: Ints
    ) -> tuple[Ints, Ints]:
        """Prompts and what of them the context before holds, by the four kinds of the generators."""
        context = before.prompt + before.output
        compacted, rewritten, dropped = self._kinds(position, before, gap_s, context)
        kind, score = rng.random(len(position)), rng.standard_normal(len(position))
        growth, kept, size, part = (
            self._shares.at(np.full(len(score), number), score) for number in range(len(_SHARES))
        )
        smaller = np.maximum(1, np.rint(size * before.prompt)).astype(np.int64)
        regrown = before.prompt + np.maximum(1, np.rint(growth * before.output)).astype(np.int64)
        cases = [kind < compacted, kind < compacted + rewritten, kind < compacted + rewritten + dropped]
        prompt = np.select(cases, [smaller, context + grown, regrown], context + grown)
        reuse = np.select(
            cases,
            [
                np.minimum(np.rint(part * smaller).astype(np.int64), smaller - 1),
                np.rint(kept * before.prompt).astype(np.int64),
                before.prompt,
            ],
            context,
        )
        return prompt, reuse

    def _kinds(self, position: Ints, before: Turns, gap_s: Floats, context: Ints) -> tuple[Floats, Floats, Floats]:
        """Chances that a prompt is compacted, is rewritten, or comes without the last answer."""
        fitted = self._fitted
        rewritten = np.zeros(len(position))
        for number, action in enumerate(fitted.actions):
            here = before.action == number
            rewritten[here] = action.rewritten.at(gap_s[here])
        rewritten = np.where(position == 1, fitted.first_rewritten, rewritten)
        return _at(fitted.compacted, context), rewritten, _at(fitted.answer_dropped, before.output)


_SHARES: Final = ("dropped_growth", "rewritten_kept", "compacted_size", "compacted_kept")


def _blend(share: float, effect: Floats, own: Floats) -> Floats:
    return np.asarray(math.sqrt(share) * effect + math.sqrt(1.0 - share) * own)


def _at(steps: Steps, tokens: Ints) -> Floats:
    return steps.at(tokens.astype(np.float64))


def _share_that_fits(fitted: Fitted, max_context: int) -> float:
    """The share of first prompts that leave room for an answer."""
    values = np.array(fitted.first_prompt)
    return float(np.interp(max_context - FIRST_ANSWER_TOKENS, values, np.linspace(0.0, 1.0, len(values))))
