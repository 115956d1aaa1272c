"""Generated workloads: agent trajectories drawn from fitted statistics (``docs/workloads.md`` describes the model)."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.contexts import contexts, first_prompts
from prorsa.cluster.workloads.draws import (
    CLASS_STREAM,
    IMAGE_STREAM,
    PULL_STREAM,
    SLOW_TOOL_STREAM,
    draw,
    stream,
    uniforms,
)
from prorsa.cluster.workloads.fitted import Fitted, LogNormal, load_fitted
from prorsa.cluster.workloads.limits import Floats, Ints, check_common, cut, offsets
from prorsa.cluster.workloads.shapes import Shape, class_names, factors_at, shares_at
from prorsa.cluster.workloads.sizes import actions, draw_sizes, shifted
from prorsa.cluster.workloads.workload import Workload, interleave
from prorsa.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ``size`` trajectories that share their first prompt and resemble each other.

    A synchronous step takes ``per_step`` of them; None for an asynchronous workload.
    """

    per_step: int | None
    size: int


def generate(
    name: str,
    *,
    profile: Profile,
    trajectories: int,
    seed: int,
    groups: Groups | None = None,
    gap_cap_s: float = 60.0,
    max_turns: int | None = None,
    shape: Shape | None = None,
) -> Workload:
    """Generate a workload of the class ``name`` (:func:`prorsa.cluster.workloads.fitted.workload_names`).

    Args:
        name: the class; where ``shape`` mixes classes, what the mix is called.
        profile: its ``max_context`` truncates trajectories; first prompts are drawn from those that fit.
        trajectories: how many; with ``groups`` they fill groups and steps in order.
        seed: of all randomness.
        groups: None for trajectories that are each their own task.
        gap_cap_s: longer gaps are cut to this.
        max_turns: trajectories end as truncated after this many turns; None for no limit.
        shape: mixes, drifts and disturbances; None for none.

    Raises:
        ConfigError: if an argument is out of range, or the profile holds none of the first prompts.
    """
    shape = shape or Shape()
    check_common(seed=seed, gap_cap_s=gap_cap_s, max_turns=max_turns)
    _check(trajectories, groups, shape)
    index = np.arange(trajectories)
    group = np.full(trajectories, -1) if groups is None else index // groups.size
    parts = []
    for member, class_name in _classes(name, index, group, shape, seed):
        limits = _Limits(profile, gap_cap_s, max_turns)
        parts.append((member, _generate(load_fitted(class_name), member, group[member], seed, shape, limits)))
    return interleave(name, parts, group=group, step=_steps(index, groups))


@dataclass(frozen=True, slots=True)
class _Limits:
    profile: Profile
    gap_cap_s: float
    max_turns: int | None


def _check(trajectories: int, groups: Groups | None, shape: Shape) -> None:
    if trajectories < 1:
        raise ConfigError(f"trajectories is {trajectories}: give 1 or more")
    if groups is not None and (groups.size < 1 or (groups.per_step is not None and groups.per_step < 1)):
        raise ConfigError(f"groups are {groups.per_step} of {groups.size}: give 1 or more of 1 or more")
    wrong = "; ".join(shape.problems())
    if wrong:
        raise ConfigError(wrong)


def _steps(index: Ints, groups: Groups | None) -> Ints:
    if groups is None or groups.per_step is None:
        return np.zeros_like(index)
    return index // (groups.size * groups.per_step)


def _classes(name: str, index: Ints, group: Ints, shape: Shape, seed: int) -> list[tuple[Ints, str]]:
    """The trajectories of each class; a group is of one class, that of its first member's place in the mix."""
    if not shape.mix:
        return [(index, name)]
    names = class_names(shape.mix)
    unit = np.where(group >= 0, group, index)
    _, firsts, place = np.unique(unit, return_index=True, return_inverse=True)
    drawn = uniforms(seed, unit[firsts].tolist(), CLASS_STREAM, 1)[:, 0]
    below = np.cumsum(shares_at(shape.mix, names, index[firsts]), axis=1)[:, :-1]
    chosen = np.sum(drawn[:, None] >= below, axis=1)[place]
    return [(index[chosen == number], one) for number, one in enumerate(names) if (chosen == number).any()]


