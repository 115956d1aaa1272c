"""Recorded trajectories drawn anew: another run of the same kind."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.workload import Workload

STEPS: Final = 3
"""Steps of a synchronous run."""
_NEAR: Final = 0.1
"""How far from its place in the recording a trajectory is drawn, as a share of the recording: what changed in its
course changes in a run that is drawn anew."""


def redrawn(workload: Workload, scenario: Scenario, rng: np.random.Generator) -> Workload:
    """Another run of the same kind, of the scenario's length: whole groups, drawn near the place that they had."""
    per_step = scenario.groups_per_step
    wanted = scenario.trajectories or scenario.concurrency
    members = groups_of(workload)
    drawn: list[NDArray[np.int64]] = []
    at, near = int(rng.integers(len(members))), max(1, round(_NEAR * len(members)))
    while len(drawn) < STEPS * per_step if per_step else sum(map(len, drawn)) < wanted:
        drawn.append(members[(at + int(rng.integers(-near, near + 1))) % len(members)])
        at += 1
    return _picked(workload, drawn, per_step)


def groups_of(workload: Workload) -> list[NDArray[np.int64]]:
    """Indices of the trajectories of each group, in the order of dispatch; one alone where it has none."""
    found: dict[int, list[int]] = {}
    for index, group in enumerate(workload.group.tolist()):
        found.setdefault(group if group >= 0 else -1 - index, []).append(index)
    return [np.array(indices, np.int64) for indices in found.values()]


def _picked(workload: Workload, drawn: list[NDArray[np.int64]], per_step: int | None) -> Workload:
    picked = np.concatenate(drawn)
    first, sizes = workload.first_turn, [len(members) for members in drawn]
    turns = np.concatenate([np.arange(first[i], first[i + 1]) for i in picked])
    number = np.repeat(np.arange(len(drawn)), sizes)
    grouped = workload.group[picked] >= 0
    return Workload(
        first_turn=np.concatenate([[0], np.cumsum((first[1:] - first[:-1])[picked])]).astype(np.int64),
        group=np.where(grouped, number, -1),
        step=number // per_step if per_step else np.zeros(len(picked), np.int64),
        shared_tokens=np.repeat([_shared(workload, members) for members in drawn], sizes) * grouped,
        **{name: getattr(workload, name)[picked] for name in ("sandbox_s", "reward_s", "truncated")},
        **{
            name: getattr(workload, name)[turns]
            for name in ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool")
        },
        tools=workload.tools,
        workload=workload.workload,
    )


def _shared(workload: Workload, members: NDArray[np.int64]) -> int:
    """The first prompt of a group is one prompt where all are of one length; else nothing is known to be shared."""
    prompts = workload.prompt_tokens[workload.first_turn[members]]
    return int(prompts[0]) if (prompts == prompts[0]).all() else 0
