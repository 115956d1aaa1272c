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
from prorsa.forecast.scan import LENGTHS, TURN_BUCKETS, length_class, turn_bucket

OUT: Final = Path(__file__).parent.parent / "prorsa" / "forecast" / "class_priors.json"
SEED: Final = 900_001
TRAJECTORIES: Final = 4_096
PROFILE: Final = "dsv32-h200-dp8"
"""The profile with the longest context of those that the scenarios run on."""
ROUNDS: Final = 20
"""Of setting the lengths by what is usual, and what is usual by the lengths."""
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
    lengths = answer_lengths(workload, position)
    usual = workload.output_tokens / np.concatenate(([1.0], lengths))[[length_class(int(turn)) for turn in position]]
    return ClassPrior(
        start=shares(workload.sandbox_s[workload.sandbox_s > 0], DURATION_GRID),
        reward=shares(workload.reward_s[workload.reward_s > 0], DURATION_GRID),
        first_prompt=shares(workload.prompt_tokens[first], SIZE_GRID),
        risk=counts(position + 1, TURN_GRID),
        finished=counts(finished, TURN_GRID),
        rewritten=round(float(lost(workload, second).mean()), 4),
        lengths=lengths,
        beginning=action_prior(workload, position, starting, usual, -1),
        tools={name: action_prior(workload, position, starting, usual, k) for k, name in enumerate(workload.tools)},
    )


def action_prior(
    workload: Workload,
    position: NDArray[np.int64],
    starting: NDArray[np.bool_],
    usual: NDArray[np.float64],
    tool: int,
) -> ActionPrior:
    """The prior of one tool, -1 for the beginning of trajectories; ``usual`` are answers over the lengths of their
    turns.
    """
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
        output=shares(usual[before], DURATION_GRID),
        appended=tuple(shares(appended[buckets == b], SIZE_GRID) for b in range(TURN_BUCKETS)) if len(later) else (),
        next={name: round(share, 4) for name, share in names.items()},
    )


def answer_lengths(workload: Workload, position: NDArray[np.int64]) -> tuple[float, ...]:
    """How long answers are by class of turns, over the mean after the same tools; turns after the first."""
    later = position > 0
    output, tool = workload.output_tokens[later].astype(np.float64), workload.tool[later]
    classes = np.array([length_class(int(turn)) for turn in position[later]])
    number = np.maximum(np.bincount(tool, minlength=len(workload.tools)), 1)
    factor = np.ones(LENGTHS)
    for _ in range(ROUNDS):
        usual = np.bincount(tool, output / factor[classes], len(workload.tools)) / number
        came, expected = np.bincount(classes, output, LENGTHS), np.bincount(classes, usual[tool], LENGTHS)
        factor = np.where(expected > 0, came / np.maximum(expected, 1e-9), 1.0)
    return tuple(round(float(of), 4) for of in factor[1:])


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
