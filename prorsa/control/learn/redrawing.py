"""Recorded trajectories drawn anew: another run of the same kind."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.workload import Workload
from prorsa.recordings import groups_of, picked

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
    return picked(workload, drawn, per_step)
