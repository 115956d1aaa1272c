"""Batch simulations: the controller's own code over the simulated cluster, as fast as it goes."""

import time
from collections.abc import Callable

from prorsa.clairvoyant import Clairvoyant, best_start
from prorsa.clock import nanoseconds
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.controller import Controller
from prorsa.control.policies import Planned, Policy, colocated_settings, make_policy, rollouts_of
from prorsa.control.seen import perfect_rows
from prorsa.control.view import make_view
from prorsa.driving import Driver
from prorsa.events import ForecastRow, Role, Stamped
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.run import Recorder, RunPlan, decode_profile_of, initial_roles, make_workload, profile_of, run_row

Progress = Callable[[Simulation], None]


def make_simulation(
    plan: RunPlan,
    workload: Workload | None = None,
    *,
    emit: bool = True,
    roles: list[Role] | None = None,
    report_s: int = 1,
) -> Simulation:
    """The simulated cluster of a plan, with the roles that its policy starts from, or with other ``roles``.

    Its workers report every ``report_s``.
    """
    return Simulation(
        _sim_config(plan, report_s),
        profile_of(plan),
        workload or make_workload(plan),
        roles or initial_roles(plan),
        decode_profile=decode_profile_of(plan),
        emit=emit,
    )


def simulate(
    plan: RunPlan,
    *,
    workload: Workload | None = None,
    recorder: Recorder | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, object]:
    """Run a plan to its end and report it in the form of the command line's contract.

    Raises:
        ConfigError: for a policy that is found by trying; `prorsa.tuning.Tuner` settles these first.
    """
    started = time.perf_counter()
    workload = workload or make_workload(plan)
    rollouts = rollouts_of(plan.control.policy)
    run = _decide(plan, workload, recorder) if rollouts is None else _foresee(plan, workload, recorder, rollouts)
    run.to_the_end(progress)
    row = report(plan, run.driver.simulation, run.driver.controller, time.perf_counter() - started)
    row["search"] = None if run.clairvoyant is None else run.clairvoyant.summary()
    shadow = run.driver.controller.shadow
    row["shadow"] = shadow.comparison.to_json() if shadow and shadow.comparison else None
    return row


def report(plan: RunPlan, simulation: Simulation, controller: Controller | None, wall_s: float) -> dict[str, object]:
    """One element of ``runs``: the simulator's report, the forecast's scores, and what was run."""
    predictor = controller.predictor if controller else None
    return run_row(plan, simulation.report(), predictor.scores.summary() if predictor else None, wall_s)


def _decide(plan: RunPlan, workload: Workload, recorder: Recorder | None) -> "_Run":
    policy = make_policy(plan.control.policy, plan.scenario.workers)
    simulation = make_simulation(plan, workload, emit=_wants_events(plan, policy, recorder))
    return _Run(plan, simulation, policy, recorder, None)


def _foresee(plan: RunPlan, workload: Workload, recorder: Recorder | None, rollouts: int) -> "_Run":
    policy = Planned(plan.control.policy)
    emit = _wants_events(plan, policy, recorder)
    mode = plan.scenario.mode
    start = best_start(
        plan.scenario.workers, lambda roles: make_simulation(plan, workload, emit=False, roles=roles), mode
    )
    simulation = make_simulation(plan, workload, emit=emit, roles=start.roles)
    return _Run(plan, simulation, policy, recorder, Clairvoyant(policy, start, mode, plan.control.decide_s, rollouts))


class _Run:
    """One run: ticks with what they need, and what is kept of them."""

    def __init__(
        self,
        plan: RunPlan,
        simulation: Simulation,
        policy: Policy,
        recorder: Recorder | None,
        clairvoyant: Clairvoyant | None,
    ) -> None:
        self._config = config = plan.control
        predictor = None if config.forecast is None else Predictor(ForecastConfig())
        # A gate must know soon: what has been let in is not turned away again.
        idle = config.forecast is None and config.admission != "gate"
        tick_s = config.decide_s if idle else config.tick_s
        controller = Controller(config, predictor, policy)
        self.driver = Driver(simulation, controller, tick_s, keep=self._keep)
        self.clairvoyant = clairvoyant
        self._recorder = recorder
        self._rows: list[Stamped] = []

    def to_the_end(self, progress: Progress) -> None:
        simulation = self.driver.simulation
        while not simulation.done:
            self.driver.advance()
            if not simulation.done:
                self._tick()
            self._save()
            progress(simulation)

    def _tick(self) -> None:
        driver, now_s = self.driver, self.driver.due_s
        if self.clairvoyant is not None and driver.controller.decides_at(nanoseconds(now_s)):
            self.clairvoyant.look(driver)
        driver.tick(self._perfect(now_s))
        if self._recorder is not None:
            view = make_view(driver.controller, nanoseconds(now_s), driver.hub_seq)
            driver.stamp("controller", now_s, view)

    def _perfect(self, now_s: float) -> tuple[ForecastRow, ...]:
        if self._config.forecast != "perfect" or not self.driver.controller.decides_at(nanoseconds(now_s)):
            return ()
        return perfect_rows(self.driver.simulation.future_demand((self._config.horizon_s,)))

    def _keep(self, stamped: Stamped) -> None:
        if self._recorder is not None:
            self._rows.append(stamped)

    def _save(self) -> None:
        if self._recorder is not None and self._rows:
            self._recorder(self._rows)
            self._rows = []


def _wants_events(plan: RunPlan, policy: Policy, recorder: Recorder | None) -> bool:
    gated = plan.control.admission == "gate"
    beside = plan.control.shadow is not None and make_policy(plan.control.shadow).needs_events
    return plan.control.forecast is not None or recorder is not None or policy.needs_events or gated or beside


def _sim_config(plan: RunPlan, report_s: int) -> SimConfig:
    scenario = plan.scenario
    mixed = colocated_settings(plan.control.policy)
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
        oversample=scenario.oversample,
        update_every=scenario.update_every,
        staleness=scenario.staleness,
        faults=scenario.faults,
        flip=scenario.flip,
        seed=plan.seed,
        report_s=report_s,
        prefill_interval=mixed.prefill_interval if mixed else 0,
    )