def _generate(fitted: Fitted, index: Ints, group: Ints, seed: int, shape: Shape, limits: _Limits) -> Workload:
    """The trajectories ``index`` of one class, in that order; their steps are the caller's."""
    draws = draw(fitted, index, group, seed)
    first_turn = offsets(draws.turns)
    action = actions(fitted, first_turn, draws.action)
    sizes = draw_sizes(fitted, draws, first_turn, action)
    first_prompt = first_prompts(fitted, draws.first, limits.profile)
    prompt, reuse = contexts(fitted, first_turn, first_prompt, sizes)
    output = sizes.output.copy()
    starts = first_turn[:-1]
    output[starts] = np.minimum(output[starts], limits.profile.max_context - first_prompt)
    ends = cut(first_turn, prompt, output, limits.profile.max_context, limits.max_turns)
    gap_s = _gaps(sizes.gap_s, index, draws.turns, shape, seed)
    gap_s[starts] = 0.0
    return Workload(
        first_turn=offsets(ends.turns),
        group=group,
        step=np.zeros_like(index),
        sandbox_s=_sandboxes(fitted, draws.sandbox, index, shape, seed),
        reward_s=_seconds(fitted.reward_s, draws.reward),
        truncated=ends.truncated,
        prompt_tokens=prompt[ends.kept],
        reuse_tokens=reuse[ends.kept],
        output_tokens=output[ends.kept],
        gap_s=np.minimum(gap_s, limits.gap_cap_s)[ends.kept],
        tool=shifted(action, starts)[ends.kept],
        tools=tuple(action.name for action in fitted.actions),
        workload=fitted.name,
    )


def _gaps(usual_s: Floats, index: Ints, turns: Ints, shape: Shape, seed: int) -> Floats:
    """Gaps float64[T] as they drift, some of them of tools that hang."""
    gap_s = usual_s.copy()
    if shape.tool_drift:
        gap_s *= np.repeat(factors_at(shape.tool_drift, index), turns)
    slow = shape.slow_tools
    if slow is not None:
        pairs = zip(index.tolist(), turns.tolist(), strict=True)
        drawn = np.concatenate([stream(seed, i, SLOW_TOOL_STREAM).random((n, 2)) for i, n in pairs])
        hangs_s = slow.from_s * (1.0 - drawn[:, 1]) ** (-1.0 / slow.alpha)
        gap_s = np.where(drawn[:, 0] < slow.share, np.maximum(gap_s, hangs_s), gap_s)
    return gap_s


def _sandboxes(fitted: Fitted, scores: Floats, index: Ints, shape: Shape, seed: int) -> Floats:
    """Start-up times float64[N]; those of a block whose image no node holds wait for its pull as well."""
    sandbox_s = _seconds(fitted.sandbox_s, scores)
    bursts = shape.sandbox_bursts
    if bursts is None or fitted.sandbox_s is None:
        return sandbox_s
    numbers, place = np.unique(index // bursts.block, return_inverse=True)
    block = uniforms(seed, numbers.tolist(), IMAGE_STREAM, 2)
    own = uniforms(seed, index.tolist(), PULL_STREAM, 1)[:, 0]
    normal = NormalDist()
    scores = np.array([normal.inv_cdf(min(max(u, 1e-12), 1 - 1e-12)) for u in block[:, 1]])
    pull_s = LogNormal(median_s=bursts.pull_s, p99_s=bursts.pull_p99_s).at(scores)
    waits = (block[:, 0] < bursts.cold)[place]
    return np.where(waits, sandbox_s + pull_s[place] * (1.0 + 2.0 * own), sandbox_s)


def _seconds(distribution: LogNormal | None, scores: Floats) -> Floats:
    return np.zeros(len(scores)) if distribution is None else distribution.at(scores)
