"""A workload: every turn's sizes and gaps, fixed before a run starts, so that all policies get the same one."""

from dataclasses import dataclass, field

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
        workload: the class of the workload, as in ``coding``.
        sessions_skipped: sessions that were left out because their first turn does not fit.
        shared_tokens: int64[N], leading tokens of the first prompt that all members of the group have in common; 0 for
            none, which is also what an empty array means.
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

    def __post_init__(self) -> None:
        if len(self.shared_tokens) == 0:
            object.__setattr__(self, "shared_tokens", np.zeros(self.trajectories, np.int64))

    @property
    def trajectories(self) -> int:
        """N, the number of trajectories."""
        return len(self.group)

    @property
    def turns(self) -> int:
        """T, the number of turns."""
        return len(self.prompt_tokens)
