"""What Prorsa would have gained on a recorded run: the same trajectories, simulated as the pool ran and under Prorsa.

The recorded trajectories are run as they were, and a few times drawn anew with replacement, each time both ways. The
gain of a run is the ratio of the main figure; its interval is Student's prediction interval over the logarithms: where
the gain of one more such run is to be expected. Draws scatter around the recording; but the recording is itself one
run, which lies as far from what is usual as the run to come will. So that scatter counts twice. Where the interval
holds 1, no gain can be promised.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from prorsa.cluster.profile import Fit, Profile
from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError
from prorsa.figures import Figure, Run, main_figure, student_95
from prorsa.recordings import resampled
from prorsa.run import make_plan
from prorsa.simulate import simulate

DRAWS: Final = 5
"""Times that the trajectories are drawn anew: Student's factor falls little beyond."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to run the pool."""

    scenario: Scenario
    policy: str
    accepted_tokens: float = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The gain to expect of a run, as a factor.

    Attributes:
        figure: key of the run row that is compared.
        replayed: gain on the recorded trajectories as they were.
        gain, low, high: geometric mean, and where the gain of one more such run lies with 95 %.
        flips_per_hour: under Prorsa.
        present, prorsa: mean of the figure both ways.
        runs: pairs of runs.
    """

    figure: str
    replayed: float
    gain: float
    low: float
    high: float
    flips_per_hour: float
    present: float
    prorsa: float
    runs: int

    @property
    def verdict(self) -> str:
        """In words."""
        if self.low > 1.0:
            return f"a gain of {self.gain:.2f}x is to be expected ({self.low:.2f} to {self.high:.2f})"
        if self.high < 1.0:
            return f"a loss: {self.gain:.2f}x ({self.low:.2f} to {self.high:.2f}); keep what you have"
        return f"no gain: {self.gain:.2f}x, and 1 is within {self.low:.2f} to {self.high:.2f}"


def estimate(
    workload: Workload,
    present: Side,
    prorsa: Side,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Estimate:
    """Run the trajectories both ways.

    Raises:
        ConfigError: if a side cannot be simulated, or for no draw at all.
    """
    if draws < 2:
        raise ConfigError(f"draws is {draws}: an interval needs at least 2")
    workloads = drawn(workload, draws, seed)
    pairs: list[tuple[Run, Run]] = []
    for number, each in enumerate(workloads):
        progress(f"pair {number + 1} of {len(workloads)}")
        pairs.append((run_side(present, each, seed), run_side(prorsa, each, seed)))
    return estimated(pairs)


def drawn(workload: Workload, draws: int, seed: int) -> list[Workload]:
    """The workload as it was, and ``draws`` times drawn anew."""
    generator = np.random.default_rng(seed)
    return [workload, *(resampled(workload, generator) for _ in range(draws))]


def estimated(pairs: list[tuple[Run, Run]]) -> Estimate:
    """What pairs of runs, at least 2, as it is and under Prorsa, come to; the first is of the recording as it was."""
    figure = main_figure([run for pair in pairs for run in pair])
    logs = [math.log(figure.gain(_of(figure, new), _of(figure, old))) for old, new in pairs]
    mean, count = statistics.fmean(logs), len(logs)
    # Of the run to come and of the recording, each from what is usual; and of the mean over the draws.
    half = student_95(count - 1) * statistics.stdev(logs) * math.sqrt(2.0 + 1.0 / count)
    flips = sum(float(str(new["flips"])) for _, new in pairs)
    hours = sum(float(str(new["makespan_s"])) for _, new in pairs) / 3600.0
    return Estimate(
        figure=figure.key,
        replayed=math.exp(logs[0]),
        gain=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        flips_per_hour=flips / hours,
        present=statistics.fmean(_of(figure, old) for old, _ in pairs),
        prorsa=statistics.fmean(_of(figure, new) for _, new in pairs),
        runs=count,
    )


def _of(figure: Figure, run: Run) -> float:
    value = figure.of(run)
    assert value is not None
    return value


def run_side(side: Side, workload: Workload, seed: int) -> Run:
    """One run of a workload.

    Raises:
        ConfigError: if the side cannot be simulated.
    """
    plan = make_plan(side.scenario, policy=side.policy, run_id="estimate", seed=seed, scored=False)
    if side.accepted_tokens != 1.0:
        assert plan.control.profile is not None
        faster = speculative(plan.control.profile, side.accepted_tokens)
        plan = msgspec.structs.replace(plan, control=msgspec.structs.replace(plan.control, profile=faster))
    return simulate(plan, workload=workload)


def speculative(profile: Profile, accepted_tokens: float) -> Profile:
    """A profile whose decode steps give ``accepted_tokens`` tokens each: a token takes so much less time.

    What drafting and verifying cost beside it is not in this: it is the most that speculative decoding can give.

    Raises:
        ConfigError: for fewer than one token a step.
    """
    if not 1.0 <= accepted_tokens < math.inf:
        raise ConfigError(f"accepted tokens a step: {accepted_tokens}; give 1 or more")
    fit, experts = profile.decode, profile.experts
    decode = Fit(
        a_ms=fit.a_ms / accepted_tokens, b_ms=fit.b_ms / accepted_tokens, c_ms=fit.c_ms / accepted_tokens
    )  # fmt: skip
    table = tuple((tokens, ms / accepted_tokens) for tokens, ms in experts.decode)
    return msgspec.structs.replace(profile, decode=decode, experts=msgspec.structs.replace(experts, decode=table))
