"""The profiles that the package carries, and profiles as files."""

import msgspec
import pytest

from prorsa.cluster.profile import Profile, load_profile, profile_names
from prorsa.cluster.profiling.catalogue import CARRIED
from prorsa.cluster.profiling.corrections import Corrections, corrected
from prorsa.cluster.profiling.writing import profile_toml

PROFILES = [load_profile(name) for name in profile_names()]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_written_profile_reads_back_as_it_was(profile: Profile, tmp_path: object) -> None:
    file = tmp_path / "profile.toml"  # type: ignore[operator]
    file.write_text(profile_toml(profile))
    assert load_profile(str(file)) == profile


def test_awkward_text_is_written_as_toml() -> None:
    profile = msgspec.structs.replace(
        PROFILES[0], provenance='a "quoted" \\ back\\slash, × and ' + "long " * 60 + "end"
    )
    assert msgspec.toml.decode(profile_toml(profile), type=Profile).provenance == profile.provenance


def test_every_carried_profile_is_there_and_of_its_form() -> None:
    assert {request.name for request in CARRIED} == set(profile_names())
    for request in CARRIED:
        profile = load_profile(request.name)
        assert (profile.model, profile.gpus, profile.ranks) == (request.model, request.form.gpus, request.form.dp)
        assert profile.flippable == (request.form.moe_ep == 1)
        assert profile.flippable == (profile.why_not_flippable is None)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_profile_says_where_its_figures_are_from(profile: Profile) -> None:
    assert "aiconfigurator-core" in profile.provenance
    if profile.validated:
        assert "measured rows (SGLang" in profile.provenance


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_times_are_of_the_size_that_gpus_have(profile: Profile) -> None:
    """A wrong unit or a lost factor shows: 8,192 tokens take 0.1 to 3 s, a step of 8 requests at 8k 5 to 60 ms."""
    assert 0.1 < profile.prefill_s(8192) < 3.0
    assert 0.005 < profile.decode_step_s(8, 8 * 8192) < 0.06
    assert profile.max_context >= 100_000


def test_corrections_scale_what_they_name_and_nothing_else() -> None:
    source = load_profile("dsv32-h200-dp8")
    by = Corrections(prefill=2.0, prefill_experts=3.0, decode=4.0, decode_experts=5.0, context=6.0, request_ms=70.0)
    got = corrected(source, by)
    for name, factor in (("a_ms", 2), ("b_ms", 2), ("c_ms", 2), ("d_ms", 2)):
        assert getattr(got.prefill, name) == pytest.approx(factor * getattr(source.prefill, name), rel=1e-3)
    for name, factor in (("a_ms", 4), ("b_ms", 4), ("c_ms", 6)):
        assert getattr(got.decode, name) == pytest.approx(factor * getattr(source.decode, name), rel=1e-3)
    for before, after in zip(source.experts.prefill, got.experts.prefill, strict=True):
        assert after == (before[0], pytest.approx(3 * before[1], abs=0.01))
    for before, after in zip(source.experts.decode, got.experts.decode, strict=True):
        assert after == (before[0], pytest.approx(5 * before[1], abs=0.01))
    assert got.request_ms == 70.0
    assert got.prefill.window_tokens == source.prefill.window_tokens
    assert (
        msgspec.structs.replace(
            got, prefill=source.prefill, decode=source.decode, experts=source.experts, request_ms=source.request_ms
        )
        == source
    )
    assert "decode context × 6.00" in str(by)
    assert str(Corrections()) == "none"
