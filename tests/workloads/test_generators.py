"""Generated workloads: what holds for every draw."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.workloads.fitted import load_fitted, workload_names
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError

PROFILE = load_profile("qwen3-32b-h200-tp2")
NAMES = st.sampled_from(workload_names())
SEEDS = st.integers(0, 2**64 - 1)
PER_TRAJECTORY = ("sandbox_s", "reward_s", "truncated")
PER_TURN = ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool")


def same(a: Workload, b: Workload, trajectories: int) -> bool:
    """Whether the first trajectories of two workloads are equal, bit for bit."""
    turns = a.first_turn[trajectories]
    return (
        np.array_equal(a.first_turn[: trajectories + 1], b.first_turn[: trajectories + 1])
        and all(np.array_equal(getattr(a, f)[:trajectories], getattr(b, f)[:trajectories]) for f in PER_TRAJECTORY)
        and all(np.array_equal(getattr(a, f)[:turns], getattr(b, f)[:turns]) for f in PER_TURN)
    )


@settings(max_examples=20, deadline=None)
@given(NAMES, SEEDS, st.integers(1, 12), st.integers(1, 30))
def test_a_trajectory_is_the_same_however_many_there_are(name: str, seed: int, few: int, more: int) -> None:
    a = generate(name, profile=PROFILE, trajectories=few, seed=seed)
    b = generate(name, profile=PROFILE, trajectories=few + more, seed=seed)
    assert same(a, b, few)


def test_limits_change_where_trajectories_end_and_nothing_before() -> None:
    long = generate("coding", profile=PROFILE, trajectories=40, seed=5)
    short = generate("coding", profile=PROFILE, trajectories=40, seed=5, max_turns=3, gap_cap_s=10)
    for i in range(40):
        a, b = long.first_turn[i], short.first_turn[i]
        n = short.first_turn[i + 1] - b
        assert n <= 3
        assert (short.prompt_tokens[b : b + n] == long.prompt_tokens[a : a + n]).all()
        assert (short.gap_s[b : b + n] == np.minimum(10, long.gap_s[a : a + n])).all()
        assert short.truncated[i] == (long.truncated[i] or long.first_turn[i + 1] - a > 3)


def test_seeds_and_trajectories_differ() -> None:
    workload = generate("coding", profile=PROFILE, trajectories=200, seed=0)
    other = generate("coding", profile=PROFILE, trajectories=200, seed=1)
    firsts = workload.prompt_tokens[workload.first_turn[:-1]]
    assert len(np.unique(workload.sandbox_s)) == 200
    assert not np.array_equal(firsts, other.prompt_tokens[other.first_turn[:-1]])
    # Neighbouring streams must not hang together, of one seed or of two.
    assert abs(np.corrcoef(workload.sandbox_s[1:], workload.sandbox_s[:-1])[0, 1]) < 0.25
    assert abs(np.corrcoef(workload.sandbox_s, other.sandbox_s)[0, 1]) < 0.25


@settings(max_examples=25, deadline=None)
@given(NAMES, SEEDS, st.sampled_from([9_000, 20_000, 131_072, 163_840]))
def test_every_draw_keeps_what_a_workload_promises(name: str, seed: int, max_context: int) -> None:
    profile = profile_of(max_context)
    w = generate(name, profile=profile, trajectories=30, seed=seed)
    starts = w.first_turn[:-1]
    later = np.ones(w.turns, bool)
    later[starts] = False
    context = np.roll(w.prompt_tokens + w.output_tokens, 1)
    assert w.trajectories == 30
    assert (np.diff(w.first_turn) >= 1).all()
    assert w.first_turn[-1] == w.turns
    assert (w.prompt_tokens + w.output_tokens <= profile.max_context).all()
    assert (w.output_tokens >= 1).all()
    assert (w.reuse_tokens < w.prompt_tokens).all()
    assert (w.reuse_tokens >= 0).all()
    assert (w.reuse_tokens[later] <= context[later]).all()
    assert (w.reuse_tokens[starts] == 0).all()
    assert (w.gap_s[starts] == 0).all()
    assert (w.tool[starts] == -1).all()
    assert ((w.tool[later] >= 0) & (w.tool[later] < len(w.tools))).all()
    assert ((w.gap_s >= 0) & (w.gap_s <= 60)).all()
    assert (w.group == -1).all()
    assert (w.step == 0).all()
    assert w.sessions_skipped == 0


def profile_of(max_context: int) -> Profile:
    import msgspec

    return msgspec.structs.replace(PROFILE, model_context=max_context)


def test_arrays_have_the_types_that_engines_rely_on() -> None:
    w = generate("coding", profile=PROFILE, trajectories=8, seed=0, groups=Groups(per_step=2, size=2))
    ints = ("first_turn", "group", "step", "prompt_tokens", "reuse_tokens", "output_tokens", "tool")
    floats = ("sandbox_s", "reward_s", "gap_s")
    for names, dtype in ((ints, np.int64), (floats, np.float64), (("truncated",), np.bool_)):
        for name in names:
            array = getattr(w, name)
            assert array.dtype == dtype
            assert array.flags.c_contiguous


def test_groups_share_their_first_prompt_and_fill_steps() -> None:
    w = generate("coding", profile=PROFILE, trajectories=48, seed=9, groups=Groups(per_step=3, size=8))
    assert w.group.tolist() == [i // 8 for i in range(48)]
    assert w.step.tolist() == [i // 24 for i in range(48)]
    firsts = w.prompt_tokens[w.first_turn[:-1]].reshape(6, 8)
    assert (firsts == firsts[:, :1]).all()
    assert len(np.unique(firsts[:, 0])) > 3
    assert len(np.unique(w.output_tokens[w.first_turn[:-1]])) > 24


def test_a_group_is_the_same_however_many_there_are() -> None:
    groups = Groups(per_step=2, size=4)
    a = generate("coding", profile=PROFILE, trajectories=8, seed=2, groups=groups)
    b = generate("coding", profile=PROFILE, trajectories=32, seed=2, groups=groups)
    assert same(a, b, 8)


def test_general_tools_differ_in_their_times() -> None:
    w = generate("general", profile=PROFILE, trajectories=2000, seed=0)
    usual = {name: np.median(w.gap_s[w.tool == i]) for i, name in enumerate(w.tools)}
    assert usual["calculate"] < usual["get_user_details"] < usual["search_onestop_flight"]
    assert (w.sandbox_s == 0).all()


def test_coding_sandboxes_reach_tens_of_seconds() -> None:
    w = generate("coding", profile=PROFILE, trajectories=2000, seed=0)
    assert 4 < np.median(w.sandbox_s) < 6
    assert 30 < np.quantile(w.sandbox_s, 0.99) < 70
    assert (w.reward_s > 0).all()


def test_512_coding_trajectories_take_a_second() -> None:
    load_fitted("coding")
    best_s = min(timed(lambda: generate("coding", profile=PROFILE, trajectories=512, seed=3)) for _ in range(3))
    assert best_s < 1.0


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "chess"}, "no workload 'chess'; there are coding, general"),
        ({"trajectories": 0}, "trajectories is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"groups": Groups(per_step=0, size=8)}, "groups are 0 of 8"),
        ({"profile": profile_of(6000)}, "the shortest first prompt of coding has 6343 tokens"),
    ],
)
def test_refuses_what_cannot_be_generated(wrong: dict[str, object], text: str) -> None:
    given_values = {"name": "coding", "profile": PROFILE, "trajectories": 4, "seed": 0} | wrong
    with pytest.raises(ConfigError, match=text):
        generate(given_values.pop("name"), **given_values)
