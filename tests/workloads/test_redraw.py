"""Redrawn futures: the past stays, and what is drawn has the distribution that the past leaves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prorsa.cluster.profile import load_profile
from prorsa.cluster.workloads.fitted import Correlations, load_fitted, workload_names
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.posterior import GAP, OUTPUT, TURNS, Band, EffectsPosterior, Seen, SharedScores
from prorsa.cluster.workloads.redraw import Redraw
from prorsa.cluster.workloads.scores import probability_between, truncated_normal
from prorsa.cluster.workloads.standing import ANSWERING, ENDED, SANDBOX, TOOL, WAITING, Standing
from prorsa.cluster.workloads.turns import Source

PROFILE = load_profile("qwen3-32b-h200-tp2")
FOR_EVER = 1e12


def source(name, gap_cap_s=60.0, max_turns=None):
    return Source(load_fitted(name), PROFILE.max_context, gap_cap_s, max_turns)


def drawn(name, workload, standing, seed=0, window_s=FOR_EVER, **limits):
    redraw = Redraw(source(name, **limits), workload, standing, np.random.default_rng(seed), token_s=0.01)
    return lambda: redraw.draw(window_s)


def nothing_seen(count):
    return Standing(np.zeros(count, np.int8), np.zeros(count, np.int64), np.zeros(count), np.zeros(count, np.int64))


def looked_at(workload, rng):
    """Where trajectories stand for one who looks at a turn, a length and a time chosen without knowing the future.

    Whoever has ended by then, or is not there yet, counts as not dispatched.
    """
    count = workload.trajectories
    turns = np.diff(workload.first_turn)
    look, tokens, after_s = rng.integers(0, 12, count), rng.integers(0, 600, count), rng.exponential(8.0, count)
    there = look < turns
    at = workload.first_turn[:-1] + np.where(there, look, 0)
    answering = there & (workload.output_tokens[at] > tokens)
    next_gap_s = np.where(look + 1 < turns, workload.gap_s[np.minimum(at + 1, workload.turns - 1)], -1.0)
    tool = there & ~answering & (next_gap_s > after_s)
    return Standing(
        stage=np.select([answering, tool], [ANSWERING, TOOL], WAITING).astype(np.int8),
        turn=np.select([answering, tool], [look, look + 1], 0),
        elapsed_s=np.where(tool, after_s, 0.0),
        output_tokens=np.where(answering, tokens, 0),
    )


# --- the past -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(workload_names()), st.integers(0, 2**32), st.booleans(), st.sampled_from([None, 8]))
def test_what_has_been_seen_stays(name, seed, grouped, max_turns):
    groups = Groups(4, 4) if grouped else None
    workload = generate(name, profile=PROFILE, trajectories=32, seed=seed, groups=groups, max_turns=max_turns)
    standing = looked_at(workload, np.random.default_rng(seed))
    new = drawn(name, workload, standing, max_turns=max_turns)()
    for i in range(workload.trajectories):
        old_at, new_at = workload.first_turn[i], new.first_turn[i]
        turn, stage, turns = standing.turn[i], standing.stage[i], new.first_turn[i + 1] - new_at
        assert turns >= turn + 1
        assert max_turns is None or turns <= max_turns
        past = turn if stage != WAITING else 0
        for field in ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool"):
            column, seen = getattr(new, field)[new_at:], getattr(workload, field)[old_at:]
            assert np.array_equal(column[:past], seen[:past])
        if stage == ANSWERING:
            assert new.prompt_tokens[new_at + turn] == workload.prompt_tokens[old_at + turn]
            assert new.output_tokens[new_at + turn] > standing.output_tokens[i]
        if stage == TOOL:
            assert new.tool[new_at + turn] == workload.tool[old_at + turn]
            assert new.gap_s[new_at + turn] >= min(standing.elapsed_s[i], 60.0)
    assert (new.prompt_tokens + new.output_tokens <= PROFILE.max_context).all()
    assert (new.reuse_tokens < new.prompt_tokens).all()
    assert (new.output_tokens >= 1).all()


def test_the_first_prompt_is_known_from_the_dispatch_on_and_siblings_share_it():
    workload = generate("coding", profile=PROFILE, trajectories=32, seed=5, groups=Groups(4, 8))
    standing = replace(nothing_seen(32), stage=np.where(np.arange(32) < 12, SANDBOX, WAITING).astype(np.int8))
    new = drawn("coding", workload, standing)()
    first = new.prompt_tokens[new.first_turn[:-1]]
    seen = workload.prompt_tokens[workload.first_turn[:-1]]
    assert np.array_equal(first[:12], seen[:12])
    # The last four of the second group have not been dispatched; their siblings tell their prompt.
    assert np.abs(first[12:16] / seen[12:16] - 1.0).max() < 0.01
    assert len(set(first[16:24])) == 1
    assert first[16] != seen[16]


def test_turns_are_drawn_for_as_long_as_is_asked():
    """A trajectory that needs more than the time asked for may stop there; every other one is whole."""
    workload = generate("coding", profile=PROFILE, trajectories=40, seed=1)
    for window_s in (30.0, 300.0):
        new = drawn("coding", workload, nothing_seen(40), window_s=window_s)()
        takes_s = sums(new, new.gap_s + 0.01 * new.output_tokens)
        last_s = (new.gap_s + 0.01 * new.output_tokens)[new.first_turn[1:] - 1]
        assert (takes_s - last_s < window_s).all()
        assert np.mean(takes_s >= window_s) > 0.5


# --- distributions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workload_names())
def test_redrawn_from_the_start_is_as_generated(name):
    """Two samples of one distribution: what trajectories sum to, and what single turns are."""
    count = 1500
    one = generate(name, profile=PROFILE, trajectories=count, seed=1)
    two = drawn(name, generate(name, profile=PROFILE, trajectories=count, seed=2), nothing_seen(count))()
    for a, b in (
        (np.diff(one.first_turn), np.diff(two.first_turn)),
        (one.prompt_tokens[one.first_turn[:-1]], two.prompt_tokens[two.first_turn[:-1]]),
        (one.prompt_tokens[one.first_turn[1:] - 1], two.prompt_tokens[two.first_turn[1:] - 1]),
        (sums(one, one.output_tokens), sums(two, two.output_tokens)),
        (sums(one, one.gap_s), sums(two, two.gap_s)),
        (sums(one, one.prompt_tokens - one.reuse_tokens), sums(two, two.prompt_tokens - two.reuse_tokens)),
        (one.sandbox_s, two.sandbox_s),
        (one.reward_s, two.reward_s),
    ):
        assert stats.ks_2samp(a, b).pvalue > 1e-3
    for tool in range(len(one.tools)):
        assert np.mean(one.tool == tool) == pytest.approx(np.mean(two.tool == tool), abs=0.02)


def sums(workload, values):
    return np.add.reduceat(values, workload.first_turn[:-1])


@pytest.mark.parametrize("groups", [None, Groups(None, 6)])
@pytest.mark.parametrize("name", workload_names())
def test_the_truth_is_one_of_the_draws(name, groups):
    """Where a future is drawn given the past, the true one ranks evenly among the draws (Talts et al. 2018)."""
    count, draws = 900, 19
    workload = generate(name, profile=PROFILE, trajectories=count, seed=11, groups=groups)
    standing = looked_at(workload, np.random.default_rng(12))
    draw = drawn(name, workload, standing, seed=13)
    futures = [to_come(draw(), standing) for _ in range(draws)]
    truth = to_come(workload, standing)
    rng = np.random.default_rng(14)
    # Siblings rank alike: of each group one counts.
    counts = np.arange(count) % (groups.size if groups else 1) == 0
    seen = counts & (standing.stage != WAITING)
    for what, of in (
        ("output", counts & (standing.stage == ANSWERING)),
        ("gap_s", counts & (standing.stage == TOOL)),
        ("turns", seen),
        ("output_sum", seen),
        ("new_sum", seen),
        ("gap_sum", seen),
    ):
        drawn_values = np.array([future[what][of] for future in futures])
        below = (drawn_values < truth[what][of]).sum(axis=0)
        equal = (drawn_values == truth[what][of]).sum(axis=0)
        rank = below + rng.integers(0, equal + 1)
        fifths = np.bincount(rank // 4, minlength=5)
        assert stats.chisquare(fifths).pvalue > 1e-3, (what, fifths)


def to_come(workload, standing):
    """What each trajectory still brings, by name."""
    first, end = workload.first_turn[:-1] + standing.turn, workload.first_turn[1:]
    tail = [slice(a, b) for a, b in zip(first, end, strict=True)]
    new = workload.prompt_tokens - workload.reuse_tokens
    return {
        "output": workload.output_tokens[first],
        "gap_s": workload.gap_s[first],
        "turns": end - first,
        "output_sum": np.array([workload.output_tokens[part].sum() for part in tail]),
        "new_sum": np.array([new[part][1:].sum() for part in tail]),
        "gap_sum": np.array([workload.gap_s[part].sum() for part in tail]),
    }


# --- the posterior --------------------------------------------------------------------------------------------------

PLAIN = Correlations(
    trajectory=tuple(tuple(float(i == j) for j in range(5)) for i in range(5)),
    appended=0.3,
    output=0.5,
    gap=0.4,
    first_appended=0.0,
    gap_appended=0.6,
)


def none():
    return Band(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def seen_of(count, **what):
    nowhere = np.full(count, -np.inf)
    plain = {
        "group": np.arange(count), "first_low": nowhere, "first_high": -nowhere,
        "turns_low": nowhere, "turns_high": -nowhere,
        "known": np.ones(count, np.bool_), "output": none(), "gap": none(), "appended": none(),
        "appended_gap": np.zeros(0, np.int64), "second": np.zeros(0, np.bool_),
        "open": Band(np.zeros(0, np.int64), np.zeros((0, 1)), np.zeros((0, 1))), "action": np.zeros((0, 1)),
    }  # fmt: skip
    return Seen(**(plain | what))


def samples(correlations, seen, draws=1500, siblings=None, who=0):
    posterior = EffectsPosterior(correlations, siblings, seen, np.random.default_rng(1))
    return np.array([posterior.draw()[who] for _ in range(draws)])


def exact(row, scores):
    scores = np.array(scores)
    return Band(np.full(len(scores), row), scores - 1e-6, scores + 1e-6)


def test_known_outputs_give_the_normal_posterior_in_closed_form():
    """n scores, each effect and noise in equal parts: mean n m / (n + 1) · sqrt 2, variance 1 / (n + 1)."""
    x = samples(PLAIN, seen_of(1, output=exact(0, [1.0, 2.0, 1.5])))[:, OUTPUT]
    assert x.mean() == pytest.approx(3 / 4 * 1.5 * math.sqrt(2.0), abs=0.05)
    assert x.var() == pytest.approx(1 / 4, rel=0.1)


def test_what_is_appended_after_a_gap_tells_of_the_gap_too():
    """Joint posterior of both effects against the conditional of a jointly normal vector, worked out with matrices."""
    seen = seen_of(
        1, gap=exact(0, [1.2]), appended=exact(0, [0.9]), appended_gap=np.array([0]), second=np.array([False])
    )
    x = samples(PLAIN, seen)
    c = PLAIN
    # Effects on appended and gap, then the scores of gap and appended.
    of_gap = np.array([0.0, math.sqrt(c.gap), math.sqrt(1 - c.gap), 0.0])
    noise = math.sqrt(1 - c.appended)
    tie, rest = noise * c.gap_appended, noise * math.sqrt(1 - c.gap_appended**2)
    of_appended = np.array([math.sqrt(c.appended), 0.0, tie, rest])
    loads = np.array([of_gap, of_appended])
    gain = loads.T @ np.linalg.inv(loads @ loads.T)
    mean, cov = gain @ [1.2, 0.9], np.eye(4) - gain @ loads
    assert x[:, [2, GAP]].mean(axis=0) == pytest.approx(mean[:2], abs=0.07)
    assert np.cov(x[:, [2, GAP]].T) == pytest.approx(cov[:2, :2], abs=0.08)


def test_a_gap_that_goes_on_is_a_score_above_its_bound():
    """Effect given that effect + noise exceeds 1: by the conditional mean of a truncated normal."""
    seen = seen_of(1, gap=Band(np.array([0]), np.array([1.0]), np.array([np.inf])))
    above = stats.norm.pdf(1.0) / stats.norm.sf(1.0)
    assert samples(PLAIN, seen)[:, GAP].mean() == pytest.approx(math.sqrt(PLAIN.gap) * above, abs=0.07)


def test_an_answer_under_way_weighs_what_it_may_call_for():
    """Two actions, of which only the second gives such long answers."""
    far = Band(np.array([0]), np.array([[9.0, 1.0]]), np.array([[np.inf, np.inf]]))
    x = samples(PLAIN, seen_of(1, open=far, action=np.array([[0.9, 0.1]])))[:, OUTPUT]
    above = stats.norm.pdf(1.0) / stats.norm.sf(1.0)
    assert x.mean() == pytest.approx(math.sqrt(PLAIN.output) * above, abs=0.07)


def test_a_trajectory_has_at_least_the_turns_that_it_has_had():
    x = samples(PLAIN, seen_of(1, turns_low=np.array([0.5])))[:, TURNS]
    assert x.min() >= 0.5
    assert x.mean() == pytest.approx(stats.norm.pdf(0.5) / stats.norm.sf(0.5), abs=0.07)


def test_siblings_tell_of_each_other():
    """Two siblings of whom one's output effect is known nearly exactly: the other's by their correlation alone."""
    many = 400
    band = exact(0, np.full(many, 1.5 * math.sqrt(PLAIN.output)))
    seen = seen_of(2, group=np.zeros(2, np.int64), output=band, known=np.array([True, False]))
    x = samples(PLAIN, seen, siblings=np.array([1.0, 0.0, 0.0, 0.6, 0.0]), who=1)[:, OUTPUT]
    assert x.mean() == pytest.approx(0.6 * 1.5, abs=0.08)
    assert x.var() == pytest.approx(1 - 0.6**2, rel=0.15)


def test_a_sandbox_that_takes_long_makes_those_of_its_siblings_likelier_to():
    group, nothing = np.zeros(2, np.int64), np.full(2, np.inf)
    known = SharedScores(0.5, group, np.array([2.0, -np.inf]), np.array([2.0 + 1e-9, np.inf]), np.random.default_rng(2))
    drawn = np.array([known.draw() for _ in range(4000)])
    assert drawn[:, 0] == pytest.approx(2.0)
    assert drawn[:, 1].mean() == pytest.approx(0.5 * 2.0, abs=0.06)
    assert drawn[:, 1].var() == pytest.approx(1 - 0.5**2, rel=0.1)
    free = SharedScores(0.5, group, -nothing, nothing, np.random.default_rng(3))
    both = np.array([free.draw() for _ in range(4000)])
    assert both.std(axis=0) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("low", [-9.0, 0.0, 6.0, 12.0])
def test_truncated_normals_keep_their_digits_in_both_tails(low):
    rng = np.random.default_rng(3)
    count = 4000
    for sign in (1.0, -1.0):
        bounds = (np.full(count, low), np.full(count, low + 1.0))
        a, b = bounds if sign > 0 else (-bounds[1], -bounds[0])
        x = truncated_normal(rng, np.zeros(count), 1.0, a, b)
        assert ((x >= a) & (x <= b)).all()
        assert stats.kstest(sign * x, stats.truncnorm(low, low + 1.0).cdf).pvalue > 1e-4
        expected = (
            stats.norm.sf(abs(low)) - stats.norm.sf(abs(low) + 1)
            if low >= 0
            else stats.norm.cdf(-8) - stats.norm.cdf(-9)
        )
        assert probability_between(np.zeros(1), 1.0, a[:1], b[:1])[0] == pytest.approx(expected, rel=1e-6)


def test_an_ended_trajectory_brings_nothing_more():
    workload = generate("general", profile=PROFILE, trajectories=4, seed=3)
    turns = np.diff(workload.first_turn)
    standing = Standing(np.full(4, ENDED, np.int8), turns - 1, np.zeros(4), np.zeros(4, np.int64))
    new = drawn("general", workload, standing)()
    assert np.array_equal(new.first_turn, workload.first_turn)
    assert np.array_equal(new.prompt_tokens, workload.prompt_tokens)
    assert np.array_equal(new.reward_s, workload.reward_s)
