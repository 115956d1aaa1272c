"""``clairvoyant``: a bound. It tries plans on copies of the simulation, which know the true future, to the run's end.

It starts from the best fixed split of this very run. At each look it holds the plan under way against changes of it:
another split from now on, or for a while. A change is taken only where the run ends better, flips and all; the
simulator is deterministic and the copies are driven by the controller's own code, so the run never ends worse than
that split. Rollouts go to the end, so that no terminal value is needed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from prorsa.cluster.sim.simulation import Simulation
from prorsa.control.policies import Planned
from prorsa.control.solver import Bounds
from prorsa.driving import Driver
from prorsa.errors import ConfigError
from prorsa.events import Role, Split

Plan = tuple[tuple[float, Split], ...]
Score = tuple[float, float]
"""The main figure, then the makespan; smaller is better."""


@dataclass(frozen=True, slots=True)
class Start:
    """The fixed split that is best with the true future."""

    split: Split
    score: Score
    makespan_s: float
    rollouts: int

    @property
    def roles(self) -> list[Role]:
        """The roles that make the split."""
        return _roles(self.split)


def best_start(workers: int, make: Callable[[list[Role]], Simulation], mode: Literal["async", "sync"]) -> Start:
    """Try every fixed split from the start.

    Raises:
        ConfigError: for a pool of one worker.
    """
    if workers < 2:
        raise ConfigError("policy clairvoyant needs at least 2 workers, one of each role")
    tried: list[Start] = []
    for prefill in range(1, workers):
        split = Split(prefill=prefill, decode=workers - prefill)
        simulation = make(_roles(split))
        simulation.coast()
        row = simulation.report()
        tried.append(Start(split, score(row, mode), float(row["makespan_s"]), workers - 1))
    return min(tried, key=lambda start: start.score)


def score(row: dict[str, object], mode: Literal["async", "sync"]) -> Score:
    """A finished run by its main figure, ties by the makespan."""
    makespan = row["makespan_s"]
    steady, step = row["steady_output_tokens_per_s"], row["step_s"]
    assert isinstance(makespan, float)
    if mode == "async" and isinstance(steady, float):
        return -steady, makespan
    return (step if isinstance(step, float) else makespan), makespan


class Clairvoyant:
    """Keeps the plan of a `Planned` policy the best that it has seen.

    Args:
        policy: plays the plan.
        start: the plan to begin with: the run must have been started in its roles.
        decide_s: run seconds between two decisions.
        rollouts: changes of plan that are tried over the run, about; looks are spread evenly over the makespan of
            ``start``, and are at most as many as decisions.
    """

    def __init__(
        self, policy: Planned, start: Start, mode: Literal["async", "sync"], decide_s: float, rollouts: int
    ) -> None:
        self._policy = policy
        self._start = start
        self._mode = mode
        self._best = start.score
        self._every_s = max(decide_s, start.makespan_s * _CHANGES / rollouts)
        self._next_s = 0.0
        self._rollouts = start.rollouts
        self._changes = 0
        policy.plan = ((0.0, start.split),)

    def look(self, driver: Driver) -> None:
        """Change the plan for the better, if a look is due; ``driver`` is about to tick, and stays as it is."""
        now_s = driver.due_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        kept = self._policy.plan
        bounds = driver.controller.overrides.bounds(driver.controller.registry)
        for plan in () if bounds is None else _changed(kept, now_s, self._every_s, bounds):
            self._rollouts += 1
            outcome = self._roll_out(driver, plan)
            if outcome < self._best:
                self._best, self._policy.plan = outcome, plan
        self._changes += self._policy.plan != kept

    def summary(self) -> dict[str, object]:
        """What the search was, for the run row."""
        return {
            "start": str(self._start.split),
            "rollouts": self._rollouts,
            "rollout_horizon_s": None,
            "look_every_s": round(self._every_s, 3),
            "changes": self._changes,
        }

    def _roll_out(self, driver: Driver, plan: Plan) -> Score:
        """How the run ends by a plan, on copies of the cluster and of its controller."""
        simulation = driver.simulation.copy(emit=False)
        controller = driver.controller.fork(Planned(self._policy.name, plan))
        copy = Driver(simulation, controller, driver.tick_s, ticks=driver.ticks)
        last_s, last = plan[-1]
        while not simulation.done:
            copy.tick()
            if simulation.now_s >= last_s and not len(controller.executor) and controller.registry.split() == last:
                break
            copy.advance()
        simulation.coast()
        return score(simulation.report(), self._mode)


_CHANGES: Final = 6
"""Plans that `_changed` gives, in the middle of the range."""


def _changed(plan: Plan, now_s: float, while_s: float, bounds: Bounds) -> Iterator[Plan]:
    """The plan with another split from now on, or only for a while."""
    past = tuple(entry for entry in plan if entry[0] <= now_s)
    present = past[-1][1].prefill
    for shift in (1, -1, 2, -2):
        prefill = present + shift
        if not bounds.low <= prefill <= bounds.high:
            continue
        split = Split(prefill=prefill, decode=bounds.workers - prefill)
        yield (*past, (now_s, split))
        if abs(shift) == 1:
            back_s = now_s + while_s
            kept = [entry[1] for entry in plan if entry[0] <= back_s][-1]
            later = (entry for entry in plan if entry[0] > back_s)
            yield (*past, (now_s, split), (back_s, kept), *later)


def _roles(split: Split) -> list[Role]:
    prefill: list[Role] = ["prefill"] * split.prefill
    decode: list[Role] = ["decode"] * split.decode
    return prefill + decode
