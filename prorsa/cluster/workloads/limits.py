"""Where a trajectory ends before it is done: at the context limit of the profile, or at a limit of turns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prorsa.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """What limits leave of trajectories.

    Attributes:
        kept: bool[T], the turns that run.
        turns: int64[N], how many turns of each trajectory run; 0 where not even the first one fits.
        truncated: bool[N], whether a turn that would have followed was cut off.
    """

    kept: Bools
    turns: Ints
    truncated: Bools


def cut(
    first_turn: Ints, prompt_tokens: Ints, output_tokens: Ints, max_context: int, max_turns: int | None = None
) -> Cut:
    """End each trajectory before the first turn whose prompt + output exceeds ``max_context``, or after ``max_turns``.

    Args:
        first_turn: int64[N + 1], offsets into the turn arrays, without empty trajectories.
        prompt_tokens: int64[T].
        output_tokens: int64[T].
        max_context: tokens; see :attr:`prorsa.cluster.profile.Profile.max_context`.
        max_turns: a limit of turns, or None for none.
    """
    lengths = np.diff(first_turn)
    position = np.arange(first_turn[-1]) - np.repeat(first_turn[:-1], lengths)
    fits = prompt_tokens + output_tokens <= max_context
    turns = np.minimum.reduceat(np.where(fits, np.repeat(lengths, lengths), position), first_turn[:-1])
    if max_turns is not None:
        turns = np.minimum(turns, max_turns)
    return Cut(kept=position < np.repeat(turns, lengths), turns=turns, truncated=(turns < lengths) & (turns > 0))


def offsets(turns: Ints) -> Ints:
    """Offsets int64[N + 1] into flat turn arrays of trajectories with ``turns`` turns each."""
    return np.concatenate(([0], np.cumsum(turns))).astype(np.int64)


def check_common(*, seed: int, gap_cap_s: float, max_turns: int | None) -> None:
    """Refuse values that no workload can be made with.

    Raises:
        ConfigError: names the value and what would be right.
    """
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed is {seed}: give an integer from 0 to 2^64 - 1")
    if not gap_cap_s >= 0:
        raise ConfigError(f"gap_cap_s is {gap_cap_s}: give seconds, 0 or more")
    if max_turns is not None and max_turns < 1:
        raise ConfigError(f"max_turns is {max_turns}: give 1 or more, or leave it out for no limit")
