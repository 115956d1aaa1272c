"""Batch simulations: the controller's own code over the simulated cluster, as fast as it goes."""

import time
from collections.abc import Callable, Iterable

from prorsa.clock import nanoseconds
from prorsa.cluster.effects import Effect
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.controller import Controller, Step
from prorsa.control.policies import Policy, make_policy
from prorsa.control.seen import perfect_rows
from prorsa.control.view import make_view
from prorsa.events import AnyEvent, ForecastRow, Stamped
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import Recorder, RunPlan, initial_roles, make_workload, profile_of, run_row


def make_simulation(plan: RunPlan, workload: Workload | None = None, *, emit: bool = True) -> Simulation:
    """The simulated cluster of a plan, with the roles that its policy starts from."""
    return Simulation(
        _sim_config(plan),
        profile_of(plan),
        workload or make_workload(plan),
        initial_roles(plan),
        emit=emit,
    )


def simulate(
    plan: RunPlan,
    *,
    workload: Workload | None = None,
    recorder: Recorder | None = None,
    progress: Callable[[Simulation], None] = lambda _: None,
) -> dict[str, object]:
    """Run a plan to its end and report it in the form of the command line's contract."""
    started = time.perf_counter()
    policy = make_policy(plan.control.policy, plan.scenario.workers)
    simulation = make_simulation(plan, workload, emit=_wants_events(plan, policy, recorder))
    loop = _Loop(plan, simulation, recorder, progress)
    loop.run()
    return report(plan, loop.simulation, loop.controller, time.perf_counter() - started)


def report(plan: RunPlan, simulation: Simulation, controller: Controller | None, wall_s: float) -> dict[str, object]:
    """One element of ``runs``: the simulator's report, the forecast's scores, and what was run."""
    predictor = controller.predictor if controller else None
    return run_row(plan, simulation.report(), predictor.scores.summary() if predictor else None, wall_s)


class _Loop:
    """Feeds the controller what the simulation emits, and the simulation what the controller decides."""

    def __init__(
        self,
        plan: RunPlan,
        simulation: Simulation,
        recorder: Recorder | None,
        progress: Callable[[Simulation], None],
    ) -> None:
        self.simulation = simulation
        predictor = None if plan.control.forecast is None else Predictor(ForecastConfig())
        self.controller = Controller(plan.control, predictor)
        self._config = plan.control
        self._recorder = recorder
        self._progress = progress
        self._hub_seq = 0
        self._seqs: dict[str, int] = {}
        self._rows: list[Stamped] = []

    def run(self) -> None:
        tick_s = self._config.decide_s if self._config.forecast is None else self._config.tick_s
        ticks = 0
        while not self.simulation.done:
            due_s = (ticks + 1) * tick_s
            while self.simulation.now_s < due_s and not self.simulation.done:
                self._take("cluster", self.simulation.advance(due_s))
            ticks += 1
            if not self.simulation.done:
                self._tick(due_s)
            self._save()
            self._progress(self.simulation)

    def _tick(self, now_s: float) -> None:
        t_ns = nanoseconds(now_s)
        perfect: tuple[ForecastRow, ...] = ()
        if self._config.forecast == "perfect" and self.controller.decides_at(t_ns):
            perfect = perfect_rows(self.simulation.future_demand((self._config.horizon_s,)))
        self._carry_out(self.controller.tick(t_ns, self._hub_seq, perfect), now_s)
        if self._recorder is not None:
            view = make_view(self.controller, t_ns, self._hub_seq)
            self._stamp("controller", now_s, view)

    def _take(self, source: str, events: Iterable[tuple[float, AnyEvent]]) -> None:
        for t_s, event in events:
            self._carry_out(self.controller.observe(self._stamp(source, t_s, event)), t_s)

    def _carry_out(self, step: Step, t_s: float) -> None:
        for event in step.events:
            self._stamp("controller", t_s, event)
        self._perform(step.effects)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._take("cluster", self.simulation.perform(effect))

    def _stamp(self, source: str, t_s: float, event: AnyEvent) -> Stamped:
        self._hub_seq += 1
        seq = self._seqs[source] = self._seqs.get(source, -1) + 1
        stamped = Stamped(self._hub_seq, nanoseconds(t_s), source, seq, 0, event)
        if self._recorder is not None:
            self._rows.append(stamped)
        return stamped

    def _save(self) -> None:
        if self._recorder is not None and self._rows:
            self._recorder(self._rows)
            self._rows = []


def _wants_events(plan: RunPlan, policy: Policy, recorder: Recorder | None) -> bool:
    return plan.control.forecast is not None or recorder is not None or policy.needs_events


def _sim_config(plan: RunPlan) -> SimConfig:
    scenario = plan.scenario
    return SimConfig(
        name=scenario.name,
        concurrency=scenario.concurrency,
        mode=scenario.mode,
        groups_per_step=scenario.groups_per_step,
        group_size=scenario.group_size,
        weight_update_s=scenario.weight_update_s,
        cache_flush=scenario.cache_flush,
        cache=scenario.cache,
        host_kv_tokens=scenario.host_kv_tokens,
        flip=scenario.flip,
        seed=plan.seed,
    )
