"""How the plugin fits into SGLang's processes, and how it degrades."""

import json
import os
import subprocess
from typing import Any

import pytest

from prorsa.cluster.plugin.lifecycle import Lifecycle
from testbed.pool import PYTHON, ROOT

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        [PYTHON, "-m", "tests.live.plugin.inside"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    result: dict[str, dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    return result


def test_stock_sglang_wipes_the_shared_store_and_the_cache(seen: dict[str, Any]) -> None:
    assert seen["stock"]["storage_wiped"]
    assert not seen["stock"]["cache_kept"]


def test_the_plugin_keeps_both(seen: dict[str, Any]) -> None:
    assert not seen["plugin"]["storage_wiped"]
    assert seen["plugin"]["cache_kept"]
    assert not seen["plugin"]["said"]


def test_without_warm_flips_it_still_keeps_the_shared_store(seen: dict[str, Any]) -> None:
    assert not seen["cold"]["storage_wiped"]
    assert not seen["cold"]["cache_kept"]


def test_on_another_version_it_watches_and_leaves_flips_alone(seen: dict[str, Any]) -> None:
    case = seen["unchecked_version"]
    assert case["storage_wiped"], "SGLang's own doing"
    assert [text for text in case["said"] if "0.6.0" in text and "checked with 0.5.23 only" in text]
    assert len(case["said"]) == 1
    assert hooked(Lifecycle(print).feature().hooks) <= set(case["patched"])


def test_on_another_version_the_user_may_insist(seen: dict[str, Any]) -> None:
    assert seen["unchecked_version_forced"]["cache_kept"]


def test_a_feature_whose_target_is_gone_is_left_out_and_named(seen: dict[str, Any]) -> None:
    case = seen["missing_target"]
    assert case["cache_kept"], "the rest works"
    assert len(case["said"]) == 1
    assert "without load, because managers.scheduler.Scheduler.publish_load_snapshot is not there" in case["said"][0]


def test_a_wrong_setting_turns_the_plugin_off_and_is_said(seen: dict[str, Any]) -> None:
    case = seen["wrong_setting"]
    assert case["storage_wiped"], "as without the plugin"
    assert any("prorsa" in text for text in case["said"])


def test_sglang_knows_the_flags_of_a_gpu_worker(seen: dict[str, Any]) -> None:
    assert seen["flags"] == {
        "disaggregation_mode": "decode",
        "enable_pd_role_switch": True,
        "disaggregation_decode_enable_radix_cache": True,
        "dp_size": 2,
    }


def hooked(hooks: tuple[Any, ...]) -> set[str]:
    return {f"sglang.srt.{hook.target}" for hook in hooks}
