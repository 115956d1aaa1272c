"""Generated workloads: agent trajectories drawn from fitted statistics (``docs/workloads.md`` describes the model).

Every trajectory has a counter-based random stream of its own, keyed by seed and trajectory, and spends the same number
of draws on every turn. So trajectory ``i`` of a seed is the same however many there are and whatever runs them.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.fitted import Correlations, Fitted, LogNormal, Table, load_fitted
from prorsa.cluster.workloads.limits import Floats, Ints, check_common, cut, offsets
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError

DRAWS_PER_TURN: Final = 6
"""Uniforms that each turn takes from its trajectory's stream: action, kind of prompt, and four that make normals."""

_HEAD_DRAWS: Final = 8
"""Uniforms at the head of each stream, for what belongs to the trajectory as a whole."""

_GROUP_STREAM: Final = 1
"""Top word of the counter of the streams that belong to groups, which keeps them apart from the trajectories'."""

FIRST_ANSWER_TOKENS: Final = 256
"""Room that a first prompt leaves for its answer; a longer first answer ends at the context limit."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Synchronous steps: ``per_step`` groups of ``size`` trajectories each; a group shares its first prompt."""

    per_step: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """All randomness of a workload, as standard-normal scores but for two.

    Attributes:
        first: float64[N], of the first prompts (shared in a group).
        turns: int64[N], natural number of turns of each trajectory.
        effects: float64[N, 3], of a trajectory on its appended tokens, output tokens and gaps.
        sandbox, reward: float64[N].
        action, kind: float64[T], uniforms.
        normal: float64[T, 4], of output, appended, gap, and shares of rewritten prompts.
    """

    first: Floats
    turns: Ints
    effects: Floats
    sandbox: Floats
    reward: Floats
    action: Floats
    kind: Floats
    normal: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Scores float64[T] of what the turns bring."""

    output: Floats
    appended: Floats
    gap: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """What the turns bring before contexts are added up, [T] each.

    ``kind`` are uniforms that choose the kind of prompt, ``share`` scores of its shares, ``rewritten`` the probability
    that it keeps only a part of the context.
    """

    output: Ints
    appended: Ints
    gap_s: Floats
    kind: Floats
    share: Floats
    rewritten: Floats


def generate(
    name: str,
    *,
    profile: Profile,
    trajectories: int,
    seed: int,
    groups: Groups | None = None,
    gap_cap_s: float = 60.0,
    max_turns: int | None = None,
) -> Workload:
    """Generate a workload of the class ``name`` (:func:`prorsa.cluster.workloads.fitted.workload_names`).

    Args:
        profile: its ``max_context`` truncates trajectories; first prompts are drawn from those that fit.
        trajectories: how many; with ``groups`` they fill groups and steps in order.
        seed: of all randomness.
        groups: None for an asynchronous workload.
        gap_cap_s: longer gaps are cut to this.
        max_turns: trajectories end as truncated after this many turns; None for no limit.

    Raises:
        ConfigError: if an argument is out of range, or the profile holds none of the first prompts.
    """
    check_common(seed=seed, gap_cap_s=gap_cap_s, max_turns=max_turns)
    if trajectories < 1:
        raise ConfigError(f"trajectories is {trajectories}: give 1 or more")
    fitted = load_fitted(name)
    group, step = _placement(trajectories, groups)
    draws = _draw(fitted, group, seed)
    first_turn = offsets(draws.turns)
    action = _actions(fitted, first_turn, draws.action)
    sizes = _sizes(fitted, draws, first_turn, action)
    first_prompt = _first_prompts(fitted, draws.first, profile)
    prompt, reuse = _contexts(fitted, first_turn, first_prompt, sizes)
    output = sizes.output.copy()
    starts = first_turn[:-1]
    output[starts] = np.minimum(output[starts], profile.max_context - first_prompt)
    ends = cut(first_turn, prompt, output, profile.max_context, max_turns)
    return Workload(
        first_turn=offsets(ends.turns),
        group=group,
        step=step,
        sandbox_s=_seconds(fitted.sandbox_s, draws.sandbox),
        reward_s=_seconds(fitted.reward_s, draws.reward),
        truncated=ends.truncated,
        prompt_tokens=prompt[ends.kept],
        reuse_tokens=reuse[ends.kept],
        output_tokens=output[ends.kept],
        gap_s=np.minimum(sizes.gap_s, gap_cap_s)[ends.kept],
        tool=_shifted(action, starts)[ends.kept],
        tools=tuple(action.name for action in fitted.actions),
        workload=name,
    )


def _placement(trajectories: int, groups: Groups | None) -> tuple[Ints, Ints]:
    """Group and step of each trajectory; -1 and 0 where there are no groups."""
    index = np.arange(trajectories)
    if groups is None:
        return np.full(trajectories, -1), np.zeros(trajectories, dtype=np.int64)
    if groups.size < 1 or groups.per_step < 1:
        raise ConfigError(f"groups are {groups.per_step} of {groups.size}: give 1 or more of 1 or more")
    return index // groups.size, index // (groups.size * groups.per_step)


# --- draws ----------------------------------------------------------------------------------------------------------


def _draw(fitted: Fitted, group: Ints, seed: int) -> _Draws:
    streams = [np.random.Generator(np.random.Philox(key=_key(seed, i))) for i in range(len(group))]
    heads = _normals(np.array([stream.random(_HEAD_DRAWS) for stream in streams]))
    if group[0] >= 0:
        heads[:, 0] = _group_scores(seed, int(group[-1]) + 1)[group]
    # The first score is a factor of all others, so that what hangs on the first prompt stays so where it is shared.
    scores = _mixed(heads[:, :5], np.linalg.cholesky(np.array(fitted.correlations.trajectory)))
    turns = np.maximum(1, np.rint(fitted.turns.at(scores[:, 1], np.array(fitted.scores)))).astype(np.int64)
    uniform = np.concatenate([stream.random((n, DRAWS_PER_TURN)) for stream, n in zip(streams, turns, strict=True)])
    return _Draws(
        first=scores[:, 0],
        turns=turns,
        effects=scores[:, 2:],
        sandbox=heads[:, 5],
        reward=heads[:, 6],
        action=uniform[:, 0],
        kind=uniform[:, 1],
        normal=_normals(uniform[:, 2:]),
    )


def _mixed(scores: Floats, factor: Floats) -> Floats:
    """``scores`` times the transposed ``factor``, row by row.

    A matrix product would round differently with the number of rows.
    """
    return np.asarray(sum(scores[:, [column]] * factor[:, column] for column in range(len(factor))))


def _key(seed: int, stream: int) -> NDArray[np.uint64]:
    return np.array([seed, stream], dtype=np.uint64)


def _group_scores(seed: int, groups: int) -> Floats:
    counter = np.array([0, 0, 0, _GROUP_STREAM], dtype=np.uint64)
    streams = (np.random.Generator(np.random.Philox(key=_key(seed, g), counter=counter)) for g in range(groups))
    return _normals(np.array([stream.random(2) for stream in streams]))[:, 0]


def _normals(uniform: Floats) -> Floats:
    """Standard-normal scores of uniforms, pair by pair (Box and Muller 1958): as many as there are uniforms.

    NumPy's own normals are drawn by rejection, which would take a varying number of draws.
    """
    radius = np.sqrt(-2.0 * np.log1p(-uniform[..., 0::2]))
    angle = 2.0 * np.pi * uniform[..., 1::2]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)


# --- sizes and gaps of turns ----------------------------------------------------------------------------------------


def _actions(fitted: Fitted, first_turn: Ints, uniform: Floats) -> Ints:
    """What each answer calls for: a Markov chain over the actions, int64[T]."""
    start = np.cumsum([action.start for action in fitted.actions])[:-1].tolist()
    after = [np.cumsum(action.next)[:-1].tolist() for action in fitted.actions]
    firsts = set(first_turn[:-1].tolist())
    chain: list[int] = []
    for k, u in enumerate(uniform.tolist()):
        chain.append(bisect_right(start if k in firsts else after[chain[-1]], u))
    return np.array(chain, dtype=np.int64)


def _sizes(fitted: Fitted, draws: _Draws, first_turn: Ints, action: Ints) -> _Sizes:
    position = np.arange(len(action)) - np.repeat(first_turn[:-1], draws.turns)
    bucket = np.searchsorted(fitted.buckets, position, side="right") - 1
    before = _shifted(action, first_turn[:-1])
    scores = _scores(fitted.correlations, draws, position)
    gap_s = _by_action(fitted, [[a.gap_s] for a in fitted.actions], before, np.zeros_like(bucket), scores.gap)
    output = _by_action(fitted, [a.output for a in fitted.actions], action, bucket, scores.output)
    appended = _by_action(fitted, [a.appended for a in fitted.actions], before, bucket, scores.appended)
    rewritten = np.where(position == 1, fitted.first_rewritten, 0.0)
    for number, entry in enumerate(fitted.actions):
        later = (before == number) & (position > 1)
        rewritten[later] = entry.rewritten.at(gap_s[later])
    return _Sizes(
        output=np.maximum(1, np.rint(output)).astype(np.int64),
        appended=np.maximum(1, np.rint(appended)).astype(np.int64),
        gap_s=gap_s,
        kind=draws.kind,
        share=draws.normal[:, 3],
        rewritten=rewritten,
    )


def _scores(correlations: Correlations, draws: _Draws, position: Ints) -> _Scores:
    """Scores of every turn, from the trajectory's effects and the turn's own draws."""
    effects = np.repeat(draws.effects, draws.turns, axis=0)
    own_output, own_appended, own_gap = draws.normal[:, 0], draws.normal[:, 1], draws.normal[:, 2]
    with_gap = _tied(correlations.gap_appended, own_gap, own_appended)
    appended = _blend(correlations.appended, effects[:, 0], with_gap)
    # An agent that starts with a short prompt reads much before its second turn; one that resumes does not.
    with_first = _tied(correlations.first_appended, np.repeat(draws.first, draws.turns), appended)
    return _Scores(
        output=_blend(correlations.output, effects[:, 1], own_output),
        appended=np.where(position == 1, with_first, appended),
        gap=_blend(correlations.gap, effects[:, 2], own_gap),
    )


def _blend(share: float, effect: Floats, own: Floats) -> Floats:
    """Scores of which the trajectory's effect explains ``share`` of the variance."""
    return _tied(math.sqrt(share), effect, own)


