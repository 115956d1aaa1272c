"""``prorsa backtest``: the forecast's errors over recordings, session files and scenarios."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorsa.bus.journal import JournalReader
from prorsa.cli.options import horizons, journal_in
from prorsa.cli.output import narrate, percent, print_json, print_table
from prorsa.cluster.scenario import load_scenario, scenario_names
from prorsa.errors import InputError
from prorsa.forecast.backtest import report
from prorsa.forecast.windows import Observer, Window
from prorsa.run import RunPlan, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestOptions:
    """What ``prorsa backtest`` is given."""

    inputs: tuple[str, ...]
    horizon: str
    scenario: str
    policy: str | None
    seeds: tuple[int, ...]
    workers: int | None
    concurrency: int | None
    until_s: float | None
    oracle: int
    arima: bool
    plots: Path | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that has been forecast."""

    name: str
    observer: Observer
    windows: list[Window]


def run_backtest(options: BacktestOptions) -> int:
    """Forecast every input as if it were live, and print the errors of all together."""
    if not options.inputs:
        raise InputError(
            "backtest: name a journal directory, a session file or a scenario, as in `prorsa backtest RUN_DIR/journal`"
        )
    wanted = horizons(options.horizon)
    sources = [source for name in options.inputs for source in _sources(name, options)]
    runs = [_forecast(source, wanted, options) for source in sources]
    if options.arima:
        from prorsa.arima import add_arima

        for run in runs:
            narrate(f"{run.name}: ARIMA")
            add_arima(run.observer, run.windows)
    result = report([(run.observer, run.windows) for run in runs], wanted)
    if options.plots is not None:
        from prorsa.cli.forecast_plots import draw

        draw([(run.name, run.windows) for run in runs], options.plots)
        narrate(f"pictures are in {options.plots}")
    if options.as_json:
        print_json({"runs": [run.name for run in runs], **result})
    else:
        _print(result)
    return 0


def _sources(name: str, options: BacktestOptions) -> Iterator[Path | RunPlan]:
    """What an argument means: a journal, or a plan for each seed."""
    sessions = name.endswith((".csv", ".csv.gz"))
    if not sessions and not name.endswith(".toml") and name not in scenario_names():
        yield journal_in(Path(name))
        return
    scenario = load_scenario(options.scenario if sessions else name).with_overrides(
        workers=options.workers, concurrency=options.concurrency
    )
    half = scenario.initial_prefill
    for seed in options.seeds:
        yield make_plan(
            scenario,
            policy=options.policy or f"static:{half}:{scenario.workers - half}",
            run_id=f"{Path(name).name}-{seed}",
            seed=seed,
            sessions=Path(name) if sessions else None,
            scored=False,
            batch=True,
        )


def _forecast(source: Path | RunPlan, horizons_s: Sequence[float], options: BacktestOptions) -> _Run:
    if isinstance(source, Path):
        observer = Observer(horizons_s)
        observer.feed(JournalReader(source).read())
        return _Run(source.name, observer, observer.finish())
    from prorsa.backtest import ORACLE, attach, backtest_run, is_frozen, oracle_points, sample_ticks

    narrate(f"{source.run_id}: {source.control.policy}")
    run = backtest_run(source, horizons_s, until_s=options.until_s or float("inf"))
    if options.oracle:
        if not is_frozen(source):
            raise InputError(
                f"--oracle: it knows a frozen split, not {source.control.policy}; give --policy static:P:D"
            )
        ticks = sample_ticks(run.windows, options.oracle)
        points = oracle_points(source, ticks, horizons_s, progress=lambda text: narrate(f"{source.run_id}: {text}"))
        attach(run.windows, ORACLE, points)
    return _Run(source.run_id, run.observer, run.windows)


# --- printing -------------------------------------------------------------------------------------------------------


def _print(result: dict[str, Any]) -> None:
    """Every forecast's WAPE by phase: over all windows, and where some spoke seldom, over those of all alike."""
    _print_phases(result["phases"], "all windows that have been settled")
    if result["sampled"] != result["phases"]:
        _print_phases(result["sampled"], "windows in which every forecast spoke")


def _print_phases(phases: dict[str, Any], title: str) -> None:
    names = _names(phases.get("all", {}))
    rows = []
    for phase, targets in phases.items():
        for target, by_horizon in targets.items():
            for horizon, cell in by_horizon.items():
                own = cell["forecasts"].get("lifecycle", {})
                errors = (percent(cell["forecasts"].get(name, {}).get("wape")) for name in names)
                more = (percent(own.get(name)) for name in ("wape_arrivals", "bias", "coverage_80", "pinball"))
                rows.append([phase, target, horizon, str(cell["windows"]), *errors, *more])
    columns = ("phase", "target", "horizon s", "windows", *names, "arrivals", "bias", "p10-p90", "pinball")
    print_table(columns, rows, title=title)


def _names(targets: dict[str, dict[str, Any]]) -> list[str]:
    cells = [cell for by_horizon in targets.values() for cell in by_horizon.values()]
    return list(dict.fromkeys(name for cell in cells for name in cell["forecasts"]))
