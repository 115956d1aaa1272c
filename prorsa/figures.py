"""The main figure of a run, and comparisons of policies by it, paired by seed."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

Run = Mapping[str, object]


class Figure(NamedTuple):
    """What runs are compared by: a key of the run row, and whether more is better."""

    key: str
    more_is_better: bool

    def of(self, run: Run) -> float | None:
        """The figure of a run; None where it has none."""
        value = run[self.key]
        return float(value) if isinstance(value, int | float) else None

    def gain(self, value: float, reference: float) -> float:
        """How many times better ``value`` is than ``reference``."""
        return value / reference if self.more_is_better else reference / value


STEADY: Final = Figure("steady_output_tokens_per_s", more_is_better=True)
STEP: Final = Figure("step_s", more_is_better=False)
MAKESPAN: Final = Figure("makespan_s", more_is_better=False)
_LIMIT: Final = Figure("limit_makespan_s", more_is_better=False)


def main_figure(runs: Sequence[Run]) -> Figure:
    """The main figure of runs of one scenario; the makespan where one of them does not have it."""
    for figure in (STEADY, STEP):
        if all(figure.of(run) is not None for run in runs):
            return figure
    return MAKESPAN


class Gain(NamedTuple):
    """How many times better than the reference: mean over paired seeds, and its 95 % interval (None for one seed)."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def paired_gain(figure: Figure, runs: Sequence[Run], reference: Sequence[Run]) -> Gain | None:
    """The geometric mean gain over the seeds that both have; None where they share none that has the figure.

    The interval is Student's over the logarithms of the seeds' ratios.
    """
    by_seed = {run["seed"]: figure.of(run) for run in reference}
    logs = [
        math.log(figure.gain(value, other))
        for run in runs
        if (value := figure.of(run)) and (other := by_seed.get(run["seed"]))
    ]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Gain(math.exp(mean), None, None, 1)
    half = student_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy in one scenario, over its seeds.

    Attributes:
        mean: of the main figure; None where a seed does not have it.
        gain: over the first policy; None for that policy itself.
        mark: ``best`` or ``worst`` by the mean, where there are several policies that differ; else empty.
        bound: runs that are bound by their longest trajectory.
        limit_makespan_s: mean of the physical limit.
    """

    policy: str
    runs: tuple[Run, ...]
    mean: float | None
    gain: Gain | None
    mark: str
    bound: int
    limit_makespan_s: float | None

    def mean_of(self, key: str) -> float | None:
        """Mean of a key of the run row over the seeds; None where one does not have it."""
        return _mean(Figure(key, more_is_better=True).of(run) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The policies of one scenario by its main figure, in the order in which they were given."""

    scenario: str
    figure: Figure
    standings: tuple[Standing, ...]

    def to_json(self) -> dict[str, object]:
        """As the command line prints it."""
        return {
            "scenario": self.scenario,
            "figure": self.figure.key,
            "reference": self.standings[0].policy,
            "policies": [
                {
                    "policy": standing.policy,
                    "mean": standing.mean,
                    "gain": None if standing.gain is None else standing.gain._asdict(),
                    "mark": standing.mark or None,
                    "bound_by_trajectory": standing.bound,
                    "limit_makespan_s": standing.limit_makespan_s,
                }
                for standing in self.standings
            ],
        }


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """A comparison for each scenario, with the first policy as the reference."""
    scenarios = dict.fromkeys(str(run["scenario"]) for run in runs)
    return [_compare(name, [run for run in runs if run["scenario"] == name]) for name in scenarios]


def _compare(scenario: str, runs: Sequence[Run]) -> Comparison:
    figure = main_figure(runs)
    names = dict.fromkeys(str(run["policy"]) for run in runs)
    by_policy = {name: tuple(run for run in runs if run["policy"] == name) for name in names}
    means = {name: _mean(figure.of(run) for run in own) for name, own in by_policy.items()}
    reference = next(iter(by_policy.values()))
    standings = tuple(
        Standing(
            policy=name,
            runs=own,
            mean=means[name],
            gain=None if own is reference else paired_gain(figure, own, reference),
            mark=_mark(means, name, figure),
            bound=sum(bool(run["bound_by_trajectory"]) for run in own),
            limit_makespan_s=_mean(_LIMIT.of(run) for run in own),
        )
        for name, own in by_policy.items()
    )
    return Comparison(scenario, figure, standings)


def _mark(means: Mapping[str, float | None], name: str, figure: Figure) -> str:
    known = {policy: mean for policy, mean in means.items() if mean is not None}
    if name not in known or len(set(known.values())) < 2:
        return ""
    best, worst = (max, min) if figure.more_is_better else (min, max)
    if known[name] == best(known.values()):
        return "best"
    return "worst" if known[name] == worst(known.values()) else ""


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else statistics.fmean(value for value in known if value is not None)


_STUDENT_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


def student_95(freedom: int) -> float:
    """Half width of a 95 % interval in standard errors; beyond 30 degrees of freedom within 0.2 % (expansion)."""
    if freedom <= len(_STUDENT_975):
        return _STUDENT_975[freedom - 1]
    normal = 1.959964
    return normal + (normal**3 + normal) / (4 * freedom)
