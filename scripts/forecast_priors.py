"""Write what the forecast knows of each workload class before a run: ``prorsa/forecast/class_priors.json``.

    python scripts/forecast_priors.py

Draws trajectories from the package's generators, on a seed that no benchmark uses, and counts them as the forecast's
models count a run. Repeats byte for byte.
"""

from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import load_profile
from prorsa.cluster.workloads.fitted import workload_names
from prorsa.cluster.workloads.generators import generate
from prorsa.cluster.workloads.workload import Workload
from prorsa.forecast.habits import TURN_GRID
from prorsa.forecast.models import DURATION_GRID, SIZE_GRID, LogGrid
from prorsa.forecast.priors import ActionPrior, ClassPrior, Sparse
from prorsa.forecast.scan import TURN_BUCKETS, turn_bucket

OUT: Final = Path(__file__).parent.parent / "prorsa" / "forecast" / "class_priors.json"
SEED: Final = 900_001
TRAJECTORIES: Final = 4_096
PROFILE: Final = "dsv32-h200-dp8"
"""The profile with the longest context of those that the scenarios run on."""
LOST_FROM: Final = 0.1
"""As in the forecast: a prompt that misses this share of its previous one has lost its context."""


def main() -> None:
    """Write the file."""
    profile = load_profile(PROFILE)
    priors = {
        name: class_prior(generate(name, profile=profile, trajectories=TRAJECTORIES, seed=SEED))
        for name in workload_names()
    }
    OUT.write_bytes(msgspec.json.encode(priors) + b"\n")


def class_prior(workload: Workload) -> ClassPrior:
    """The prior of a class from a generated workload of it."""
    turns = np.diff(workload.first_turn)
    first = workload.first_turn[:-1]
    starting = np.zeros(len(workload.tool), bool)
    starting[first] = True
    position = np.arange(len(workload.tool)) - np.repeat(first, turns)
    finished = turns[~workload.truncated]
    second = np.flatnonzero(position == 1)
    return ClassPrior(
        start=shares(workload.sandbox_s[workload.sandbox_s > 0], DURATION_GRID),
        reward=shares(workload.reward_s[workload.reward_s > 0], DURATION_GRID),
        first_prompt=shares(workload.prompt_tokens[first], SIZE_GRID),
        risk=counts(position + 1, TURN_GRID),
        finished=counts(finished, TURN_GRID),
        rewritten=round(float(lost(workload, second).mean()), 4),
        beginning=action_prior(workload, position, starting, -1),
        tools={name: action_prior(workload, position, starting, k) for k, name in enumerate(workload.tools)},
    )


def action_prior(
    workload: Workload, position: NDArray[np.int64], starting: NDArray[np.bool_], tool: int
) -> ActionPrior:
    """The prior of one tool; -1 for the beginning of trajectories."""
    before = np.flatnonzero(workload.tool == tool)
    after = before[before + 1 < len(workload.tool)] + 1
    after = after[~starting[after]]
    names: dict[str, float] = defaultdict(float)
    for k in workload.tool[after]:
        names[workload.tools[k]] += 1.0 / max(len(after), 1)
    later = before[~starting[before]]
    prompt, output = workload.prompt_tokens, workload.output_tokens
    appended = np.maximum(prompt[later] - prompt[later - 1] - output[later - 1], 1)
    buckets = np.array([turn_bucket(int(k)) for k in position[later]], np.int64)
    return ActionPrior(
        gap=shares(workload.gap_s[later], DURATION_GRID),
        output=shares(output[before], DURATION_GRID),
        appended=tuple(shares(appended[buckets == b], SIZE_GRID) for b in range(TURN_BUCKETS)) if len(later) else (),
        next={name: round(share, 4) for name, share in names.items()},
    )


def lost(workload: Workload, turns: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether later turns keep only a part of the context before them."""
    prompt, before = workload.prompt_tokens[turns], workload.prompt_tokens[turns - 1]
    gone = prompt - workload.reuse_tokens[turns] - np.maximum(prompt - before, 0)
    return gone >= LOST_FROM * before


def counts(values: NDArray[np.int64], grid: LogGrid) -> Sparse:
    """How many values are in each bin."""
    found = np.bincount(grid.indices(values.astype(np.float64)), minlength=grid.bins)
    return {int(index): float(found[index]) for index in np.flatnonzero(found)}


def shares(values: NDArray[np.int64] | NDArray[np.float64], grid: LogGrid) -> Sparse:
    """The share of the values that is in each bin."""
    found = np.bincount(grid.indices(values.astype(np.float64)), minlength=grid.bins) / max(len(values), 1)
    return {int(index): round(float(found[index]), 5) for index in np.flatnonzero(found)}


if __name__ == "__main__":
    main()
