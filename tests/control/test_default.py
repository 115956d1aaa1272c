"""The shipped choice: look-ahead where a profile is known, the ratio formula where none is."""

import dataclasses

import pytest

from prorsa.cluster.profile import load_profile
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.policies import Context, make_policy
from prorsa.control.solver import Bounds
from prorsa.events import ForecastRow, Split
from tests.control.test_lookahead import PROFILE, context


@pytest.mark.parametrize("profile", ["dsv32-h200-dp8", "qwen3-32b-h200-tp2"])
def test_it_looks_ahead_with_any_profile(profile: str) -> None:
    given = context(Split(4, 4), arrivals=20_000.0, decode_batch=300)
    assert given.frame is not None
    rows = (
        *given.frame.rows,
        ForecastRow("prefill", 15.0, "total", 3e5, 2e5, 3e5, 4e5),
        *(ForecastRow("kv_need", horizon_s, "total", 2e6, 1e6, 2e6, 3e6) for horizon_s in (15.0, 60.0)),
    )
    frame = dataclasses.replace(given.frame, rows=rows)
    given = dataclasses.replace(given, frame=frame, cost=CostModel(load_profile(profile)))
    default, chosen = make_policy("default"), make_policy("lookahead")
    for _ in range(3):
        assert default.decide(given) == dataclasses.replace(chosen.decide(given), decided_by="lookahead")


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_it_holds_without_a_forecast_by_either(profile: object) -> None:
    blind = Context(0, Split(4, 4), Bounds(8, 1, 7), None, CostModel(profile), 10**6, ControlConfig())  # type: ignore[arg-type]
    assert "no forecast yet" in make_policy("default").decide(blind).reason


def test_without_a_profile_it_goes_by_the_workers_counters() -> None:
    given = context(Split(4, 4), arrivals=20_000.0, decode_batch=300)
    unknown = Context(0, given.current, given.bounds, given.frame, CostModel(None), given.kv_capacity, ControlConfig())
    by_formula = make_policy("analytic").decide(unknown)
    assert make_policy("default").decide(unknown) == dataclasses.replace(by_formula, decided_by="analytic")
    assert "prefill rate" in make_policy("default").decide(unknown).reason
