"""A run that goes on with another workload of the same past: where its trajectories stand, and what is to be moved."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.sim import state as st
from prorsa.cluster.sim.allocation import replan
from prorsa.cluster.sim.decode_clock import end_block_at, steps_done
from prorsa.cluster.sim.heap import set_timer
from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.state import DECODING, State
from prorsa.cluster.workloads import standing as at
from prorsa.cluster.workloads.workload import Workload

_STAGES: Final = np.full(st.DONE + 1, at.ANSWERING, np.int8)
"""Stage by phase: whatever is not named here is some part of an answer."""
_STAGES[st.UNSTARTED] = at.WAITING
_STAGES[st.SANDBOX] = at.SANDBOX
_STAGES[st.TOOL] = at.TOOL
_STAGES[st.REWARD] = at.REWARD
_STAGES[st.DONE] = at.ENDED


def standing_of(state: State) -> at.Standing:
    """Where every trajectory stands now."""
    rows, now_s = state.trajectories, float(state.totals["now_s"][0])
    stage = _STAGES[rows["phase"]]
    begun = stage != at.WAITING
    first = state.plan["first_turn"][:-1]
    began_s = _began_s(state, stage)
    return at.Standing(
        stage=stage,
        turn=np.where(begun, rows["turn"] - first, 0),
        elapsed_s=np.where(np.isnan(began_s), 0.0, np.maximum(now_s - began_s, 0.0)),
        output_tokens=np.where(stage == at.ANSWERING, rows["kept"] + _output(state), 0),
    )


def _began_s(state: State, stage: NDArray[Any]) -> NDArray[Any]:
    """When the sandbox, tool or reward under way began: by its timer and how long it takes in all; else NaN."""
    rows, plan = state.trajectories, state.plan[:-1]
    takes_s = np.full(len(rows), np.nan)
    tools = stage == at.TOOL
    takes_s[tools] = state.turns["gap_s"][rows["turn"][tools]]
    for number, name in ((at.SANDBOX, "sandbox_s"), (at.REWARD, "reward_s")):
        takes_s[stage == number] = plan[name][stage == number]
    slots = state.heap_slot[: len(rows)]
    due_s = np.where(slots >= 0, state.heap["time_s"][slots], np.nan)
    return due_s - takes_s


def _output(state: State) -> NDArray[Any]:
    """Tokens of each trajectory's attempt that are out."""
    rows = state.trajectories
    output = rows["output"].copy()
    for rank in range(len(state.ranks)):
        w = int(state.ranks["worker"][rank])
        running = state.running[rank, : state.ranks["running"][rank]]
        if len(running):
            output[running] += int(state.ranks["steps"][rank]) + steps_done(state, w) - rows["join_step"][running]
    return output


def with_workload(state: State, workload: Workload) -> State:
    """The state, which goes on with ``workload``, whose past is that of the run so far.

    Timers of what is under way move to the new ends, and decode blocks end with the answers of the new workload. The
    arrays of ``state`` are changed.
    """
    stage = _STAGES[state.trajectories["phase"]]
    began_s = _began_s(state, stage)
    moved = replan(state, workload)
    begun = stage != at.WAITING
    shift = moved.plan["first_turn"][:-1] - state.plan["first_turn"][:-1]
    moved.trajectories["turn"] += np.where(begun, shift, 0)
    _reschedule(moved, began_s + _takes_s(moved, stage))
    return moved


def _takes_s(state: State, stage: NDArray[Any]) -> NDArray[Any]:
    plan = state.plan[:-1]
    tools = stage == at.TOOL
    takes_s = np.where(stage == at.SANDBOX, plan["sandbox_s"], plan["reward_s"])
    takes_s[tools] = state.turns["gap_s"][state.trajectories["turn"][tools]]
    return takes_s


@entry
def _reschedule(s: State, ends_s: NDArray[Any]) -> None:
    """Set the timers of tools, sandboxes and rewards, and let every running answer end where it now does."""
    for i in range(len(ends_s)):
        if ends_s[i] >= 0:
            set_timer(s, i, max(ends_s[i], s.totals[0].now_s))
    for rank in range(len(s.ranks)):
        _move_finishes(s, rank)


@kernel
def _move_finishes(s: State, rank: int) -> None:
    r = s.ranks[rank]
    worker = s.workers[r.worker]
    if r.running == 0:
        return
    first = -1
    for slot in range(r.running):
        trajectory = s.trajectories[s.running[rank, slot]]
        left = s.turns[trajectory.turn].output - trajectory.kept - trajectory.output
        trajectory.finish_step = trajectory.join_step + left
        if first < 0 or trajectory.finish_step < first:
            first = trajectory.finish_step
    r.next_finish = first
    if worker.doing == DECODING:
        end_block_at(s, r.worker, first - r.steps)