def _tied(correlation: float, to: Floats, own: Floats) -> Floats:
    """Scores that correlate with the scores ``to``."""
    return np.asarray(correlation * to + math.sqrt(1 - correlation**2) * own)


def _by_action(fitted: Fitted, tables: Sequence[Sequence[Table]], action: Ints, bucket: Ints, scores: Floats) -> Floats:
    """Values at ``scores`` by the table of each turn's action and bucket; 0 where the action is -1: float64[T]."""
    grid = np.array(fitted.scores)
    values = np.zeros(len(scores))
    for number, by_bucket in enumerate(tables):
        for place, table in enumerate(by_bucket):
            here = (action == number) & (bucket == place)
            values[here] = table.at(scores[here], grid)
    return values


def _shifted(action: Ints, starts: Ints) -> Ints:
    """The action of the answer before each turn; -1 for first turns."""
    before: Ints = np.roll(action, 1)
    before[starts] = -1
    return before


# --- prompts --------------------------------------------------------------------------------------------------------


def _first_prompts(fitted: Fitted, scores: Floats, profile: Profile) -> Ints:
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


def _contexts(fitted: Fitted, first_turn: Ints, first_prompt: Ints, sizes: _Sizes) -> tuple[Ints, Ints]:
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


def _seconds(distribution: LogNormal | None, scores: Floats) -> Floats:
    return np.zeros(len(scores)) if distribution is None else distribution.at(scores)
