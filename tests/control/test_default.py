"""The shipped choice: look-ahead where it can, the ratio formula where workers have no profile."""

import pytest

from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.policies import Context, make_policy
from prorsa.control.solver import Bounds
from prorsa.events import Split
from tests.control.test_lookahead import PROFILE, context


def test_it_wants_what_look_ahead_wants_where_the_profile_is_known() -> None:
    given = context(Split(4, 4), arrivals=20_000.0, decode_batch=300)
    default, lookahead = make_policy("default"), make_policy("lookahead")
    for _ in range(3):
        assert default.decide(given) == lookahead.decide(given)
        assert default.state() == lookahead.state()


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_it_holds_without_a_forecast_by_either(profile: object) -> None:
    blind = Context(0, Split(4, 4), Bounds(8, 1, 7), None, CostModel(profile), 10**6, ControlConfig())  # type: ignore[arg-type]
    assert "no forecast yet" in make_policy("default").decide(blind).reason


def test_without_a_profile_it_goes_by_the_workers_counters() -> None:
    given = context(Split(4, 4), arrivals=20_000.0, decode_batch=300)
    unknown = Context(0, given.current, given.bounds, given.frame, CostModel(None), given.kv_capacity, ControlConfig())
    assert make_policy("default").decide(unknown) == make_policy("analytic").decide(unknown)
    assert "prefill rate" in make_policy("default").decide(unknown).reason
