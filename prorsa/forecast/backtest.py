"""Forecast errors over recorded runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from prorsa.events import Stamped
from prorsa.forecast.measures import by_live, by_phase, summaries
from prorsa.forecast.scoring import Scores
from prorsa.forecast.windows import Observer, Window


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
    observers = []
    for run in runs:
        observer = Observer(horizons_s, tick_s)
        observer.feed(run)
        observer.finish()
        observers.append(observer)
    return _pooled(observers, horizons_s)


def report(runs: Sequence[tuple[Observer, Sequence[Window]]], horizons_s: Sequence[float]) -> dict[str, Any]:
    """Errors of runs that have been forecast, pooled.

    Returns:
        ``forecast`` as :func:`backtest`; ``phases`` and ``live`` the measures of every forecast by phase (and over all
        ``transient`` ones, and ``all``) and by live trajectories, then by target and horizon; ``sampled`` as ``phases``
        over those windows alone in which every forecast spoke, so that they can be compared.
    """
    windows = [window for _, settled in runs for window in settled]
    names = {name for window in windows for name in window.forecasts}
    sampled = [window for window in windows if window.forecasts.keys() == names]
    return {
        "forecast": _pooled([observer for observer, _ in runs], horizons_s),
        "phases": {name: summaries(cells) for name, cells in by_phase(windows).items()},
        "sampled": {name: summaries(cells) for name, cells in by_phase(sampled).items()},
        "live": {name: summaries(cells) for name, cells in by_live(windows).items()},
    }


def _pooled(observers: Sequence[Observer], horizons_s: Sequence[float]) -> dict[str, Any]:
    pooled = Scores(horizons_s)
    for observer in observers:
        pooled.merge(observer.predictor.scores)
    return pooled.summary()
