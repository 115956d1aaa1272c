"""Generated beside real: the figures that a user of the generators relies on.

Reads the recorded traces of ``../shared/traces``; skips where they are absent, but for the general agent's gaps.
"""

import runpy
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.fitted import Fitted, load_fitted
from prorsa.cluster.workloads.generators import generate
from prorsa.cluster.workloads.sessions import load_sessions
from prorsa.cluster.workloads.workload import Workload

FILES = {"coding": "coding-sessions.csv.gz", "general": "airline-agent-turns.csv.gz"}
Measure = Callable[[Workload], np.ndarray]


def later(w: Workload) -> np.ndarray:
    mask = np.ones(w.turns, bool)
    mask[w.first_turn[:-1]] = False
    return mask


def computed(w: Workload) -> np.ndarray:
    """Tokens that a cache which holds every context leaves to compute."""
    return w.prompt_tokens - w.reuse_tokens


MEASURES: dict[str, Measure] = {
    "turns": lambda w: np.diff(w.first_turn),
    "first prompt": lambda w: w.prompt_tokens[~later(w)],
    "prompt": lambda w: w.prompt_tokens,
    "output": lambda w: w.output_tokens,
    "computed": lambda w: computed(w)[later(w)],
    "computed a trajectory": lambda w: np.add.reduceat(computed(w), w.first_turn[:-1]),
    "output a trajectory": lambda w: np.add.reduceat(w.output_tokens, w.first_turn[:-1]),
}


@pytest.fixture(scope="module", params=["coding", "general"])
def pair(request: pytest.FixtureRequest, traces: Path, profile: Profile) -> tuple[Workload, Workload]:
    """The recorded workload and a generated one, large enough that its own noise is small."""
    real = load_sessions(traces / FILES[request.param], profile=profile)
    return real, generate(request.param, profile=profile, trajectories=3000, seed=17)


@pytest.mark.parametrize("name", MEASURES)
def test_sizes_are_those_of_the_trace(pair: tuple[Workload, Workload], name: str) -> None:
    real, generated = (MEASURES[name](workload) for workload in pair)
    assert np.mean(generated) == pytest.approx(np.mean(real), rel=0.12)
    assert np.median(generated) == pytest.approx(np.median(real), rel=0.12)
    assert np.quantile(generated, 0.9) == pytest.approx(np.quantile(real, 0.9), rel=0.2)


@pytest.fixture(scope="module")
def coding(traces: Path, profile: Profile) -> tuple[Workload, Workload]:
    real = load_sessions(traces / FILES["coding"], profile=profile)
    return real, generate("coding", profile=profile, trajectories=3000, seed=17)


def test_few_coding_turns_carry_half_of_the_tokens(coding: tuple[Workload, Workload]) -> None:
    for workload in coding:
        tokens = computed(workload)
        assert 0.02 < np.mean(tokens > 20_000) < 0.04
        assert 0.47 < tokens[tokens > 20_000].sum() / tokens.sum() < 0.62


def test_coding_gaps_are_those_of_the_trace(coding: tuple[Workload, Workload]) -> None:
    real, generated = (workload.gap_s[later(workload)] for workload in coding)
    for q in (0.25, 0.5, 0.75):
        assert np.quantile(generated, q) == pytest.approx(np.quantile(real, q), rel=0.1)
    assert np.mean(generated) == pytest.approx(np.mean(real), rel=0.08)
    assert np.mean(generated >= 60) == pytest.approx(np.mean(real >= 60), abs=0.02)


def test_longer_coding_gaps_bring_more_new_tokens(coding: tuple[Workload, Workload]) -> None:
    for workload in coding:
        gaps, tokens = workload.gap_s[later(workload)], computed(workload)[later(workload)]
        assert np.mean(tokens[gaps >= 60]) > 1.5 * np.mean(tokens[gaps < 10])


def test_coding_sessions_differ_as_those_of_the_trace(coding: tuple[Workload, Workload]) -> None:
    """Spread between sessions of the mean log output, which effects of the session make."""
    real, generated = (np.std(session_means(w, np.log(w.output_tokens))) for w in coding)
    assert generated == pytest.approx(real, rel=0.15)


def session_means(w: Workload, values: np.ndarray) -> np.ndarray:
    lengths = np.diff(w.first_turn)
    return (np.add.reduceat(values, w.first_turn[:-1]) / lengths)[lengths >= 10]


def test_coding_prompts_are_reset_as_often(coding: tuple[Workload, Workload]) -> None:
    """Share of later turns that keep less than 90 % of the previous prompt."""
    shares = []
    for w in coding:
        kept = w.reuse_tokens / np.roll(w.prompt_tokens, 1)
        shares.append(np.mean(kept[later(w)] < 0.9))
    assert 0.005 < shares[0] < 0.03
    assert shares[1] == pytest.approx(shares[0], rel=0.3)


def test_coding_is_truncated_as_often(coding: tuple[Workload, Workload]) -> None:
    real, generated = (np.mean(workload.truncated) for workload in coding)
    assert generated == pytest.approx(real, abs=0.06)


def test_general_gaps_are_lognormal_as_stated(profile: Profile) -> None:
    w = generate("general", profile=profile, trajectories=3000, seed=4, gap_cap_s=1e6)
    gaps = w.gap_s[later(w)]
    assert np.median(gaps) == pytest.approx(2.0, rel=0.06)
    assert np.quantile(gaps, 0.9) == pytest.approx(10.0, rel=0.08)
    logs = np.log(gaps)
    skew = np.mean(((logs - logs.mean()) / logs.std()) ** 3)
    assert abs(skew) < 0.25


@pytest.mark.parametrize("name", FILES)
def test_the_fit_repeats(traces: Path, name: str) -> None:
    """What the package carries is what the script makes of the traces."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "fit_workloads.py"))
    again = msgspec.json.decode(msgspec.json.encode(script[f"fit_{name}"](traces)), type=Fitted)
    assert again == load_fitted(name)
