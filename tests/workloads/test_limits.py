"""Truncation: against the rule written out turn by turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.workloads.limits import check_common, cut, offsets
from prorsa.errors import ConfigError

SIZES = st.lists(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6), min_size=1)


def by_the_rule(turns: list[tuple[int, int]], max_context: int, max_turns: int | None) -> int:
    """How many turns run."""
    for count, (prompt, output) in enumerate(turns):
        if prompt + output > max_context or count == max_turns:
            return count
    return len(turns)


@given(SIZES, st.integers(2, 120), st.none() | st.integers(1, 6))
def test_ends_before_the_first_turn_that_does_not_fit(
    sessions: list[list[tuple[int, int]]], max_context: int, max_turns: int | None
) -> None:
    flat = np.array([turn for session in sessions for turn in session])
    first_turn = offsets(np.array([len(session) for session in sessions]))
    ends = cut(first_turn, flat[:, 0], flat[:, 1], max_context, max_turns)
    expected = [by_the_rule(session, max_context, max_turns) for session in sessions]
    assert ends.turns.tolist() == expected
    assert ends.truncated.tolist() == [0 < n < len(s) for n, s in zip(expected, sessions, strict=True)]
    kept = [k < n for n, session in zip(expected, sessions, strict=True) for k in range(len(session))]
    assert ends.kept.tolist() == kept


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is"),
        ({"gap_cap_s": -0.5}, "gap_cap_s is -0.5"),
        ({"gap_cap_s": float("nan")}, "gap_cap_s is nan"),
        ({"max_turns": 0}, "max_turns is 0"),
    ],
)
def test_refuses_values_out_of_range(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_common(**({"seed": 0, "gap_cap_s": 60.0, "max_turns": None} | wrong))
