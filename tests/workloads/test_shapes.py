"""Mixes, drifts, hanging tools and cold images: what they change, and that they change nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import load_profile
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.shapes import (
    DriftPoint,
    MixPoint,
    SandboxBursts,
    Shape,
    SlowTools,
    factors_at,
    shares_at,
)
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError

PROFILE = load_profile("qwen3-32b-h200-tp2")
HALF = Shape(mix=(MixPoint(at=0, shares={"coding": 1.0, "general": 1.0}),))
BURSTS = SandboxBursts(block=8, cold=0.5, pull_s=100.0, pull_p99_s=200.0)


def made(
    shape: Shape | None, *, trajectories: int = 64, name: str = "coding", seed: int = 3, **more: object
) -> Workload:
    return generate(name, profile=PROFILE, trajectories=trajectories, seed=seed, shape=shape, **more)  # type: ignore[arg-type]


def turns_of(w: Workload, i: int) -> slice:
    return slice(int(w.first_turn[i]), int(w.first_turn[i + 1]))


def test_shares_are_linear_between_points_and_jump_where_two_meet() -> None:
    mix = [
        MixPoint(at=10, shares={"coding": 1.0}),
        MixPoint(at=20, shares={"coding": 1.0, "general": 3.0}),
        MixPoint(at=20, shares={"general": 2.0}),
    ]
    shares = shares_at(mix, ("coding", "general"), np.array([0, 10, 15, 19, 20, 99]))
    assert shares[:, 0] == pytest.approx([1.0, 1.0, 0.625, 0.325, 0.0, 0.0])
    assert shares.sum(axis=1) == pytest.approx(np.ones(6))


def test_factors_stay_beyond_the_points() -> None:
    drift = [DriftPoint(at=4, factor=1.0), DriftPoint(at=8, factor=3.0)]
    assert factors_at(drift, np.array([0, 4, 6, 8, 100])) == pytest.approx([1, 1, 2, 3, 3])


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 20), st.integers(1, 20))
def test_a_mixed_trajectory_is_the_same_however_many_follow(seed: int, few: int, more: int) -> None:
    shape = Shape(mix=HALF.mix, slow_tools=SlowTools(share=0.2, from_s=5, alpha=1), sandbox_bursts=BURSTS)
    a, b = (made(shape, trajectories=n, name="both", seed=seed) for n in (few, few + more))
    assert [a.class_of(i) for i in range(few)] == [b.class_of(i) for i in range(few)]
    assert np.array_equal(a.sandbox_s, b.sandbox_s[:few])
    for field in ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s"):
        assert np.array_equal(getattr(a, field), getattr(b, field)[: a.turns])
    tools = [[w.tools[t] if t >= 0 else None for t in w.tool[: a.turns]] for w in (a, b)]
    assert tools[0] == tools[1]


def test_a_trajectory_in_a_mix_is_the_one_of_its_class() -> None:
    mixed = made(HALF, name="both")
    alone = {name: made(None, name=name) for name in ("coding", "general")}
    assert {mixed.class_of(i) for i in range(64)} == {"coding", "general"}
    for i in range(64):
        own = alone[mixed.class_of(i)]
        here, there = turns_of(mixed, i), turns_of(own, i)
        assert np.array_equal(mixed.prompt_tokens[here], own.prompt_tokens[there])
        assert np.array_equal(mixed.gap_s[here], own.gap_s[there])
        assert [mixed.tools[t] for t in mixed.tool[here][1:]] == [own.tools[t] for t in own.tool[there][1:]]
        assert mixed.tool[here][0] == -1


def test_classes_come_in_their_shares_and_groups_are_of_one() -> None:
    shape = Shape(mix=(MixPoint(at=0, shares={"coding": 0.2, "general": 0.8}),))
    w = made(shape, trajectories=2400, name="both", groups=Groups(None, 4))
    coding = np.array([w.class_of(i) == "coding" for i in range(2400)]).reshape(-1, 4)
    assert (coding == coding[:, :1]).all()
    assert coding[:, 0].mean() == pytest.approx(0.2, abs=3 * np.sqrt(0.16 / 600))


def test_a_mix_moves() -> None:
    shape = Shape(mix=(MixPoint(at=0, shares={"general": 1.0}), MixPoint(at=400, shares={"coding": 1.0})))
    w = made(shape, trajectories=400, name="both")
    coding = np.array([w.class_of(i) == "coding" for i in range(400)])
    assert coding[:100].mean() < 0.3 < 0.7 < coding[300:].mean()


def test_drifting_tools_take_longer_and_nothing_else_changes() -> None:
    plain = made(None, gap_cap_s=1e9)
    slower = made(Shape(tool_drift=(DriftPoint(at=0, factor=1.0), DriftPoint(at=32, factor=3.0))), gap_cap_s=1e9)
    factor = np.repeat(np.minimum(3.0, 1 + np.arange(64) / 16), np.diff(plain.first_turn))
    assert slower.gap_s == pytest.approx(plain.gap_s * factor)
    assert np.array_equal(slower.prompt_tokens, plain.prompt_tokens)


def test_slow_tools_have_the_stated_tail() -> None:
    slow = SlowTools(share=0.1, from_s=50_000, alpha=2.0)  # longer than nearly all gaps of the trace: all can be told
    plain, w = (made(shape, trajectories=600, gap_cap_s=1e12, max_turns=20) for shape in (None, Shape(slow_tools=slow)))
    later = w.tool >= 0
    hung = w.gap_s != plain.gap_s
    assert hung[later].mean() == pytest.approx(0.1, abs=0.012)
    assert (w.gap_s[hung] >= 50_000).all()
    assert not hung[~later].any()
    # P(gap > 2 from) = 1/4.
    assert (w.gap_s[hung] > 100_000).mean() == pytest.approx(0.25, abs=0.05)


def test_a_cold_block_pulls_its_image_together() -> None:
    plain, w = made(None, trajectories=512), made(Shape(sandbox_bursts=BURSTS), trajectories=512)
    pull_s = (w.sandbox_s - plain.sandbox_s).reshape(-1, 8)
    cold = pull_s.max(axis=1) > 0
    assert cold.mean() == pytest.approx(0.5, abs=0.2)
    assert (pull_s[~cold] == 0).all()
    # All of a cold block wait, the last at most three times as long as the first could.
    assert (pull_s[cold].min(axis=1) > 0).all()
    assert (pull_s[cold].max(axis=1) / pull_s[cold].min(axis=1) <= 3.0 + 1e-9).all()
    assert np.median(pull_s[cold].min(axis=1)) == pytest.approx(120, rel=0.35)


def test_agents_without_sandboxes_pull_nothing() -> None:
    assert (made(Shape(sandbox_bursts=BURSTS), name="general").sandbox_s == 0).all()


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Shape(mix=(MixPoint(at=0, shares={"chess": 1.0}),)), "mix at 0 names 'chess': give shares of coding, general"),
        (Shape(mix=(MixPoint(at=0, shares={"coding": 0.0}),)), "mix at 0 has no shares above 0"),
        (Shape(mix=(MixPoint(at=9, shares={"coding": 1}), MixPoint(at=3, shares={"coding": 1}))), "mix is at 9, 3"),
        (Shape(tool_drift=(DriftPoint(at=0, factor=0.0),)), "factor 0.0: give one above 0"),
        (Shape(slow_tools=SlowTools(share=2.0, from_s=1, alpha=1)), "slow_tools.share is 2.0"),
        (Shape(slow_tools=SlowTools(share=0.1, from_s=0, alpha=1)), "slow_tools.from_s is 0"),
        (Shape(sandbox_bursts=SandboxBursts(block=0, cold=0.5, pull_s=1, pull_p99_s=2)), "sandbox_bursts.block is 0"),
        (Shape(sandbox_bursts=SandboxBursts(block=8, cold=0.5, pull_s=9, pull_p99_s=2)), "no shorter than the first"),
    ],
)
def test_refuses_shapes_that_make_no_sense(shape: Shape, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        made(shape)
