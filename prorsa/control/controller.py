"""The controller: a pure fold over the journal.

It is fed every stamped event in hub order and told when a tick is; it answers with events to publish and, after those
are journalled, effects to perform. It reads no clock and does no I/O, so that live runs, replays, simulations and
training share it, and a controller that restarts gets its state back by folding the journal again. Its own events come
back to it on the bus and are ignored: it knows them.
"""

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prorsa.clock import nanoseconds
from prorsa.cluster.effects import Effect
from prorsa.cluster.executor import Actions, Executor
from prorsa.cluster.registry import Registry
from prorsa.control.absence import Absences
from prorsa.control.actions import action_mask
from prorsa.control.admission import Contexts, admission
from prorsa.control.alerts import Alerts
from prorsa.control.commands import handle
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.homes import Homes
from prorsa.control.overrides import Overrides
from prorsa.control.plan import Plan, Pool, make_plan
from prorsa.control.policies import Context, Policy, Want, make_policy
from prorsa.control.seen import with_perfect
from prorsa.control.shadow import Shadow, make_shadow, state_hash
from prorsa.control.waiting import Waiting
from prorsa.events import (
    EVENT_TYPES,
    Admission,
    AnyEvent,
    Command,
    Decision,
    DecisionStatus,
    EffectResult,
    Forecast,
    ForecastRow,
    GuardEffect,
    Mode,
    Move,
    RunBegin,
    Split,
    Stamped,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerLoad,
    WorkerUp,
)
from prorsa.forecast.frame import Frame, as_seen
from prorsa.forecast.predictor import Predictor

OUTPUT_TYPES: Final = frozenset(
    {"forecast", "decision", "shadow", "admission", "flip", "override", "alert", "view", "lease", "bus.overflow"}
)
"""Event types that a controller does not read: what controllers and the bus say themselves."""
INPUT_TYPES: Final = tuple(sorted(EVENT_TYPES.keys() - OUTPUT_TYPES))
"""Event types that a controller is fed, live and in a replay alike."""


@dataclass(slots=True)
class Step:
    """What the controller wants done: publish ``events`` as one batch, then perform ``effects``."""

    events: list[AnyEvent] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def take(self, actions: Actions) -> None:
        """Append what the executor gave."""
        self.events += actions.events
        self.effects += actions.effects


_TELLING: Final = 0.05
"""Relative change of the number of live trajectories that is worth telling: routers and journals need no more."""


_TELL_AGAIN_S: Final = 60.0
"""A router that has restarted meanwhile knows no number."""


def _differs(said: int | None, now: int | None) -> bool:
    if said is None or now is None:
        return said != now
    return abs(now - said) > _TELLING * said


