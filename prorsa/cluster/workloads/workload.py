"""A workload: every turn's sizes and gaps, fixed before a run starts, so that all policies get the same one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """N trajectories with T turns in all, as flat arrays.

    Trajectory ``i`` has the turns ``first_turn[i] <= k < first_turn[i + 1]``; it is dispatched in the order of ``i``.

    Attributes:
        first_turn: int64[N + 1], offsets into the turn arrays.
        group: int64[N], the group (GRPO) of each trajectory; -1 where it has none.
        step: int64[N], the synchronous step that dispatches it, from 0; all 0 in asynchronous workloads.
        sandbox_s: float64[N], start-up time of its sandbox; 0 where it needs none.
        reward_s: float64[N], time its reward takes after its last turn.
        truncated: bool[N], whether it ends as ``truncated`` (its next turn would not fit) rather than ``completed``.
        prompt_tokens: int64[T], whole prompt of the turn.
        reuse_tokens: int64[T], leading tokens of the prompt that the trajectory's context before it (previous prompt
            and output) holds too; 0 for first turns. A cache that holds the whole context saves this much.
        output_tokens: int64[T], at least 1.
        gap_s: float64[T], time between the previous answer and this request; 0 for first turns.
        tool: int64[T], index into ``tools`` of what ran in the gap; -1 for first turns.
        tools: names of the tools.
        workload: the class of the workload, as in ``coding``, or the name of a mix of classes.
        sessions_skipped: sessions that were left out because their first turn does not fit.
        shared_tokens: int64[N], leading tokens of the first prompt that all members of the group have in common; 0 for
            none, which is also what an empty array means.
        classes: the classes of a mix; empty where all trajectories are of the class ``workload``.
        class_index: int64[N], index into ``classes``; 0 where there is no mix.
    """

    first_turn: NDArray[np.int64]
    group: NDArray[np.int64]
    step: NDArray[np.int64]
    sandbox_s: NDArray[np.float64]
    reward_s: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    prompt_tokens: NDArray[np.int64]
    reuse_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    gap_s: NDArray[np.float64]
    tool: NDArray[np.int64]
    tools: tuple[str, ...]
    workload: str
    sessions_skipped: int = 0
    shared_tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: tuple[str, ...] = ()
    class_index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        for name in ("shared_tokens", "class_index"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self.group), np.int64))

    @property
    def trajectories(self) -> int:
        """N, the number of trajectories."""
        return len(self.group)

    @property
    def turns(self) -> int:
        """T, the number of turns."""
        return len(self.prompt_tokens)

    def class_of(self, trajectory: int) -> str:
        """The class of a trajectory."""
        return self.classes[self.class_index[trajectory]] if self.classes else self.workload


def interleave(
    name: str,
    parts: Sequence[tuple[NDArray[np.int64], Workload]],
    *,
    group: NDArray[np.int64],
    step: NDArray[np.int64],
) -> Workload:
    """One workload of several classes: each part with the places that its trajectories take, int64[its N].

    Args:
        name: of the whole.
        parts: together they fill the places 0 to N - 1, each once.
        group, step: int64[N], of the whole.
    """
    tools = tuple(sorted({tool for _, part in parts for tool in part.tools})) if len(parts) > 1 else parts[0][1].tools
    places = np.concatenate([place for place, _ in parts])
    order = np.argsort(places)
    lengths = np.concatenate([np.diff(part.first_turn) for _, part in parts])
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1][order]
    first_turn = np.concatenate(([0], np.cumsum(lengths[order])))
    # Turn k of the whole is the turn at `pick[k]` of the parts one after the other.
    pick = np.arange(first_turn[-1]) + np.repeat(starts - first_turn[:-1], lengths[order])

    def whole(field_name: str, at: NDArray[np.int64]) -> NDArray[Any]:
        return np.concatenate([getattr(part, field_name) for _, part in parts])[at]

    tool = np.concatenate([_renamed(part, tools) for _, part in parts])
    prompt_tokens = whole("prompt_tokens", pick)
    return Workload(
        first_turn=first_turn,
        group=group,
        step=step,
        sandbox_s=whole("sandbox_s", order),
        reward_s=whole("reward_s", order),
        truncated=whole("truncated", order),
        prompt_tokens=prompt_tokens,
        reuse_tokens=whole("reuse_tokens", pick),
        output_tokens=whole("output_tokens", pick),
        gap_s=whole("gap_s", pick),
        tool=tool[pick],
        tools=tools,
        workload=name,
        # Members of a group have the same first prompt, to the token.
        shared_tokens=np.where(group >= 0, prompt_tokens[first_turn[:-1]], 0),
        classes=() if [part.workload for _, part in parts] == [name] else tuple(part.workload for _, part in parts),
        class_index=np.repeat(np.arange(len(parts)), [len(place) for place, _ in parts])[order],
    )


def _renamed(part: Workload, tools: tuple[str, ...]) -> NDArray[np.int64]:
    """The part's ``tool`` as indices into ``tools``; -1 stays."""
    index = np.array([tools.index(tool) for tool in part.tools], dtype=np.int64)
    return np.where(part.tool >= 0, index[part.tool], -1)
