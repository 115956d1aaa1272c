"""The rasters: what is drawn is what is known."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from prorsa.console.components.charts import (
    bar,
    demand_raster,
    nice_ceiling,
    peak,
    ratio_cells,
    sparkline,
    split_raster,
)
from prorsa.console.components.decisions import DecisionPanel, alternative_lines
from prorsa.console.history import DemandPoint
from prorsa.console.look import ASCII, DARK, UNICODE, Look
from prorsa.console.model import ConsoleModel
from prorsa.events import Alternative, Split
from tests.console import story

LOOKS = (Look(), Look(UNICODE, colour=False), Look(ASCII), Look(ASCII, colour=False))
splits = st.builds(Split, *(st.integers(min_value=0, max_value=12) for _ in range(4)))


@given(splits, st.integers(min_value=1, max_value=60), st.sampled_from(LOOKS))
def test_the_ratio_bar_fills_its_width(split: Split, width: int, look: Look) -> None:
    assert len(ratio_cells(split, width, look)) == width


def test_the_ratio_bar_gives_each_role_its_share_and_its_letter() -> None:
    cells = ratio_cells(Split(2, 6), 40, Look())
    grounds = [style.bgcolor.name for _, style in cells]
    assert grounds.count(DARK.prefill.lower()) == 10
    assert grounds.count(DARK.decode.lower()) == 30
    text = "".join(char for char, _ in cells)
    assert "2P" in text
    assert "6D decode" in text


def test_an_unknown_split_is_no_bar() -> None:
    assert "".join(char for char, _ in ratio_cells(None, 10, Look())).strip() == ""


@given(
    st.lists(st.none() | splits, min_size=1, max_size=30),
    st.integers(min_value=1, max_value=12),
    st.sampled_from(LOOKS),
)
def test_the_split_chart_leaves_unknown_columns_empty(columns: list[Split | None], height: int, look: Look) -> None:
    raster = split_raster(columns, height, look)
    assert len(raster) == height
    for index, split in enumerate(columns):
        drawn = [row[index] for row in raster]
        if split is None:
            assert all(char == " " and style is None for char, style in drawn)
        assert len(drawn) == height


def test_the_split_chart_tiles_exactly_where_the_height_is_that_of_the_pool() -> None:
    raster = split_raster([Split(3, 4, 0, 1)], 8, Look())
    grounds = [row[0][1].bgcolor.name for row in reversed(raster)]
    assert grounds[:3] == [DARK.prefill.lower()] * 3
    assert grounds[4:] == [DARK.decode.lower()] * 4


def test_without_colour_the_roles_have_patterns() -> None:
    text = "".join(row[0][0] for row in split_raster([Split(4, 4)], 8, Look(ASCII)))
    assert text == "ddddPPPP"


def points(*values: float | None) -> list[DemandPoint | None]:
    return [None if value is None else DemandPoint(0.0, value * 0.8, value, value * 1.2, value) for value in values]


@given(st.lists(st.none() | st.floats(min_value=0, max_value=1e6), min_size=2, max_size=40), st.sampled_from(LOOKS))
def test_a_demand_chart_draws_every_value_and_nothing_where_nothing_is_known(
    values: list[float | None], look: Look
) -> None:
    known = points(*values)
    raster = demand_raster(known, 6, nice_ceiling(peak(known)), look, colour=DARK.prefill, band="#112233")
    assert [len(row) for row in raster] == [len(values) // 2] * 6
    for column in range(len(values) // 2):
        pair = values[2 * column : 2 * column + 2]
        drawn = any(row[column][0] != " " or row[column][1] is not None for row in raster)
        if pair == [None, None]:
            assert not drawn
        if pair[0] is not None:
            assert drawn


def test_a_forecast_that_has_not_settled_has_a_band_and_no_actual() -> None:
    unsettled = [DemandPoint(0.0, 20.0, 50.0, 90.0)] * 4
    raster = demand_raster(unsettled, 4, 100.0, Look(UNICODE, colour=False), colour=DARK.prefill, band="#112233")
    text = "".join(char for row in raster for char, _ in row)
    assert set(text) <= {"░", " "}
    assert "░" in text


@given(st.floats(min_value=1, max_value=1e12))
def test_the_axis_ends_at_a_round_number_above_the_peak(tokens: float) -> None:
    assert tokens <= nice_ceiling(tokens) <= tokens * 1.5


def test_unknown_in_a_sparkline_is_a_blank_and_zero_is_not() -> None:
    assert sparkline([None, 0.0, 10.0], 10.0, Look()) == " ▁█"


@given(
    st.none() | st.floats(min_value=0, max_value=1.5), st.integers(min_value=0, max_value=30), st.sampled_from(LOOKS)
)
def test_a_bar_is_as_wide_as_asked_and_an_unknown_one_is_not_empty(
    fraction: float | None, width: int, look: Look
) -> None:
    drawn = bar(fraction, width, look)
    assert len(drawn) == width
    if fraction is None and width:
        assert drawn != bar(0.0, width, look)


def test_bars_of_alternatives_grow_with_their_cost_below_zero_too() -> None:
    """A policy that counts gains has negative costs: what gains most is the cheapest, with the shortest bar."""
    costs = {1: 40.0, 2: -5.0, 3: -80.0}
    options = tuple(Alternative(Split(prefill, 8 - prefill), cost=cost) for prefill, cost in costs.items())
    decision = msgspec.structs.replace(story.decision_at(10.0), alternatives=options, chosen=Split(3, 5))
    panel = DecisionPanel(ConsoleModel(), Look())
    drawn = alternative_lines(panel, decision, 60, bar_cells=10)
    lines = ["".join(part.text for part in line.segments) for line in drawn]
    assert [line.split()[-1] for line in lines] == ["-80", "-5", "40"]
    assert [line.count("█") for line in lines] == [0, 6, 10]


def test_without_a_cost_no_alternative_is_drawn() -> None:
    decision = msgspec.structs.replace(story.decision_at(10.0), alternatives=(Alternative(Split(4, 4)),))
    assert alternative_lines(DecisionPanel(ConsoleModel(), Look()), decision, 60, bar_cells=10) == []
