"""ARIMA beside the other baselines: statsforecast's, offline only, on the series that the baselines are fed.

Its order and coefficients are found by AutoARIMA on the seconds so far, first after two minutes and again each time the
run has doubled in length; in between the fitted model goes on over the new seconds. So it never sees the future, and
knows more of the run at hand than parameters tuned on other seeds would tell it.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prorsa.clock import nanoseconds
from prorsa.errors import ConfigError
from prorsa.events import ForecastTarget
from prorsa.forecast.windows import Observer, Point, Window

ARIMA: Final = "arima"
FIRST_FIT: Final = 120
"""Seconds of a series before the first fit."""
MEMORY: Final = 600
"""Seconds of a series that a fit looks at, and that the model is run over before it forecasts."""
EVERY: Final = 5
"""Ticks between two forecasts that are scored."""


def add_arima(observer: Observer, windows: Sequence[Window]) -> None:
    """Let ARIMA forecast every fifth tick of a run; its windows there gain the forecast.

    Raises:
        ConfigError: if statsforecast is not installed.
    """
    points: dict[tuple[ForecastTarget, float, int], Point] = {}
    horizons_s = sorted({window.horizon_s for window in windows})
    for target, series in observer.series.items():
        for at, ahead in _forecasts(np.array(series), int(max(horizons_s))):
            t_ns = nanoseconds(observer.ticks_s[at])
            for horizon_s in horizons_s:
                path = ahead[: int(horizon_s)]
                arrivals = float(path.max() if target == "kv_need" else path.sum())
                known = observer.known.get((target, horizon_s, t_ns), 0.0)
                points[target, horizon_s, t_ns] = _point(target, max(arrivals, 0.0), known)
    for window in windows:
        point = points.get((window.target, window.horizon_s, nanoseconds(window.tick_s)))
        if point is not None:
            window.forecasts[ARIMA] = point


def _point(target: ForecastTarget, expected: float, known: float) -> Point:
    """As the other baselines: prefill's backlog is known and comes on top, admissions are forecast as a whole."""
    if target == "prefill":
        return Point(known + expected, expected)
    return Point(expected, max(expected - known, 0.0))


def _forecasts(series: NDArray[np.float64], longest: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(tick, the values expected at the next ``longest`` ticks), every fifth tick from the first fit on."""
    model: Any = None
    fitted_at = 0
    for at in range(FIRST_FIT, len(series), EVERY):
        past = series[max(at + 1 - MEMORY, 0) : at + 1]
        if not past.any():
            continue
        with warnings.catch_warnings():
            # Its optimiser warns of every step that it takes back.
            warnings.simplefilter("ignore")
            if model is None or at >= 2 * fitted_at:
                model, fitted_at = _auto().fit(past), at
            yield at, np.asarray(model.forward(past, h=longest)["mean"], np.float64)


def _auto() -> Any:  # noqa: ANN401 - statsforecast has no types
    try:
        from statsforecast.models import AutoARIMA
    except ImportError as error:
        raise ConfigError(f"ARIMA needs statsforecast ({error.name}): pip install 'prorsa[baselines]'") from error
    return AutoARIMA(season_length=1, max_p=3, max_q=3, approximation=True)
