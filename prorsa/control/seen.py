"""Forecasts that a policy sees instead of the predictor's own: perfect knowledge, in simulations and their replays."""

from typing import Final

import msgspec

from prorsa.events import Forecast, ForecastRow, ForecastTarget
from prorsa.forecast.frame import Frame, with_totals

PERFECT: Final = "perfect"
"""Source of the rows that hold what will really happen."""


def perfect_rows(future: dict[float, dict[str, float]]) -> tuple[ForecastRow, ...]:
    """What will happen, as forecast rows of the source ``perfect``.

    ``future`` holds for each horizon in seconds ``arrivals``, ``backlog``, ``decode_admission`` and ``kv_need``.
    """
    rows: list[ForecastRow] = []
    for horizon_s, demand in future.items():
        values: dict[ForecastTarget, float] = {
            "prefill": demand["backlog"] + demand["arrivals"],
            "decode_admission": demand["decode_admission"],
            "kv_need": demand["kv_need"],
        }
        rows += [
            ForecastRow(target=target, horizon_s=horizon_s, source=PERFECT, mean=value, p10=value, p50=value, p90=value)
            for target, value in values.items()
        ]
    return tuple(rows)


def with_perfect(frame: Frame, rows: tuple[ForecastRow, ...]) -> Frame:
    """The frame with the perfect rows as its totals."""
    return with_totals(frame, (msgspec.structs.replace(row, source="total") for row in rows))


def recorded_rows(event: Forecast) -> tuple[ForecastRow, ...]:
    """The perfect rows that a recorded forecast holds; none where the policy saw the predictor's own."""
    return tuple(row for row in event.rows if row.source == PERFECT)
