"""What is known of a workload class before a run: typical trajectories, as histograms that count like observations.

``class_priors.json`` is written by ``scripts/forecast_priors.py`` from the package's workload generators, whose
statistics were fitted to public traces (``docs/workloads.md``). Each histogram counts as a few dozen observations, so
that a run's own soon outweigh it. Classes that the file does not know begin with the models' general priors.
"""

from functools import cache
from importlib import resources
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.habits import TURN_GRID, AnswerLengths, EndModel, LossModel, Transitions
from prorsa.forecast.models import DURATION_GRID, SIZE_GRID, HazardModel, SizeModel
from prorsa.forecast.scan import TURN_BUCKETS
from prorsa.forecast.waits import WaitKeys

Array = NDArray[np.float64]

WAITS: Final = 40.0
"""Observations that a histogram of waits or answers is worth."""
SIZES: Final = 40.0
"""Observations that a histogram of sizes is worth."""
FOLLOWING: Final = 20.0
"""Observations that what follows an action is worth."""
TURNS: Final = 60.0
"""Turns seen, at most, for each bin of turn numbers."""

Sparse = dict[int, float]
"""Shares by bin; bins that are left out have none."""


class ActionPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One action of a class: shares by bin of its own wait and of the answer after it (over the ``lengths`` of the
    class), of what its result appends by class of turns, and shares of the actions that follow.
    """

    gap: Sparse
    output: Sparse
    appended: tuple[Sparse, ...]
    next: dict[str, float]


class ClassPrior(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One class: shares by bin of start-ups, rewards and first prompts; turns at risk and those that were the last by
    bin of turn numbers; the share of second prompts that are rewritten; how long answers are by class of turns, as a
    multiple of what is usual after their action; its beginning and its tools by name.
    """

    start: Sparse
    reward: Sparse
    first_prompt: Sparse
    risk: Sparse
    finished: Sparse
    rewritten: float
    lengths: tuple[float, ...]
    beginning: ActionPrior
    tools: dict[str, ActionPrior]


@cache
def class_priors() -> dict[str, ClassPrior]:
    """The priors that the package carries, by the name of the workload class."""
    file = resources.files("prorsa.forecast") / "class_priors.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, ClassPrior])


class Expectant:
    """Fills the models with what is known of a class, when its first trajectory is dispatched."""

    def __init__(
        self,
        keys: WaitKeys,
        waits: HazardModel,
        sizes: SizeModel,
        first_prompts: SizeModel,
        transitions: Transitions,
        ends: EndModel,
        losses: LossModel,
        lengths: AnswerLengths,
    ) -> None:
        self._keys, self._waits, self._sizes, self._first_prompts = keys, waits, sizes, first_prompts
        self._transitions, self._ends, self._losses = transitions, ends, losses
        self._lengths = lengths
        self._known = 1
        self.has_rewards = False
        """Whether any class that has begun gives rewards."""

    def catch_up(self) -> None:
        """Take in the classes that have begun since the last call."""
        while self._known < len(self._keys.workloads):
            name = self._keys.workloads[self._known]
            prior = class_priors().get(name) if name is not None else None
            if prior is not None:
                self._expect(self._known, prior)
            self._known += 1

    def _expect(self, workload: int, prior: ClassPrior) -> None:
        keys = self._keys
        self._waits.expect(keys.start_key[workload], WAITS * _dense(prior.start, DURATION_GRID.bins))
        self._waits.expect(keys.reward_key[workload], WAITS * _dense(prior.reward, DURATION_GRID.bins))
        self.has_rewards |= bool(prior.reward)
        self._expect_size(self._first_prompts, workload, prior.first_prompt)
        risk, finished = _dense(prior.risk, TURN_GRID.bins), _dense(prior.finished, TURN_GRID.bins)
        scale = np.minimum(TURNS, risk) / np.maximum(risk, 1e-9)
        self._ends.expect(workload, risk * scale, finished * scale)
        self._losses.expect_rewritten(prior.rewritten, SIZES)
        self._lengths.expect(workload, prior.lengths)
        actions = {name: keys.tool(name, workload) for name in prior.tools}
        self._expect_action(keys.beginning[workload], prior.beginning, actions)
        for name, tool in prior.tools.items():
            self._waits.expect(int(keys.gap_key[actions[name]]), WAITS * _dense(tool.gap, DURATION_GRID.bins))
            self._expect_action(actions[name], tool, actions)

    def _expect_action(self, action: int, prior: ActionPrior, actions: dict[str, int]) -> None:
        self._waits.expect(int(self._keys.output_key[action]), WAITS * _dense(prior.output, DURATION_GRID.bins))
        for bucket, sizes in enumerate(prior.appended):
            self._expect_size(self._sizes, action * TURN_BUCKETS + bucket, sizes)
        for name, share in prior.next.items():
            self._transitions.expect(action, actions[name], FOLLOWING * share)

    def _expect_size(self, model: SizeModel, key: int, shares: Sparse) -> None:
        counts = SIZES * _dense(shares, SIZE_GRID.bins)
        edges = SIZE_GRID.edges
        model.expect(key, counts, counts * (edges[:-1] + edges[1:]) / 2)


def _dense(shares: Sparse, bins: int) -> Array:
    out = np.zeros(bins)
    for index, value in shares.items():
        out[index] = value
    return out
