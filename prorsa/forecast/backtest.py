"""Forecast errors over recorded runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from prorsa.clock import nanoseconds
from prorsa.events import Stamped
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.forecast.scoring import Scores


def backtest(
    runs: Iterable[Iterable[Stamped]], horizons_s: Sequence[float] = (5.0, 15.0, 30.0), tick_s: float = 1.0
) -> dict[str, Any]:
    """Forecast each run as if it were live, and score what then happened; pooled over the runs.

    Args:
        runs: for each run its events in order of ``hub_seq``.
        horizons_s: horizons to score.
        tick_s: time between forecasts.

    Returns:
        By target and horizon the errors of the forecast and of the baselines; see :meth:`Scores.summary`.

    Raises:
        ConfigError: for horizons that cannot be forecast.
    """
    config = ForecastConfig(horizons_s=tuple(horizons_s), scored_s=tuple(horizons_s))
    pooled = Scores(horizons_s)
    for run in runs:
        predictor = Predictor(config)
        _drive(predictor, run, nanoseconds(tick_s))
        predictor.finish()
        pooled.merge(predictor.scores)
    return pooled.summary()


def _drive(predictor: Predictor, run: Iterable[Stamped], tick_ns: int) -> None:
    """Tick at whole multiples of ``tick_ns`` from the first event on, each after the events up to then."""
    next_ns: int | None = None
    for stamped in run:
        if next_ns is None:
            next_ns = -(-stamped.t_ns // tick_ns) * tick_ns
        while stamped.t_ns > next_ns:
            predictor.tick(next_ns)
            next_ns += tick_ns
        predictor.observe(stamped)
    if next_ns is not None:
        predictor.tick(next_ns)
