"""GRPO groups: siblings resemble each other as stated, and each by itself is as it would be alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prorsa.cluster.profile import load_profile
from prorsa.cluster.workloads.fitted import load_fitted
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.workload import Workload

PROFILE = load_profile("qwen3-32b-h200-tp2")
SIZE = 4
NAMES = ("coding", "general")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def grouped(name: str) -> Workload:
    return generate(name, profile=PROFILE, trajectories=3200, seed=11, groups=Groups(None, SIZE), gap_cap_s=1e9)


@pytest.fixture(scope="module")
def alone(name: str) -> Workload:
    return generate(name, profile=PROFILE, trajectories=1600, seed=12, gap_cap_s=1e9)


def sibling_correlation(values: np.ndarray) -> float:
    """Rank correlation of all ordered pairs of siblings."""
    ranks = stats.rankdata(values).reshape(-1, SIZE)
    pairs = [(ranks[:, a], ranks[:, b]) for a in range(SIZE) for b in range(SIZE) if a != b]
    return float(np.corrcoef(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))[0, 1])


def natural(w: Workload) -> np.ndarray:
    return np.diff(w.first_turn).astype(float)


def test_siblings_have_alike_numbers_of_turns(name: str) -> None:
    """The general agents, which no limit cuts off: their turns correlate as fitted, on the scale of ranks."""
    w = generate("general", profile=PROFILE, trajectories=3200, seed=5, groups=Groups(None, SIZE))
    wanted = load_fitted("general").siblings.turns
    assert sibling_correlation(natural(w)) == pytest.approx(6 / np.pi * np.arcsin(wanted / 2), abs=0.06)


def test_siblings_share_their_prompt_and_resemble_each_other(grouped: Workload) -> None:
    firsts = grouped.prompt_tokens[grouped.first_turn[:-1]]
    assert (grouped.shared_tokens == firsts).all()
    assert (firsts.reshape(-1, SIZE) == firsts.reshape(-1, SIZE)[:, :1]).all()
    mean_output = np.add.reduceat(np.log(grouped.output_tokens), grouped.first_turn[:-1]) / natural(grouped)
    assert sibling_correlation(mean_output) > 0.1
    assert sibling_correlation(grouped.reward_s) == pytest.approx(6 / np.pi * np.arcsin(0.25), abs=0.07)


def test_trajectories_outside_groups_share_nothing(alone: Workload) -> None:
    assert (alone.shared_tokens == 0).all()
    assert abs(sibling_correlation(natural(alone))) < 0.1


@pytest.mark.parametrize("field", ["sandbox_s", "reward_s"])
def test_times_of_a_trajectory_are_distributed_as_alone(grouped: Workload, alone: Workload, field: str) -> None:
    # One of each group: siblings hang together, which the test may not see.
    first = getattr(grouped, field)[::SIZE]
    assert stats.ks_2samp(first, getattr(alone, field)).pvalue > 1e-3


@pytest.mark.parametrize("measure", ["turns", "first prompt", "output", "appended"])
def test_sizes_of_a_trajectory_are_distributed_as_alone(grouped: Workload, alone: Workload, measure: str) -> None:
    def values(w: Workload, every: int) -> np.ndarray:
        starts, ends = w.first_turn[:-1][::every], w.first_turn[1:][::every]
        computed = w.prompt_tokens - w.reuse_tokens
        return {
            "turns": (ends - starts).astype(float),
            "first prompt": w.prompt_tokens[starts].astype(float),
            "output": w.output_tokens[starts].astype(float),
            "appended": computed[np.minimum(starts + 1, ends - 1)].astype(float),
        }[measure]

    assert stats.ks_2samp(values(grouped, SIZE), values(alone, 1)).pvalue > 1e-3


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 2**64 - 1), st.integers(1, 3), st.integers(1, 4), st.integers(1, 6))
def test_a_group_is_the_same_however_many_follow(name: str, seed: int, few: int, more: int, size: int) -> None:
    groups = Groups(None, size)
    a = generate(name, profile=PROFILE, trajectories=few * size, seed=seed, groups=groups)
    b = generate(name, profile=PROFILE, trajectories=(few + more) * size, seed=seed, groups=groups)
    turns = a.turns
    for field in ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool"):
        assert np.array_equal(getattr(a, field), getattr(b, field)[:turns])
    assert np.array_equal(a.shared_tokens, b.shared_tokens[: few * size])
