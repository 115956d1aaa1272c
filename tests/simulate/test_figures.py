"""Comparisons: paired by seed, with intervals that are what they say."""

import math

import pytest
from scipy import stats

from prorsa.figures import MAKESPAN, STEADY, STEP, compare, main_figure, paired_gain, student_95


def row(policy: str, seed: int, **figures: object) -> dict[str, object]:
    defaults: dict[str, object] = {
        "scenario": "s",
        "policy": policy,
        "seed": seed,
        "steady_output_tokens_per_s": None,
        "step_s": None,
        "makespan_s": 100.0,
        "limit_makespan_s": 50.0,
        "bound_by_trajectory": False,
    }
    return defaults | figures


@pytest.mark.parametrize("freedom", [1, 2, 5, 29, 30, 31, 60, 500])
def test_the_quantiles_are_students(freedom: int) -> None:
    assert student_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


def test_the_main_figure_is_that_of_the_mode() -> None:
    assert main_figure([row("a", 0, steady_output_tokens_per_s=5.0)]) == STEADY
    assert main_figure([row("a", 0, step_s=5.0)]) == STEP
    assert main_figure([row("a", 0, steady_output_tokens_per_s=5.0), row("a", 1)]) == MAKESPAN


def test_a_gain_is_that_of_the_pairs_whatever_the_seeds_themselves_do() -> None:
    base = [row("a", seed, steady_output_tokens_per_s=10.0 * 3**seed) for seed in range(4)]
    better = [row("b", seed, steady_output_tokens_per_s=12.0 * 3**seed) for seed in range(4)]
    gain = paired_gain(STEADY, better, base)
    assert gain is not None
    assert gain.mean == pytest.approx(1.2)
    assert gain.low == pytest.approx(1.2)
    assert gain.high == pytest.approx(1.2)


def test_less_is_better_for_times() -> None:
    gain = paired_gain(STEP, [row("b", 0, step_s=50.0)], [row("a", 0, step_s=100.0)])
    assert gain is not None
    assert gain.mean == pytest.approx(2.0)
    assert gain.low is None


def test_the_interval_is_students_over_the_logarithms() -> None:
    ratios = (1.1, 1.3, 0.9, 1.2)
    base = [row("a", seed, step_s=10.0) for seed in range(4)]
    other = [row("b", seed, step_s=10.0 / ratio) for seed, ratio in enumerate(ratios)]
    gain = paired_gain(STEP, other, base)
    logs = [math.log(ratio) for ratio in ratios]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    assert gain is not None
    assert (gain.low, gain.high) == (pytest.approx(math.exp(low), rel=1e-3), pytest.approx(math.exp(high), rel=1e-3))


def test_only_seeds_that_both_have_count() -> None:
    gain = paired_gain(STEP, [row("b", 0, step_s=50.0), row("b", 7, step_s=1.0)], [row("a", 0, step_s=100.0)])
    assert gain is not None
    assert (gain.seeds, gain.mean) == (1, pytest.approx(2.0))


def test_best_and_worst_are_marked_in_each_scenario() -> None:
    runs = [row("a", 0, step_s=3.0), row("b", 0, step_s=1.0), row("c", 0, step_s=2.0, bound_by_trajectory=True)]
    (comparison,) = compare(runs)
    assert [(s.policy, s.mark, s.bound) for s in comparison.standings] == [
        ("a", "worst", 0),
        ("b", "best", 0),
        ("c", "", 1),
    ]
    assert comparison.to_json()["reference"] == "a"


def test_policies_that_do_alike_have_no_best() -> None:
    (comparison,) = compare([row("a", 0, step_s=3.0), row("b", 0, step_s=3.0)])
    assert {standing.mark for standing in comparison.standings} == {""}
