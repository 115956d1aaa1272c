"""Fitted statistics of agent workloads: what the generators draw from, as files that the package carries.

``scripts/fit_workloads.py`` makes the files; ``docs/workloads.md`` describes the model and how well it fits.
"""

from bisect import bisect_right
from functools import cache
from importlib import resources

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.errors import ConfigError

Floats = NDArray[np.float64]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution of values >= 0, by its values at the standard-normal scores of :attr:`Fitted.scores`."""

    values: tuple[float, ...]

    def at(self, scores: Floats, grid: Floats) -> Floats:
        """Values at ``scores``: linear between the points of ``grid``, constant beyond them."""
        values: Floats = np.interp(scores, grid, np.asarray(self.values))
        return values


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piecewise constant function: ``values[i]`` from ``edges[i - 1]`` (inclusive) up to ``edges[i]``."""

    edges: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: Floats) -> Floats:
        """Values at ``x``."""
        values: Floats = np.asarray(self.values, dtype=np.float64)[np.searchsorted(self.edges, x, side="right")]
        return values

    def one(self, x: float) -> float:
        """The value at one ``x``."""
        return self.values[bisect_right(self.edges, x)]


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lognormal distribution of seconds by its median and 99th percentile."""

    median_s: float
    p99_s: float

    def at(self, scores: Floats) -> Floats:
        """Seconds at standard-normal ``scores``."""
        return np.asarray(self.median_s * np.exp(self._sigma * scores))

    def scores(self, seconds: Floats) -> Floats:
        """Standard-normal scores of ``seconds``; -inf for 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(seconds / self.median_s) / self._sigma)

    @property
    def _sigma(self) -> float:
        return float(np.log(self.p99_s / self.median_s) / 2.3263)


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an answer calls for (a tool, or the user), and the sizes and times that go with it.

    Attributes:
        start: probability that the first answer calls for it.
        next: probabilities of the next answer's action, by the order of :attr:`Fitted.actions`.
        output: tokens of the answer that calls for it, by bucket of turns.
        appended: tokens that its result appends to the context, by bucket of turns.
        gap_s: time from the answer to the next request, uncapped.
        rewritten: probability that the next prompt keeps only a part of the context, by the gap in seconds.
    """

    name: str
    start: float
    next: tuple[float, ...]
    output: tuple[Table, ...]
    appended: tuple[Table, ...]
    gap_s: Table
    rewritten: Steps


class Correlations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How draws hang together, on the scale of standard-normal scores.

    Attributes:
        trajectory: 5 x 5 correlations between a trajectory's first prompt, turns, and its effects on appended tokens,
            output tokens and gaps.
        appended, output, gap: share of the variance of the turns that the trajectory's effect explains.
        first_appended: correlation of the first prompt and the tokens that the second one appends.
        gap_appended: correlation of a gap and the tokens appended after it, within a trajectory.
    """

    trajectory: tuple[tuple[float, ...], ...]
    appended: float
    output: float
    gap: float
    first_appended: float
    gap_appended: float


class Siblings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How trajectories of one task (a GRPO group) resemble each other: correlations between two of them, on the scale
    of standard-normal scores, of their numbers of turns, their effects on appended tokens, outputs and gaps, and the
    times of their sandboxes and rewards."""

    turns: float
    appended: float
    output: float
    gap: float
    sandbox: float
    reward: float


class Fitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Statistics of one class of workloads.

    Attributes:
        provenance: what they were fitted to, and what is assumed.
        scores: standard-normal scores of the points of every :class:`Table`.
        first_prompt: tokens of the first prompt at equally spaced probabilities from 0 to 1.
        turns: natural number of turns, as if there were no limit of context.
        buckets: first turn of each bucket of turns; sizes differ between the buckets.
        answer_dropped: probability that an answer does not come back as it was, by its tokens.
        dropped_growth: growth of such a prompt over the previous one, as a share of the dropped answer.
        first_rewritten: probability that the second prompt keeps only a part of the first.
        rewritten_kept: share of the previous prompt that a rewritten prompt keeps.
        compacted: probability that the next prompt is a compacted context, by tokens of the context.
        compacted_size: tokens of a compacted prompt, as a share of the previous prompt.
        compacted_kept: share of a compacted prompt that the previous prompt holds too.
        sandbox_s, reward_s: start-up of the sandbox and time of the reward; None for none.
    """

    name: str
    provenance: str
    scores: tuple[float, ...]
    first_prompt: tuple[float, ...]
    turns: Table
    buckets: tuple[int, ...]
    actions: tuple[Action, ...]
    correlations: Correlations
    siblings: Siblings
    answer_dropped: Steps
    dropped_growth: Table
    first_rewritten: float
    rewritten_kept: Table
    compacted: Steps
    compacted_size: Table
    compacted_kept: Table
    sandbox_s: LogNormal | None
    reward_s: LogNormal | None


def workload_names() -> list[str]:
    """Names of the workloads that the package can generate."""
    folder = resources.files("prorsa.cluster.workloads") / "fitted"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


@cache
def load_fitted(name: str) -> Fitted:
    """The statistics of a workload that the package carries.

    Raises:
        ConfigError: if there is no such workload.
    """
    if name not in workload_names():
        raise ConfigError(f"no workload {name!r}; there are {', '.join(workload_names())}")
    file = resources.files("prorsa.cluster.workloads") / "fitted" / f"{name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Fitted)
