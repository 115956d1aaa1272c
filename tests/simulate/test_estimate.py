"""The estimate's arithmetic, and that it can say that there is nothing to gain."""

import pytest

from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import Scenario
from prorsa.errors import ConfigError
from prorsa.estimate import Side, estimate, estimated, speculative


def row(seed: int, tokens_per_s: float, flips: int = 0) -> dict[str, object]:
    return {
        "seed": seed, "steady_output_tokens_per_s": tokens_per_s, "step_s": None, "makespan_s": 1_800.0, "flips": flips,
    }  # fmt: skip


def test_a_gain_that_every_pair_shows_is_promised_and_flips_are_counted_by_the_hour() -> None:
    pairs = [(row(k, 100.0 + k), row(k, 120.0 + k, flips=3)) for k in range(6)]
    found = estimated(pairs)
    assert 1.0 < found.low < found.gain < found.high
    assert "a gain of" in found.verdict
    assert found.flips_per_hour == pytest.approx(6.0)


def test_where_the_pairs_disagree_no_gain_is_promised() -> None:
    found = estimated([(row(k, 100.0), row(k, 95.0 if k % 2 else 108.0)) for k in range(6)])
    assert found.low < 1.0 < found.high
    assert found.verdict.startswith("no gain")


def test_the_interval_is_that_of_one_more_run_beside_a_recording_that_is_one_run_itself() -> None:
    # Student's prediction interval of two pairs, ratios 1.0 and 1.21: sd of logs 0.1348, factor 12.706 * sqrt(2.5).
    found = estimated([(row(0, 100.0), row(0, 100.0)), (row(1, 100.0), row(1, 121.0))])
    assert found.gain == pytest.approx(1.1)
    assert found.high / found.gain == pytest.approx(2.718281828 ** (12.706 * 0.13479 * 2.5**0.5), rel=1e-3)


def test_speculative_decoding_makes_a_token_so_much_cheaper() -> None:
    profile = load_profile("dsv32-h200-dp8")
    faster = speculative(profile, 2.5)
    assert faster.decode_step_s(8, 100_000) == pytest.approx(profile.decode_step_s(8, 100_000) / 2.5)
    assert faster.prefill_s(1_000) == profile.prefill_s(1_000)
    with pytest.raises(ConfigError, match="give 1 or more"):
        speculative(profile, 0.5)


def test_the_same_policy_on_both_sides_gains_exactly_nothing() -> None:
    scenario = Scenario(
        name="t", profile="qwen3-32b-h200-tp2", workers=2, concurrency=4, mode="async", workload="coding",
        trajectories=6, max_turns=2,
    )  # fmt: skip
    side = Side(scenario, "static:1:1")
    found = estimate(scenario.make_workload(3), side, side, draws=2)
    assert (found.replayed, found.gain, found.low, found.high) == (1.0, 1.0, 1.0, 1.0)
    assert found.verdict.startswith("no gain")
