"""Which live trajectories have been going on for longest, and which are stuck: for whoever looks at a run. Pure."""

from typing import Final

import numpy as np

from prorsa.events import TrajectoryView
from prorsa.forecast.columns import State
from prorsa.forecast.roster import Standing
from prorsa.forecast.trajectory import TrajectoryTable

TRAJECTORIES_SHOWN: Final = 60
"""Trajectories in an answer at most: those that have been going on for longest, and those that are stuck."""
STUCK_TIMES: Final = 8.0
"""A trajectory is stuck that has been in its state this many times as long as the median of those in that state."""
STUCK_S: Final = 60.0
"""... and for this long at least, in run seconds."""


def longest_standing(table: TrajectoryTable, now_s: float) -> tuple[TrajectoryView, ...]:
    """Those that are stuck, then those that have been live for longest, at most :data:`TRAJECTORIES_SHOWN`.

    ``now_s`` is run time, in seconds.
    """
    usual_s = _usual_s(table, now_s)
    views = [_trajectory(standing, table, now_s, usual_s) for standing in table.standings()]
    views.sort(key=lambda view: (not view.stuck, -(view.age_s or 0.0), view.trajectory_id))
    return tuple(views[:TRAJECTORIES_SHOWN])


def _usual_s(table: TrajectoryTable, now_s: float) -> dict[int, float]:
    """The median time that those in each state have been in it."""
    times: dict[int, list[float]] = {}
    for standing in table.standings():
        if standing.entered_s is not None:
            times.setdefault(int(table.columns.state[standing.slot]), []).append(now_s - standing.entered_s)
    return {state: float(np.median(values)) for state, values in times.items()}


def _trajectory(standing: Standing, table: TrajectoryTable, now_s: float, usual_s: dict[int, float]) -> TrajectoryView:
    columns, slot = table.columns, standing.slot
    state = State(int(columns.state[slot]))
    state_s = None if standing.entered_s is None else max(0.0, now_s - standing.entered_s)
    expected_s = _known(columns.expected_s[slot])
    turn = int(columns.turn[slot])
    limit_s = max(STUCK_S, STUCK_TIMES * max(usual_s.get(int(state), 0.0), expected_s or 0.0))
    return TrajectoryView(
        trajectory_id=standing.name,
        state=state.name.lower(),
        state_s=state_s,
        age_s=None if standing.born_s is None else max(0.0, now_s - standing.born_s),
        turn=turn if turn >= 0 else None,
        prompt_tokens=_whole(columns.prompt_tokens[slot]),
        output_tokens=_whole(columns.output_tokens[slot]) if state == State.DECODE else None,
        waits_for=table.tool_name(int(columns.key[slot])) if state == State.TOOL else None,
        expected_s=expected_s,
        stuck=state_s is not None and state_s > limit_s,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _whole(value: float) -> int | None:
    known = _known(value)
    return None if known is None else round(known)
