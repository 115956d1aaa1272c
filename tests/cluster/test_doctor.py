"""The doctor's findings, on workers as they describe themselves."""

from typing import Any

from prorsa.cluster.doctor import Finding, Patient, examine
from prorsa.cluster.sglang import CHECKED_VERSION, ModelInfo, ServerInfo
from prorsa.cluster.sglang.replies import InternalState


def patient(
    url: str, role: str = "prefill", *, weights: str = "1", clock_ahead_s: float = 0.1, **fields: Any
) -> Patient:
    settings = {
        "version": CHECKED_VERSION,
        "disaggregation_mode": role,
        "max_total_num_tokens": 1000,
        "internal_states": [InternalState(disaggregation_mode=role)],
        "enable_pd_role_switch": True,
        "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": int(url[-1]),
        "disaggregation_decode_enable_radix_cache": True,
        **fields,
    }
    model = ModelInfo(disaggregation_mode=role, served_model_name="m", weight_version=weights)
    return Patient(url, ServerInfo(**settings), model, clock_ahead_s=clock_ahead_s)


def findings(*patients: Patient) -> list[Finding]:
    return [finding for finding in examine(patients) if finding.level != "ok"]


def test_a_fit_pool_has_nothing_wrong() -> None:
    assert findings(patient("http://a:1"), patient("http://a:2", "decode")) == []


def said(*patients: Patient) -> str:
    (finding,) = findings(*patients)
    assert finding.remedy
    return f"{finding.where}: {finding.text}"


def test_each_thing_that_is_wrong_is_named_with_its_remedy() -> None:
    fit = patient("http://a:1", "decode")
    assert "expert parallelism" in said(fit, patient("http://a:2", ep_size=8))
    assert (
        "transfer backend nixl" in findings(fit, patient("http://a:2", disaggregation_transfer_backend="nixl"))[0].text
    )
    assert "0.6.0" in said(fit, patient("http://a:2", version="0.6.0"))
    assert "page_size is" in said(fit, patient("http://a:2"), patient("http://a:3", page_size=64))
    assert "share bootstrap port 7" in said(
        patient("http://a:1", "decode", disaggregation_bootstrap_port=7),
        patient("http://a:2", disaggregation_bootstrap_port=7),
    )
    assert "not one worker of each role" in said(fit, patient("http://a:2", "decode"))
    assert "weight versions differ" in said(fit, patient("http://a:2", weights="2"))
    assert "clock is off by -60 s" in said(fit, patient("http://a:2", clock_ahead_s=-60.0))
    assert "admin key" in said(fit, patient("http://a:2", admin_api_key="***"))
    both = [InternalState(disaggregation_mode="prefill"), InternalState(disaggregation_mode="decode")]
    assert "schedulers are in different roles" in said(fit, patient("http://a:2", internal_states=both))
    assert "does not answer" in said(fit, patient("http://a:2"), Patient("http://a:3", error="does not answer"))
