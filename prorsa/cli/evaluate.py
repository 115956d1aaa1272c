"""``evaluate``: one policy against others on scenarios and seeds that nobody tuned on, with a report and a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from prorsa.cli.batch import SimulateOptions, run_all
from prorsa.cli.output import narrate, print_json
from prorsa.errors import ConfigError, InputError
from prorsa.figures import Figure, Gain, Run, main_figure, paired_gain
from prorsa.tuning import settle

AGAINST: Final = ("analytic", "static:best", "colocated:tuned", "reactive", "dynamo-like")
TOLERANCE: Final = 0.02
"""A loss counts only where the whole interval lies beyond this."""


class Duel(NamedTuple):
    """A policy against another on one scenario."""

    scenario: str
    other: str
    figure: str
    gain: Gain
    worst_seed: int
    worst: float
    bound: int

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or ``even`` where the interval does not tell."""
        if self.gain.low is None or self.gain.high is None:
            return "one seed"
        if self.gain.low > 1.0:
            return "better"
        return "worse" if self.gain.high < 1.0 - TOLERANCE else "even"


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """What ``prorsa evaluate`` is given."""

    policy: str
    simulations: SimulateOptions
    report: Path | None


def run_evaluate(options: EvaluateOptions) -> int:
    """Run all policies, compare and report."""
    simulations = options.simulations
    plans = simulations.plans()
    with simulations.executor() as executor:
        settled = settle(plans, lambda tries: run_all(tries, [None] * len(tries), executor))
        runs = run_all(settled, [None] * len(settled), executor)
    found = duels(options.policy, runs)
    if options.report is not None:
        write_report(options.policy, found, options.report)
        narrate(f"report: {options.report / 'evaluation.md'}")
    if simulations.as_json:
        print_json({"policy": options.policy, "duels": [_plain(duel) for duel in found]})
    else:
        print(table(options.policy, found))
    return 0


def duels(policy: str, runs: Sequence[Run]) -> list[Duel]:
    """The policy against every other, scenario by scenario, paired by seed.

    Raises:
        InputError: if there is nothing to compare with.
    """
    found = []
    for scenario in dict.fromkeys(str(run["scenario"]) for run in runs):
        here = [run for run in runs if run["scenario"] == scenario]
        figure = main_figure(here)
        own = [run for run in here if run["policy"] == policy]
        for other in dict.fromkeys(str(run["policy"]) for run in here if run["policy"] != policy):
            rivals = [run for run in here if run["policy"] == other]
            gain = paired_gain(figure, own, rivals)
            if gain is not None:
                found.append(_duel(scenario, other, figure, gain, own, rivals))
    if not found:
        raise InputError("evaluate: no policy to compare with, or none with the scenario's main figure")
    return found


def _duel(scenario: str, other: str, figure: Figure, gain: Gain, own: Sequence[Run], rivals: Sequence[Run]) -> Duel:
    by_seed = {run["seed"]: run for run in rivals}
    ratios = {
        int(str(run["seed"])): figure.gain(value, against)
        for run in own
        if (value := figure.of(run)) and run["seed"] in by_seed and (against := figure.of(by_seed[run["seed"]]))
    }
    worst_seed = min(ratios, key=lambda seed: ratios[seed])
    bound = sum(bool(run["bound_by_trajectory"]) for run in [*own, *rivals])
    return Duel(scenario, other, figure.key, gain, worst_seed, ratios[worst_seed], bound)


def _plain(duel: Duel) -> dict[str, object]:
    return {**duel._asdict(), "gain": duel.gain._asdict(), "verdict": duel.verdict}


def table(policy: str, found: Sequence[Duel]) -> str:
    """The comparison as markdown."""
    lines = [
        f"| scenario | `{policy}` over | by | gain | 95 % | | worst seed | at it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for duel in found:
        low, high = duel.gain.low, duel.gain.high
        interval = "" if low is None else f"{low:.3f}–{high:.3f}"
        mark = " †" if duel.bound else ""
        lines.append(
            f"| {duel.scenario}{mark} | `{duel.other}` | {duel.figure} | {duel.gain.mean:.3f}× | {interval} | "
            f"{duel.verdict} | {duel.worst_seed} | {duel.worst:.3f}× |"
        )
    return "\n".join(lines)


def write_report(policy: str, found: Sequence[Duel], directory: Path) -> None:
    """Write ``evaluation.md`` and ``evaluation.png``.

    Raises:
        ConfigError: if matplotlib is not installed, or the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _picture(policy, found, directory / "evaluation.png")
        text = f"# `{policy}` against others\n\n{table(policy, found)}\n\n{_NOTES}\n\n![Gains](evaluation.png)\n"
        (directory / "evaluation.md").write_text(text)
    except ImportError as error:
        raise ConfigError("--report needs matplotlib: pip install 'prorsa[plots]'") from error
    except OSError as error:
        raise ConfigError(f"--report {directory}: {error.strerror}; name a directory that can be written") from error


_NOTES: Final = (
    "Gains are geometric means over paired seeds with Student's 95 % interval. *worse* is said only where the whole "
    f"interval lies beyond {TOLERANCE:.0%}. † bound by its longest trajectory in some run."
)


def _picture(policy: str, found: Sequence[Duel], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9.0, 1.2 + 0.32 * len(found)), layout="constrained")
    names = [f"{duel.scenario}: {duel.other}" for duel in found]
    for at, duel in enumerate(found):
        _bar(axis, at, duel)
    axis.axvline(1.0, color="#666666", lw=0.8)
    axis.set_yticks(range(len(found)), names)
    axis.invert_yaxis()
    axis.set_xscale("log")
    ticks = _ticks([duel.gain.mean for duel in found] + [duel.worst for duel in found])
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(f"gain of {policy} (right of the line: better; cross: its worst seed)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bar(axis: Any, at: int, duel: Duel) -> None:  # noqa: ANN401 - matplotlib is not there where types are checked
    colour = {"better": "#0072B2", "worse": "#D55E00"}.get(duel.verdict, "#666666")
    low = duel.gain.mean if duel.gain.low is None else duel.gain.low
    high = duel.gain.mean if duel.gain.high is None else duel.gain.high
    axis.plot([low, high], [at, at], color=colour, lw=2)
    axis.plot(duel.gain.mean, at, "o", color=colour)
    axis.plot(duel.worst, at, "x", color=colour, ms=5)


def _ticks(values: Sequence[float]) -> list[float]:
    grid = [0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0]
    low, high = min(0.9, *values), max(1.1, *values)
    return [tick for tick in grid if math.log(low) - 0.1 <= math.log(tick) <= math.log(high) + 0.1]


def against(given: Sequence[str] | None, policy: str) -> tuple[str, ...]:
    """What to compare with: the given policies, or the usual ones, the policy itself first."""
    others = [name for name in (given or AGAINST) if name != policy]
    return (policy, *dict.fromkeys(others))
