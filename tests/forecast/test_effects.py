"""Trajectories, and their siblings, tell what they will be like, as far as they are seen to differ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.forecast.columns import Columns
from prorsa.forecast.effects import MAX_GROUPS, Effect, Effects

SPREAD = 0.8


def logs(rng, number, total, between_groups, *, members=8, turns=12):
    """float64[number, members, turns], standardised logarithms of a mixed model."""
    group = rng.normal(0.0, np.sqrt(between_groups), (number, 1, 1))
    own = rng.normal(0.0, np.sqrt(total - between_groups), (number, members, 1))
    return group + own + rng.normal(0.0, np.sqrt(1.0 - total), (number, members, turns))


class Runs:
    """Groups of 8 that answer turn by turn, one group after another."""

    def __init__(self, total: float, between_groups: float, groups: int = 200, seed: int = 0) -> None:
        self.columns = Columns()
        self.effects = Effects(self.columns)
        self.told: list[tuple[float, float]] = []
        for number, group in enumerate(logs(np.random.default_rng(seed), groups, total, between_groups)):
            slots = self.begin(f"group {number}", len(group))
            for z in group.T:
                for slot, value in zip(slots, np.exp(SPREAD * z), strict=True):
                    self.effects.tell(slot, 2)
                    self.told.append((float(self.columns.longer[slot]), float(value)))
                    self.effects.answered(slot, 1, 2, 200.0 * float(value))
            for slot in slots:
                self.end(slot)

    def begin(self, group: str | None, number: int) -> list[int]:
        slots = [self.columns.take() for _ in range(number)]
        for slot in slots:
            self.columns.action[slot] = 1
            self.effects.dispatched(slot, group)
        return slots

    def end(self, slot: int) -> None:
        self.effects.ended(slot)
        self.columns.release(slot)

    def longer(self, slot: int) -> float:
        self.effects.tell(slot, 2)
        return float(self.columns.longer[slot])


@pytest.mark.parametrize(("total", "between_groups"), [(0.0, 0.0), (0.3, 0.0), (0.4, 0.25)])
def test_the_variances_are_learnt(total, between_groups):
    found = Runs(total, between_groups).effects.variances(Effect.ANSWER)
    assert found == pytest.approx((total, between_groups), abs=0.06)


def test_where_trajectories_are_alike_nothing_is_expected_of_any():
    told = np.array([multiple for multiple, _ in Runs(0.0, 0.0).told])
    assert np.abs(told[len(told) // 4 :] - 1.0).max() < 0.25
    assert np.abs(told[len(told) // 4 :] - 1.0).mean() < 0.02


def test_what_is_expected_comes_true():
    told, came = np.array(Runs(0.4, 0.25, groups=400).told[3000:]).T
    usual = came.mean()
    assert told.mean() == pytest.approx(1.0, abs=0.03)
    for low, high in ((0.3, 0.7), (0.7, 1.0), (1.0, 1.4), (1.4, 2.5)):
        of = (told >= low) & (told < high)
        assert came[of].mean() / usual == pytest.approx(told[of].mean(), rel=0.12)
    # A third of the scatter that there is, at least, of what a perfect knowledge of the effects would take away.
    assert np.abs(came - usual * told).mean() < 0.93 * np.abs(came - usual).mean()


def test_one_that_had_long_answers_has_them_again_and_so_have_its_siblings():
    runs = Runs(0.4, 0.25)
    long, sibling = runs.begin("long", 2)
    (short,), (stranger,) = runs.begin("short", 1), runs.begin(None, 1)
    for _ in range(6):
        runs.effects.answered(long, 1, 2, 800.0)
        runs.effects.answered(short, 1, 2, 50.0)
    assert runs.longer(short) < runs.longer(stranger) < runs.longer(sibling) < runs.longer(long)
    assert runs.longer(stranger) == pytest.approx(1.0, abs=0.1)


def test_one_that_begins_later_knows_what_its_siblings_did():
    runs = Runs(0.4, 0.25)
    (first,) = runs.begin("group", 1)
    for _ in range(6):
        runs.effects.answered(first, 1, 2, 800.0)
    runs.end(first)
    (second,) = runs.begin("group", 1)
    assert runs.longer(second) > 1.2


def test_that_the_short_end_first_makes_no_difference_between_trajectories():
    """The worst case: all answers begin at once, and as they end they become longer and longer."""
    columns = Columns()
    effects = Effects(columns)
    tokens = np.random.default_rng(3).lognormal(5.0, 0.8, (2, 64, 8))
    ends = np.cumsum(tokens, axis=0)
    slots = [[columns.take() for _ in range(8)] for _ in range(64)]
    for number, group in enumerate(slots):
        for slot in group:
            effects.dispatched(slot, f"group {number}")
    for at in np.argsort(ends, axis=None):
        turn, number, member = np.unravel_index(at, ends.shape)
        effects.answered(slots[number][member], 1, 2, float(tokens[turn, number, member]))
    total, between_groups = effects.variances(Effect.ANSWER)
    assert total < 0.15  # 0.36 if the mean of those that have ended were not that of all so far
    assert between_groups < 0.06


def test_results_count_by_their_tokens_where_the_tail_is_not_a_lognormals():
    """A trajectory whose usual results are large has no larger giant ones, and these bring half of the tokens."""
    rng = np.random.default_rng(5)
    columns = Columns()
    effects = Effects(columns)
    told, came = [], []
    for _ in range(300):
        slot = columns.take()
        effects.dispatched(slot, None)
        usual = rng.normal(0.0, 0.6)
        for _ in range(12):
            effects.tell(slot, 2)
            giant = rng.random() < 0.03
            tokens = 60_000.0 if giant else 1_000.0 * np.exp(usual + rng.normal(0.0, 0.6))
            told.append(float(columns.larger[slot]))
            came.append(tokens)
            effects.returned(slot, 0, 2, None, tokens)
        effects.ended(slot)
        columns.release(slot)
    told, came = np.array(told[1000:]), np.array(came[1000:])
    high = told > np.quantile(told, 0.75)
    assert told[high].mean() < 1.6  # where a lognormal's would be 1.9
    assert came[high].mean() / came.mean() == pytest.approx(told[high].mean(), rel=0.25)


def test_memory_is_bounded_and_a_forgotten_group_does_no_harm():
    columns = Columns()
    effects = Effects(columns)
    slots = []
    for number in range(MAX_GROUPS + 5):
        slots.append(columns.take())
        effects.dispatched(slots[-1], f"group {number}")
    for slot in slots:
        effects.answered(slot, 0, 1, 100.0)
        effects.ended(slot)
    assert len(effects._groups) == MAX_GROUPS
    assert not effects._live


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 2), st.integers(1, 40), st.floats(0.0, 1e6), st.none() | st.floats(0, 1e6)
        ),
        max_size=120,
    )
)
def test_multiples_stay_within_their_bounds_whatever_comes(observed):
    runs = Runs(0.4, 0.2, groups=6)
    slots = [*runs.begin("a", 3), *runs.begin("b", 2), *runs.begin(None, 1)]
    for at, action, turn, value, appended in observed:
        slot = slots[at]
        runs.columns.action[slot] = action
        runs.effects.answered(slot, action, turn, value)
        runs.effects.returned(slot, action, turn, value, appended)
        runs.effects.tell(slot, turn)
    for name in ("longer", "slower", "larger"):
        multiples = getattr(runs.columns, name)
        assert np.all((multiples >= 0.25 - 1e-12) & (multiples <= 4.0 + 1e-12)), name
    for effect in Effect:
        total, between_groups = runs.effects.variances(effect)
        assert 0.0 <= between_groups <= total < 1.0
