"""What the ratio formula remembers: the backlog that does not go away, and moves that were turned round."""

from hypothesis import given
from hypothesis import strategies as st

from prorsa.control.standing import Standing, Turns
from prorsa.events import Split
from tests.control.test_lookahead import context


@given(backlogs=st.lists(st.floats(0.0, 1e7), min_size=1, max_size=40), moves_at=st.integers(0, 40))
def test_what_stands_is_the_least_of_the_last_horizon_at_one_split(backlogs: list[float], moves_at: int) -> None:
    standing, since = Standing(), 0
    for k, tokens in enumerate(backlogs):
        prefill = 4 if k < moves_at else 5
        since = k if k == moves_at else since
        pool = context(Split(prefill, 8 - prefill), arrivals=1.0, decode_batch=1, t_s=5.0 * k)
        least = min(backlogs[max(k - 12, since) : k + 1]) if k - since >= 12 else 0.0
        assert standing.update(pool, tokens) == least


@given(splits=st.lists(st.integers(1, 7), min_size=2, max_size=30))
def test_only_moves_that_are_turned_round_make_moves_dearer(splits: list[int]) -> None:
    there, and_back = Turns(), Turns()
    for k, prefill in enumerate(sorted(splits)):
        there.update(context(Split(prefill, 8 - prefill), arrivals=1.0, decode_batch=1, t_s=5.0 * k))
        assert there.factor == 1.0
    for k, prefill in enumerate(splits):
        and_back.update(context(Split(prefill, 8 - prefill), arrivals=1.0, decode_batch=1, t_s=5.0 * k))
        assert 1.0 <= and_back.factor <= 32.0
    and_back.update(context(Split(splits[-1], 8 - splits[-1]), arrivals=1.0, decode_batch=1, t_s=3_600.0))
    assert and_back.factor < 1.01
