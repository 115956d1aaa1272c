"""Ranges of seeds, and the tables of runs and comparisons."""

import pytest

from prorsa.cli.options import seeds_of
from prorsa.cli.output import print_comparisons, print_table
from prorsa.errors import InputError
from prorsa.figures import compare
from tests.simulate.test_figures import row


def test_seeds_one_by_one_as_a_range_or_none() -> None:
    assert seeds_of(None, None) == (0,)
    assert seeds_of([3, 1, 3], None) == (3, 1)
    assert seeds_of(None, "2:5") == (2, 3, 4)


@pytest.mark.parametrize("span", ["5:2", "3:3", "3", ":2", "-1:2", "a:b", ""])
def test_a_range_that_is_none_is_refused(span: str) -> None:
    with pytest.raises(InputError, match="FROM:TO"):
        seeds_of(None, span)


def test_both_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="one of them"):
        seeds_of([1], "0:2")


def test_a_comparison_says_what_is_best_by_how_much_and_what_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        row(policy, seed, step_s=step_s + seed, gpu_idle_ratio=0.5, flips=2, bound_by_trajectory=policy == "b")
        for policy, step_s in (("a", 10.0), ("b", 8.0))
        for seed in (0, 1)
    ]
    print_comparisons(compare(runs))
    lines = capsys.readouterr().out.splitlines()
    assert "step_s, gain over a" in lines[1]
    best = next(line for line in lines if line.startswith("b"))
    assert "best" in best
    assert "1.236x" in best  # the geometric mean of 10/8 and 11/9
    assert "2/2" in best


def test_one_policy_is_compared_with_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparisons(compare([row("a", 0, step_s=1.0, gpu_idle_ratio=0.5, flips=2)]))
    assert capsys.readouterr().out == ""


def test_a_narrow_terminal_loses_dispensable_columns_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "24")
    print_table(
        ("name", "first", "second", "kept"), [("x" * 8, "1" * 8, "2" * 8, "3" * 8)], dispensable=("first", "second")
    )
    out = capsys.readouterr().out
    assert "3" * 8 in out
    assert "1" * 8 not in out
    assert "2" * 8 not in out
