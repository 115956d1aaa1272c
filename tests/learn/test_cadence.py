"""Training forecasts at decisions alone, live each second: what is the same then, and how near the rest is."""

import numpy as np
import pytest

from benchmarks.env import differences, frames, sized
from prorsa.forecast.frame import Frame

SCENARIO = sized("coding-async", 32)
EQUAL = ("live_trajectories", "waiting_requests", "decode_batch", "resident_kv_tokens")


@pytest.fixture(scope="module")
def ticked() -> list[Frame]:
    return frames(SCENARIO, 3, 1, until_s=300)


def test_what_the_trajectories_do_does_not_depend_on_the_ticks(ticked):
    asked = frames(SCENARIO, 3, 5, until_s=300)
    assert len(asked) == len(ticked) == 60
    for each, other in zip(ticked, asked, strict=True):
        assert {name: getattr(each, name) for name in EQUAL} == {name: getattr(other, name) for name in EQUAL}
        assert other.backlog_tokens == pytest.approx(each.backlog_tokens, rel=0.05, abs=50)


def test_means_do_not_depend_on_the_ticks(ticked):
    found = differences(ticked, frames(SCENARIO, 3, 5, until_s=300))
    assert max(value for name, value in found.items() if " mean " in name) < 0.03
    assert np.mean(list(found.values())) > 0.0  # or the comparison would compare nothing


def test_rarer_reports_cost_little_and_quantiles_are_not_far(ticked):
    """A training's workers report at decisions alone, and its forecasts are corrected by those of its decisions."""
    found = differences(ticked, frames(SCENARIO, 3, 5, report_s=5, until_s=300))
    assert max(value for name, value in found.items() if " mean " in name) < 0.1
    assert max(value for name, value in found.items() if " p50 " in name) < 0.2
    assert max(found.values()) < 0.35
