"""The workload of a recorded run: what its trajectories did, apart from how the pool served them.

A recording is a journal of lifecycle events, from whatever pool and under whatever policy. Sizes, gaps, sandboxes and
rewards are the trajectories' own and are taken as they were; when a request was served is the pool's doing and is not.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.clock import seconds
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import InputError
from prorsa.events import (
    LlmEnd,
    RewardEnd,
    RewardStart,
    RunBegin,
    SandboxReady,
    SandboxStart,
    Stamped,
    ToolEnd,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WorkerUp,
)

EVENTS: Final = (
    "run.begin", "trajectory.dispatched", "sandbox.start", "sandbox.ready", "trajectory.ready", "llm.end", "tool.end",
    "reward.start", "reward.end", "trajectory.end", "worker.up",
)  # fmt: skip
"""The event types that are read."""
UNNAMED: Final = "recorded"
"""The class of trajectories of which the recording names none."""


@dataclass(slots=True)
class _Turn:
    prompt_tokens: int
    gap_s: float
    appended_tokens: int | None
    tool: str | None
    output_tokens: int | None = None


@dataclass(slots=True)
class _Trajectory:
    group: str | None = None
    workload: str = UNNAMED
    sandbox_s: float = 0.0
    reward_s: float = 0.0
    turns: list[_Turn] = field(default_factory=list)
    ended: bool = False
    truncated: bool = False
    since_ns: int = 0
    answered_ns: int | None = None
    tool: str | None = None
    appended_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """What a journal tells of a run.

    Attributes:
        workload: its complete trajectories in the order of dispatch, as one asynchronous run.
        roles: of the workers at the start, by id.
        most_live: trajectories that were live at a time, at most.
        begin: what the run said of itself; None where nobody did.
        incomplete: trajectories that were left out because their end is not in the recording.
        span_s: from the first event to the last.
    """

    workload: Workload
    roles: dict[str, str]
    most_live: int
    begin: RunBegin | None
    incomplete: int
    span_s: float


def read_recording(rows: Iterable[Stamped], where: str) -> Recording:
    """Fold a journal's events into what its trajectories did.

    Raises:
        InputError: if there is no complete trajectory; names the journal and what it holds.
    """
    folder = _Folder()
    for stamped in rows:
        folder.observe(stamped)
    complete = [trajectory for trajectory in folder.trajectories.values() if _complete(trajectory)]
    if not complete:
        raise InputError(
            f"{where}: none of its {len(folder.trajectories)} trajectories is complete (ready, answered, ended): "
            "record a longer run, with the router's or the SDK's events"
        )
    return Recording(
        workload=_workload(complete),
        roles=folder.roles,
        most_live=folder.most_live,
        begin=folder.begin,
        incomplete=len(folder.trajectories) - len(complete),
        span_s=seconds(folder.last_ns - folder.first_ns) if folder.first_ns is not None else 0.0,
    )


class _Folder:
    def __init__(self) -> None:
        self.trajectories: dict[str, _Trajectory] = {}
        self.roles: dict[str, str] = {}
        self.begin: RunBegin | None = None
        self.most_live = self._live = 0
        self.first_ns: int | None = None
        self.last_ns = 0

    def observe(self, stamped: Stamped) -> None:
        event, t_ns = stamped.event, stamped.t_ns
        self.first_ns = t_ns if self.first_ns is None else self.first_ns
        self.last_ns = t_ns
        match event:
            case RunBegin():
                self.begin = self.begin or event
            case WorkerUp():
                self.roles.setdefault(event.worker_id, event.role)
            case _ if event.trajectory_id is not None:
                self._of(event.trajectory_id, event, t_ns)
            case _:
                pass

    def _of(self, trajectory_id: str, event: Any, t_ns: int) -> None:  # noqa: ANN401 - any of the event union
        trajectory = self.trajectories.get(trajectory_id)
        if trajectory is None:
            trajectory = self.trajectories[trajectory_id] = _Trajectory()
            self._live += 1
            self.most_live = max(self.most_live, self._live)
        match event:
            case TrajectoryDispatched():
                trajectory.group = event.group_id
                trajectory.workload = event.workload or UNNAMED
            case SandboxStart() | RewardStart():
                trajectory.since_ns = t_ns
            case SandboxReady():
                trajectory.sandbox_s = seconds(t_ns - trajectory.since_ns)
            case RewardEnd():
                trajectory.reward_s = seconds(t_ns - trajectory.since_ns)
            case ToolEnd():
                trajectory.tool, trajectory.appended_tokens = event.tool_name, event.output_tokens
            case TrajectoryReady():
                self._ready(trajectory, event, t_ns)
            case LlmEnd() if trajectory.turns and event.finish_reason in ("stop", "length"):
                trajectory.turns[-1].output_tokens = max(event.output_tokens, 1)
                trajectory.answered_ns = t_ns
            case TrajectoryEnd():
                trajectory.ended = event.status in ("completed", "truncated")
                trajectory.truncated = event.status == "truncated"
                self._live -= 1
            case _:
                pass

    def _ready(self, trajectory: _Trajectory, event: TrajectoryReady, t_ns: int) -> None:
        gap_s = 0.0 if trajectory.answered_ns is None else seconds(t_ns - trajectory.answered_ns)
        appended = event.new_tokens if trajectory.appended_tokens is None else trajectory.appended_tokens
        trajectory.turns.append(_Turn(max(event.prompt_tokens, 1), gap_s, appended, trajectory.tool))
        trajectory.tool = trajectory.appended_tokens = None


def _complete(trajectory: _Trajectory) -> bool:
    turns = trajectory.turns
    return trajectory.ended and bool(turns) and all(turn.output_tokens is not None for turn in turns)


def _workload(trajectories: list[_Trajectory]) -> Workload:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    counts = [len(trajectory.turns) for trajectory in trajectories]
    groups = {name: k for k, name in enumerate(dict.fromkeys(t.group for t in trajectories if t.group is not None))}
    tools = [name for name, _ in Counter(turn.tool or "tool" for turn in turns).most_common()]
    index = {name: k for k, name in enumerate(tools)}
    firsts = set(np.cumsum([0, *counts[:-1]]).tolist())
    # Policies go by the class where it is told: what is run again must tell it too.
    classes = list(dict.fromkeys(t.workload for t in trajectories))
    workload = Workload(
        first_turn=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        group=np.array([groups.get(t.group, -1) if t.group is not None else -1 for t in trajectories]),
        step=np.zeros(len(trajectories), np.int64),
        sandbox_s=np.array([t.sandbox_s for t in trajectories]),
        reward_s=np.array([t.reward_s for t in trajectories]),
        truncated=np.array([t.truncated for t in trajectories]),
        prompt_tokens=np.array([turn.prompt_tokens for turn in turns], np.int64),
        reuse_tokens=np.concatenate([_reuse(trajectory.turns) for trajectory in trajectories]),
        output_tokens=np.array([turn.output_tokens for turn in turns], np.int64),
        gap_s=np.array([turn.gap_s for turn in turns]),
        tool=np.array([-1 if k in firsts else index[turn.tool or "tool"] for k, turn in enumerate(turns)], np.int64),
        tools=tuple(tools),
        workload=classes[0] if len(classes) == 1 else UNNAMED,
        classes=tuple(classes) if len(classes) > 1 else (),
        class_index=np.array([classes.index(t.workload) for t in trajectories]),
    )
    shared = np.zeros(len(trajectories), np.int64)
    for members in groups_of(workload):
        shared[members] = _shared(workload, members)
    return replace(workload, shared_tokens=shared)


def groups_of(workload: Workload) -> list[NDArray[np.int64]]:
    """Indices of the trajectories of each group, in the order of dispatch; one alone where it has none."""
    found: dict[int, list[int]] = {}
    for index, group in enumerate(workload.group.tolist()):
        found.setdefault(group if group >= 0 else -1 - index, []).append(index)
    return [np.array(indices, np.int64) for indices in found.values()]


def _shared(workload: Workload, members: NDArray[np.int64]) -> int:
    """The first prompt of a group is one prompt where all are of one length; else nothing is known to be shared."""
    prompts = workload.prompt_tokens[workload.first_turn[members]]
    alike = workload.group[members[0]] >= 0 and (prompts == prompts[0]).all()
    return int(prompts[0]) if alike else 0


def _reuse(turns: list[_Turn]) -> NDArray[np.int64]:
    """Leading tokens of each prompt that the context before it holds too.

    What a tool returned says it; else what the router could not find cached, which is no less than what is new.
    """
    reuse = [0]
    for before, turn in itertools.pairwise(turns):
        context = before.prompt_tokens + (before.output_tokens or 0)
        appended = turn.prompt_tokens - context if turn.appended_tokens is None else turn.appended_tokens
        reuse.append(min(max(turn.prompt_tokens - max(appended, 1), 0), context))
    return np.array(reuse, np.int64)


def resampled(workload: Workload, generator: np.random.Generator) -> Workload:
    """As many groups, drawn with replacement and in any order: another run of the same kind (a cluster bootstrap).

    Members of a group are alike, so that a group is one draw; a trajectory without a group is one by itself.
    """
    members = groups_of(workload)
    return picked(workload, [members[k] for k in generator.integers(0, len(members), len(members))])


def picked(workload: Workload, drawn: list[NDArray[np.int64]], groups_per_step: int | None = None) -> Workload:
    """The run of the groups ``drawn``, each the indices of its trajectories, one after the other.

    A group that is drawn twice is two groups, which share no prompt. ``groups_per_step``: of a synchronous run.
    """
    indices = np.concatenate(drawn)
    first, sizes = workload.first_turn, [len(members) for members in drawn]
    turns = np.concatenate([np.arange(first[i], first[i + 1]) for i in indices])
    number = np.repeat(np.arange(len(drawn)), sizes)
    return Workload(
        first_turn=np.concatenate([[0], np.cumsum((first[1:] - first[:-1])[indices])]).astype(np.int64),
        group=np.where(workload.group[indices] >= 0, number, -1),
        step=number // groups_per_step if groups_per_step else np.zeros(len(indices), np.int64),
        **{
            name: getattr(workload, name)[indices]
            for name in ("sandbox_s", "reward_s", "truncated", "shared_tokens", "class_index")
        },
        **{
            name: getattr(workload, name)[turns]
            for name in ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool")
        },
        tools=workload.tools,
        workload=workload.workload,
        classes=workload.classes,
        sessions_skipped=workload.sessions_skipped,
    )