class Controller:
    """One pool's controller.

    Args:
        config: its settings; journalled by whoever starts the run.
        predictor: the forecast, or None to run without one (policies that need one then hold the split).
        policy: decides instead of the one that the settings name.
    """

    def __init__(self, config: ControlConfig, predictor: Predictor | None, policy: Policy | None = None) -> None:
        self.config = config
        self.predictor = predictor
        self.registry = Registry()
        self.executor = Executor(config.executor)
        self.overrides = Overrides(config.override_s)
        self.absences = Absences(self.registry, self.executor, self.overrides)
        self.cost = CostModel(config.profile)
        self.alerts = Alerts()
        self.mode: Mode = config.mode
        self.waiting = Waiting()
        self.homes = Homes()
        self.contexts = Contexts()
        self.admission: Admission | None = None
        self.policy: Policy = policy or make_policy(config.policy)
        self.shadow: Shadow | None = make_shadow(config.shadow, self.policy.name) if config.shadow else None
        self.frame: Frame | None = None
        self.last_decision: Decision | None = None
        self.proposal: Decision | None = None
        self.run: RunBegin | None = None
        self.rejected: tuple[Split, int] | None = None
        self._looked: Frame | None = None
        self._decisions = 0
        self._next_decision_ns = 0
        self._updating_to: str | None = None
        self._flush_ns: int | None = None
        self._digest = config.digest()

    def fork(self, policy: Policy) -> "Controller":
        """An independent copy that forecasts nothing and decides by ``policy``; for looking ahead in simulations."""
        forked = copy.copy(self)
        # In one go: they refer to one another's workers.
        parts = (self.registry, self.executor, self.overrides, self.absences, self.alerts, self.cost)
        shared = {id(part): part for part in (self.config, self.config.executor, self.cost.profile)}
        copies = copy.deepcopy(parts, shared)
        forked.registry, forked.executor, forked.overrides, forked.absences, forked.alerts, forked.cost = copies
        forked.predictor, forked.policy, forked.waiting, forked.homes = None, policy, Waiting(), Homes()
        forked.contexts, forked.shadow = Contexts(), None
        return forked

    # --- events -----------------------------------------------------------------------------------------------------

    def observe(self, stamped: Stamped) -> Step:
        """Take one event of the journal. Events of a controller itself change nothing."""
        step = Step()
        event = stamped.event
        match event:
            case WorkerUp() | WorkerDown():
                self._worker_changed(stamped, event, step)
            case EffectResult():
                step.take(self.executor.on_result(event, stamped.t_ns))
            case Command(state="requested"):
                handle(self, event, stamped.t_ns, step)
            case WeightsUpdateBegin():
                # An announcement ahead of time is not the update itself, nor the end of one under way.
                if not event.expected_in_s:
                    self._updating_to = event.version
                elif event.cache_flushed:
                    self._flush_ns = stamped.t_ns + nanoseconds(event.expected_in_s)
            case WeightsUpdateEnd():
                self._updating_to = self._flush_ns = None
                # Flips start while the router still holds the burst, and lose no prefix where caches were dropped.
                self.decide_soon()
            case RunBegin():
                self.run = event
            case _:
                self.registry.observe(stamped)
                if isinstance(event, WorkerLoad):
                    self.cost.observe(event, self.registry)
        self.waiting.observe(event)
        self.contexts.observe(event)
        self.homes.observe(event, flip_loses=self.config.cache == "cold")
        if self.predictor is not None:
            self.predictor.observe(stamped)
        if step.events:
            self._advance_overrides(stamped.t_ns, step)
        return step

    def _advance_overrides(self, t_ns: int, step: Step) -> None:
        """Follow the overrides; workers whose time out of the pool is over come back."""
        changes = self.overrides.advance(self.registry, t_ns)
        for change in changes:
            if change.state == "expired" and change.kind in ("drain", "quarantine") and change.target is not None:
                self.absences.end(change.target, f"{change.kind} by {change.owner} has expired")
        step.events += changes
        step.take(self.absences.advance(t_ns))

    def _worker_changed(self, stamped: Stamped, event: WorkerUp | WorkerDown, step: Step) -> None:
        worker = self.registry.get(event.worker_id)
        if worker is not None:
            came = isinstance(event, WorkerUp)
            reason = "it registered afresh in the middle of its flip" if came else "it died in the middle of its flip"
            step.take(self.executor.on_worker_gone(worker, stamped.t_ns, reason))
        self.registry.observe(stamped)
        step.events += self.alerts.worker(event)
        step.take(self.absences.begin(event.worker_id, stamped.t_ns))
        self.decide_soon()

    # --- ticks ------------------------------------------------------------------------------------------------------

    def tick(self, t_ns: int, upto_hub_seq: int, perfect: tuple[ForecastRow, ...] = ()) -> Step:
        """One tick at run time ``t_ns``, after all events up to ``upto_hub_seq`` and no later ones.

        ``perfect`` is what will really happen, where the policy is to see that instead of the forecast.
        """
        step = Step()
        step.take(self.executor.on_tick(t_ns))
        frame = self.look(t_ns, perfect)
        if frame is not None:
            step.events.append(
                Forecast(
                    tick_ns=t_ns,
                    upto_hub_seq=upto_hub_seq,
                    live_trajectories=frame.live_trajectories,
                    rows=(*frame.rows, *perfect),
                    settled=frame.settled,
                )
            )
        self._advance_overrides(t_ns, step)
        step.events += self.alerts.tick(self.registry, self.overrides, self.config, t_ns)
        self._expire_proposal(t_ns)
        if self.decides_at(t_ns):
            self._next_decision_ns = t_ns + nanoseconds(self.config.decide_s)
            self._admit(t_ns, step)
            self._decide(t_ns, upto_hub_seq, step)
        return step

    def _admit(self, t_ns: int, step: Step) -> None:
        """Say how many live trajectories the caches hold: where that has changed, and from time to time again."""
        said, now = self.admission, admission(self.contexts, self.registry, self.config, t_ns)
        if said is None or _differs(said.limit, now.limit) or t_ns - said.tick_ns >= nanoseconds(_TELL_AGAIN_S):
            self.admission = now
            step.events.append(now)

    def look(self, t_ns: int, perfect: tuple[ForecastRow, ...] = ()) -> Frame | None:
        """The forecast of the tick at ``t_ns``, ahead of it: that tick takes it over. None where none is made."""
        if self.predictor is None:
            return None
        if self._looked is None or self._looked.t_ns != t_ns:
            self._looked = self.predictor.tick(t_ns)
            self.frame = self._seen(self._looked, perfect)
        return self._looked

    def decides_at(self, t_ns: int) -> bool:
        """Whether a tick at ``t_ns`` would also decide."""
        return t_ns >= self._next_decision_ns

    def decide_soon(self) -> None:
        """Decide at the next tick instead of waiting for the usual time."""
        self._next_decision_ns = 0

    def _seen(self, frame: Frame, perfect: tuple[ForecastRow, ...]) -> Frame:
        if perfect:
            return with_perfect(frame, perfect)
        return as_seen(frame, "ewma" if self.config.forecast == "ewma" else "lifecycle")

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decide(self, t_ns: int, upto_hub_seq: int, step: Step) -> None:
        if not len(self.registry):
            return
        want, plan = self.plan(t_ns)
        decision = self._decision(want, plan, t_ns, upto_hub_seq)
        self.last_decision = decision
        step.events.append(decision)
        self._shadow(decision, step)
        step.events += self.alerts.overload(decision, overloaded=want.overloaded)
        if decision.status == "proposed":
            self.proposal = decision
        elif decision.status == "applied":
            self.start(decision.moves, decision.decision_id, t_ns, step)

    def _shadow(self, decision: Decision, step: Step) -> None:
        """Ask the policy in shadow on the state that the active one saw, before anything comes of the decision."""
        if self.shadow is None or self.overrides.bounds(self.registry) is None:
            return
        t_ns, orders_alone = decision.tick_ns, self.mode == "approve"
        said = self.shadow.decide(self.context(t_ns), self.pool(t_ns), decision, orders_alone=orders_alone)
        step.events.append(said)
        step.events += self.alerts.shadow(said)

    def plan(self, t_ns: int) -> tuple[Want, Plan]:
        """What the policy wants now, and what overrides and guards make of it; nothing is started."""
        current = self.registry.destined()
        bounds = self.overrides.bounds(self.registry)
        if bounds is None:
            reason = (
                "every worker is mixed: there is no split to choose"
                if current.mixed
                else "fewer than two workers can take different roles: the split stays"
            )
            return Want(split=current, reason=reason), Plan(current, (), by_operator=False, guards=())
        want = self.policy.decide(self.context(t_ns))
        orders_alone = self.mode == "approve"
        return want, make_plan(want, self.pool(t_ns), bounds, economy=self.policy.economy, orders_alone=orders_alone)

    def pool(self, t_ns: int) -> Pool:
        """What planning looks at now."""
        parts = (self.registry, self.executor, self.overrides, self.cost, self.config, self._updating_to, self.homes)
        return Pool(t_ns, *parts)

    def context(self, t_ns: int) -> Context:
        """What the policy gets to see now; there must be at least two workers that can take different roles."""
        bounds = self.overrides.bounds(self.registry)
        assert bounds is not None
        pool = self.pool(t_ns)
        capacities = [worker.kv_capacity for worker in self.registry if worker.kv_capacity is not None]
        return Context(
            t_ns=t_ns,
            current=self.registry.destined(),
            bounds=bounds,
            frame=self.frame,
            cost=self.cost,
            kv_capacity=min(capacities) if capacities else None,
            config=self.config,
            workers=tuple(worker for worker in self.registry if worker.serving),
            waiting=self.waiting,
            flips_under_way=len(self.executor),
            homes=self.homes,
            flush_ns=self._flush_ns,
            parallel_flips=pool.parallel_flips,
            acts=self.mode == "auto",
            allowed_actions=partial(action_mask, pool, bounds),
        )

    def _decision(self, want: Want, plan: Plan, t_ns: int, upto_hub_seq: int) -> Decision:
        self._decisions += 1
        status, moves, guards = self._status(plan, t_ns)
        return Decision(
            decision_id=self._decisions,
            tick_ns=t_ns,
            upto_hub_seq=upto_hub_seq,
            config_hash=self._digest,
            policy=self.policy.name,
            policy_state=state_hash(self.policy),
            mode=self.mode,
            current=self.registry.split(),
            wanted=want.split,
            chosen=plan.chosen,
            status=status,
            reason=want.reason,
            inputs=want.inputs,
            alternatives=want.alternatives,
            guards=guards,
            moves=moves,
            expires_ns=t_ns + nanoseconds(self.config.decision_horizon_s) if status == "proposed" else None,
            handed_over=want.handed_over,
            decided_by=want.decided_by,
        )

    def _status(self, plan: Plan, t_ns: int) -> tuple[DecisionStatus, tuple[Move, ...], tuple[GuardEffect, ...]]:
        if not plan.moves:
            return "hold", (), plan.guards
        if self.mode == "observe":
            return "observed", plan.moves, plan.guards
        if self.mode == "auto" or plan.by_operator:
            return "applied", plan.moves, plan.guards
        if self.proposal is not None:
            guard = GuardEffect(guard="approve", text=f"decision {self.proposal.decision_id} waits for approval")
            return "hold", (), (*plan.guards, guard)
        if self.rejected is not None and self.rejected[0] == plan.chosen and t_ns < self.rejected[1]:
            guard = GuardEffect(guard="approve", text=f"{plan.chosen} was rejected less than a horizon ago")
            return "hold", (), (*plan.guards, guard)
        return "proposed", plan.moves, plan.guards

    def start(self, moves: tuple[Move, ...], decision_id: int, t_ns: int, step: Step) -> int:
        """Start the flips of these moves that are still possible; returns how many."""
        started = 0
        for move in moves:
            worker = self.registry.get(move.worker_id)
            if worker is None or not worker.serving or worker.role != move.from_role:
                continue
            step.take(self.executor.start(worker, move.to_role, reason=move.reason, decision_id=decision_id, t_ns=t_ns))
            started += 1
        return started

    def _expire_proposal(self, t_ns: int) -> None:
        if self.proposal is not None and self.proposal.expires_ns is not None and t_ns >= self.proposal.expires_ns:
            self.proposal = None
