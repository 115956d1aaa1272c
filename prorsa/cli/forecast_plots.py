"""Pictures of a backtest: forecast against actual, error by horizon and phase, reliability of the quantiles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from prorsa.errors import ConfigError
from prorsa.events import ForecastTarget
from prorsa.forecast.measures import by_phase
from prorsa.forecast.windows import LIFECYCLE, Window

TARGETS: Final[dict[ForecastTarget, str]] = {
    "prefill": "prefill (uncached tokens)",
    "decode_admission": "decode admission (KV tokens)",
    "kv_need": "KV need (tokens)",
}
COLOURS: Final = {
    LIFECYCLE: "#0072B2",
    "last": "#999999",
    "ewma": "#E69F00",
    "kalman": "#CC79A7",
    "arima": "#009E73",
    "oracle": "#000000",
}
"""Distinct under the three colour blindnesses (Okabe and Ito)."""

_LABELS: Final = {LIFECYCLE: "Prorsa", "oracle": "oracle (sampled)"}

_ENOUGH: Final = 20
"""Windows from which on shares of them say something about quantiles."""

Runs = Sequence[tuple[str, Sequence[Window]]]


def draw(runs: Runs, directory: Path) -> None:
    """Write ``timeline-NAME.png`` for each run, ``errors.png`` and ``reliability.png``.

    Raises:
        ConfigError: if matplotlib is not installed, or the directory cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError("--plots needs matplotlib: pip install 'prorsa[plots]'") from error
    mpl.use("Agg")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plots {directory}: {error.strerror}; name a directory that can be written") from error
    windows = [window for _, settled in runs for window in settled]
    for name, settled in runs:
        _timeline(name, settled, directory / f"timeline-{name}.png")
    _errors(windows, directory / "errors.png")
    _reliability(windows, directory / "reliability.png")


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:  # noqa: ANN401 - matplotlib is not there where types are checked
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=110)
    plt.close(figure)


def _timeline(name: str, windows: Sequence[Window], path: Path) -> None:
    """Forecast and actual over the run, at the horizon nearest to 15 s."""
    horizons = {window.horizon_s for window in windows}
    if not horizons:
        return
    horizon_s = min(horizons, key=lambda h: abs(h - 15.0))
    figure, axes = _figure(len(TARGETS), 1, (11.0, 8.5))
    for axis, (target, label) in zip(axes[:, 0], TARGETS.items(), strict=True):
        rows = sorted((w for w in windows if (w.target, w.horizon_s) == (target, horizon_s)), key=lambda w: w.tick_s)
        _trace(axis, rows)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0.0)
        axis.yaxis.set_major_formatter(_thousands())
    axes[0, 0].set_title(f"{name}: demand of the next {horizon_s:g} s, as forecast and as it came", loc="left")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    axes[-1, 0].set_xlabel("run time of the forecast (s)")
    _save(figure, path)


def _trace(axis: Any, rows: Sequence[Window]) -> None:  # noqa: ANN401
    at = [window.tick_s for window in rows]
    own = [window.forecasts[LIFECYCLE] for window in rows]
    low, high = [point.p10 or 0.0 for point in own], [point.p90 or 0.0 for point in own]
    axis.fill_between(at, low, high, color=COLOURS[LIFECYCLE], alpha=0.2, lw=0, label="p10-p90")
    axis.plot(at, [window.actual for window in rows], color="#D55E00", lw=1.2, label="actual")
    axis.plot(at, [point.total for point in own], color=COLOURS[LIFECYCLE], lw=1.2, label="Prorsa, p50")
    seen = [(window.tick_s, window.forecasts["oracle"]) for window in rows if "oracle" in window.forecasts]
    if seen:
        middle = [point.total for _, point in seen]
        spread = [[p.total - (p.p10 or 0.0) for _, p in seen], [(p.p90 or 0.0) - p.total for _, p in seen]]
        axis.errorbar(
            [t for t, _ in seen], middle, yerr=spread, fmt=".", color="black", lw=1, label="oracle, p10-p50-p90"
        )
    if rows:
        axis.margins(x=0.01)


def _errors(windows: Sequence[Window], path: Path) -> None:
    """WAPE of each forecast by horizon (a column each target) and phase (a row each)."""
    phases = {name: cells for name, cells in by_phase(windows).items() if name != "all"}
    figure, axes = _figure(max(len(phases), 1), len(TARGETS), (11.0, 2.2 * max(len(phases), 1) + 0.8))
    for row, (phase, cells) in enumerate(phases.items()):
        for column, (target, label) in enumerate(TARGETS.items()):
            axis = axes[row, column]
            horizons = sorted((float(h) for t, h in cells if t == target))
            for name, colour in COLOURS.items():
                points = [
                    (h, errors.wape)
                    for h in horizons
                    if (errors := cells[target, f"{h:g}"].errors.get(name)) and errors.wape is not None
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=_LABELS.get(name, name))
            axis.set_title(label if row == 0 else "", loc="left", fontsize=10)
            axis.set_ylim(bottom=0.0)
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
            axis.set_xticks(horizons)
        axes[row, 0].set_ylabel(f"{phase}\nWAPE")
    for axis in axes[-1]:
        axis.set_xlabel("horizon (s)")
    if phases:
        # The last row is of all transients: whoever spoke in one of them is there.
        figure.legend(*axes[-1, 0].get_legend_handles_labels(), loc="outside upper right", ncols=6, frameon=False)
    _save(figure, path)


def _reliability(windows: Sequence[Window], path: Path) -> None:
    """How often the actual lay below p10, p50 and p90: on the diagonal where the quantiles are right."""
    figure, axes = _figure(1, len(TARGETS), (11.0, 3.8))
    for axis, (target, label) in zip(axes[0], TARGETS.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="#BBBBBB", lw=1)
        for name in (LIFECYCLE, "oracle"):
            for horizon_s, style in ((5.0, ":"), (15.0, "-"), (30.0, "--")):
                below = _below(windows, target, horizon_s, name)
                if below:
                    axis.plot((0.1, 0.5, 0.9), below, style, marker="o", ms=4, color=COLOURS[name],
                              label=f"{_LABELS[name]}, {horizon_s:g} s")  # fmt: skip
        axis.set_title(label, loc="left", fontsize=10)
        axis.set_xlabel("said")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
    axes[0, 0].set_ylabel("share of actuals below")
    axes[0, 0].legend(frameon=False, fontsize=8)
    _save(figure, path)


def _below(windows: Sequence[Window], target: str, horizon_s: float, name: str) -> list[float]:
    points = [
        (window.actual, point)
        for window in windows
        if (window.target, window.horizon_s) == (target, horizon_s)
        and window.actual > 0
        and (point := window.forecasts.get(name)) is not None
    ]
    if len(points) < _ENOUGH:
        return []
    cuts = ([p.p10 or 0.0 for _, p in points], [p.total for _, p in points], [p.p90 or 0.0 for _, p in points])
    return [sum(a <= cut for (a, _), cut in zip(points, cut_values, strict=True)) / len(points) for cut_values in cuts]


def _thousands() -> Any:  # noqa: ANN401
    from matplotlib.ticker import EngFormatter

    return EngFormatter()
