"""Profiles made from AIConfigurator against its own answers, asked another way."""

import pytest

pytest.importorskip("aiconfigurator_core")

from prorsa.cluster.profile import Profile
from prorsa.cluster.profiling.aiconfigurator import AicWorker
from prorsa.cluster.profiling.making import Request, check_form, make_profile
from prorsa.cluster.profiling.measured import Form
from prorsa.cluster.step import RankWork, step_parts
from prorsa.errors import ConfigError

V3, QWEN = "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-32B"
TP8, DP8 = Form(8, 1, 8), Form(1, 8, 8)


@pytest.fixture(scope="module")
def dp8() -> Profile:
    return make_profile(Request("v3", V3, "h200_sxm", DP8))


def whole_step_ms(worker: AicWorker, batch: int, context: int) -> float:
    """AIConfigurator's own sum over all operators, with ``batch`` requests on every rank."""
    answer = worker._engine.predict_decode_latency(batch, context, 2)
    return float(answer)


@pytest.mark.parametrize("form", [TP8, DP8], ids=lambda form: form.label)
def test_attention_and_experts_add_up_to_the_whole_step(form: Form) -> None:
    worker = AicWorker(V3, "h200_sxm", form)
    parts = worker.decode_attention_ms(16, 4096) + worker.decode_experts_ms(16 * form.dp)
    assert parts == pytest.approx(whole_step_ms(worker, 16, 4096), rel=0.01)
    whole = worker._engine.predict_prefill_latency(1, 1024, 0)
    assert worker.prefill_attention_ms(1024) + worker.prefill_experts_ms(1024 * form.dp) == pytest.approx(
        whole, rel=0.01
    )


def test_both_forms_of_a_model_have_the_same_experts() -> None:
    tp8, dp8 = (AicWorker(V3, "h200_sxm", form) for form in (TP8, DP8))
    for tokens in (64, 512, 8192):
        assert dp8.prefill_experts_ms(tokens) == pytest.approx(tp8.prefill_experts_ms(tokens), rel=0.15)
        assert dp8.decode_experts_ms(tokens) == pytest.approx(tp8.decode_experts_ms(tokens), rel=0.15)


@pytest.mark.parametrize(("batch", "context"), [(1, 4096), (8, 8192), (32, 16_384)])
def test_a_profiles_steps_are_the_sources(dp8: Profile, batch: int, context: int) -> None:
    parts = step_parts(dp8, [RankWork(batch=batch, context_tokens=batch * context)] * 8)
    assert parts.step_s * 1e3 == pytest.approx(whole_step_ms(AicWorker(V3, "h200_sxm", DP8), batch, context), rel=0.1)


def test_a_dp_worker_has_sglangs_defaults_by_rank(dp8: Profile) -> None:
    assert (dp8.gpus, dp8.ranks, dp8.chunk_tokens, dp8.max_running) == (8, 8, 1024, 64)
    assert dp8.flippable
    assert 400_000 < dp8.kv_tokens < 800_000


def test_a_dense_model_has_no_experts() -> None:
    profile = make_profile(Request("qwen", QWEN, "h200_sxm", Form(4)))
    assert profile.experts.prefill == profile.experts.decode == ()
    worker = AicWorker(QWEN, "h200_sxm", Form(4))
    assert profile.prefill_s(4096) * 1e3 == pytest.approx(worker._engine.predict_prefill_latency(1, 4096, 0), rel=0.15)


def test_expert_parallelism_does_not_flip() -> None:
    profile = make_profile(Request("ep", V3, "h200_sxm", Form(1, 8, 1, 8)))
    assert not profile.flippable
    assert "expert parallelism" in str(profile.why_not_flippable)


def test_what_is_unknown_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no system 'h300_sxm'; it has .*h200_sxm"):
        AicWorker(QWEN, "h300_sxm", Form(4))
    with pytest.raises(ConfigError, match=r"no KV|KV capacity of deepseek-ai/DeepSeek-V3 on h100_sxm as TP2"):
        AicWorker(V3, "h100_sxm", Form(2, 1, 2)).kv(8192)


@pytest.mark.parametrize("form", [Form(4, 1, 1, 3), Form(0), Form(4, 2, 4, 1)])
def test_sizes_that_no_worker_has_are_refused(form: Form) -> None:
    with pytest.raises(ConfigError):
        check_form(form)
