"""Profiles: the formulas of their steps, and what is refused."""

from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.profile import (
    Experts,
    Fit,
    check_profile,
    load_profile,
    profile_names,
    table_ms,
    windowed_pairs,
)
from prorsa.cluster.step import RankWork, step_parts
from prorsa.errors import ConfigError
from tests.sim.pools import make_profile

SPARSE = Fit(a_ms=5.0, b_ms=0.05, c_ms=2e-6, d_ms=3e-5, window_tokens=700)
TABLES = Experts(prefill=((1, 4.0), (100, 5.0), (1_000, 20.0)), decode=((8, 2.0), (64, 6.0)))


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_of_the_package_loads_and_says_where_it_is_from(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.provenance
    assert profile.flippable == (profile.why_not_flippable is None)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 500))
def test_windowed_pairs_are_the_sum_over_the_new_tokens(new: int, prefix: int, window: int) -> None:
    assert windowed_pairs(new, prefix, window) == sum(min(prefix + j, window) for j in range(1, new + 1))


@pytest.mark.parametrize(("tokens", "ms"), [(0, 4.0), (1, 4.0), (100, 5.0), (550, 12.5), (1_000, 20.0), (4_000, 70.0)])
def test_a_table_is_linear_between_its_points_and_goes_on_with_the_last_slope(tokens: float, ms: float) -> None:
    assert table_ms(TABLES.prefill, tokens) == pytest.approx(ms)


def test_no_table_takes_no_time_and_one_point_is_a_constant() -> None:
    assert table_ms((), 1_000) == 0
    assert table_ms(((64, 3.0),), 1_000) == 3.0


@given(st.integers(1, 5_000), st.integers(0, 5_000))
def test_a_prompt_takes_the_sum_of_its_chunks(new: int, prefix: int) -> None:
    profile = make_profile(prefill=SPARSE, experts=TABLES)
    chunks = [(min(1_000, new - done), prefix + done) for done in range(0, new, 1_000)]
    steps_s = [step_parts(profile, [RankWork(chunks=(chunk,))]).step_s for chunk in chunks]
    assert profile.prefill_s(new, prefix) == pytest.approx(sum(steps_s), rel=1e-12)


def test_a_step_is_the_slowest_rank_and_everybodys_experts() -> None:
    profile = make_profile(ranks=4, experts=TABLES)
    prefill, decode = profile.prefill, profile.decode
    ranks = [
        RankWork(chunks=((300, 50), (40, 0))),
        RankWork(chunks=((900, 0),)),
        RankWork(batch=10, context_tokens=5_000),
        RankWork(),
    ]
    parts = step_parts(profile, ranks)
    assert parts.attention_s == pytest.approx(
        (
            (prefill.a_ms + prefill.b_ms * 340 + prefill.c_ms * (300 * 200 + 40 * 20)) / 1e3,
            (prefill.a_ms + prefill.b_ms * 900 + prefill.c_ms * 900 * 450) / 1e3,
            (decode.a_ms + decode.b_ms * 10 + decode.c_ms * 5_000) / 1e3,
            0.0,
        )
    )
    assert parts.experts_s == pytest.approx(table_ms(TABLES.prefill, 340 + 900 + 10) / 1e3)
    assert parts.step_s == pytest.approx(max(parts.attention_s) + parts.experts_s)
    assert parts.waiting_ratio == pytest.approx(
        (4 * max(parts.attention_s) - sum(parts.attention_s)) / (4 * parts.step_s)
    )


def test_a_step_in_which_all_decode_has_the_decode_table() -> None:
    profile = make_profile(ranks=2, experts=TABLES)
    parts = step_parts(profile, [RankWork(batch=10, context_tokens=5_000), RankWork(batch=26, context_tokens=100)])
    assert parts.experts_s == pytest.approx(table_ms(TABLES.decode, 36) / 1e3)
    assert profile.decode_step_s(10, 5_000) == pytest.approx(parts.attention_s[0] + 2.0 / 1e3 + 2 * 4.0 / 56 / 1e3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"kv_tokens": -1, "gpus": 0}, "gpus is 0: give at least 1; kv_tokens is -1"),
        ({"kv_transfer_gb_s": float("nan")}, "kv_transfer_gb_s is nan"),
        ({"request_ms": -1.0}, "request_ms is -1.0"),
        ({"prefill": Fit(1.0, 0.1, -1e-9)}, "prefill.c_ms is -1e-09"),
        ({"decode": Fit(0.0, 0.0, 1.0)}, "a decode step takes no time"),
        ({"decode": Fit(1.0, 0.0, 1.0, 1.0, 10)}, "decode.d_ms and decode.window_tokens"),
        ({"prefill": Fit(1.0, 0.1, 0.0, 1e-5)}, "prefill.d_ms without prefill.window_tokens"),
        ({"experts": Experts(prefill=((8, 2.0), (8, 3.0)))}, "experts.prefill goes from 8 tokens, 2 ms to 8, 3"),
        ({"experts": Experts(decode=((1, 2.0), (8, 1.0)))}, "neither may go back"),
        ({"experts": Experts(decode=((-1, 2.0),))}, "give 0 or more"),
    ],
)
def test_figures_that_make_no_sense_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        check_profile(make_profile(**changes))


def test_a_file_is_read_as_the_package_reads_its_own(tmp_path: Path) -> None:
    packaged = resources.files("prorsa.cluster") / "profiles" / "dsv32-h200-dp8.toml"
    file = tmp_path / "mine.toml"
    file.write_text(packaged.read_text())
    profile = load_profile(str(file))
    assert profile == load_profile("dsv32-h200-dp8")
    assert profile.prefill.window_tokens == 2_048
    assert len(profile.experts.prefill) > 1


@pytest.mark.parametrize("text", ["name = ", "name = 'x'", "surprise = 1"])
def test_a_bad_file_gives_one_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_profile(str(file))


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="qwen3-32b-h200-tp2"):
        load_profile("nothing")
