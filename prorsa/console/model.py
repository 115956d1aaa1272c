"""What the console knows: a pure fold of the run's events, with bounded history. It draws nothing and asks nobody."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prorsa.clock import seconds
from prorsa.console.history import DemandHistory, PoolHistory, SplitHistory, WorkerHistory
from prorsa.console.log import Log
from prorsa.console.record import PolicyRecord, ShadowRecord
from prorsa.console.requests import Requests
from prorsa.events import (
    Alert,
    Command,
    Decision,
    Flip,
    Forecast,
    ForecastRow,
    Lease,
    Override,
    RunBegin,
    RunEnd,
    ShadowDecision,
    Stamped,
    StepBegin,
    StepEnd,
    TrajectoryView,
    View,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerUp,
    WorkerView,
    type_name,
)

TOPICS: Final = tuple(
    type_name(cls)
    for cls in (
        View,
        Decision,
        ShadowDecision,
        Override,
        Command,
        Flip,
        Forecast,
        Alert,
        RunBegin,
        RunEnd,
        Lease,
        WorkerUp,
        WorkerDown,
        StepBegin,
        StepEnd,
        WeightsUpdateBegin,
        WeightsUpdateEnd,
    )
)
"""What the console listens to."""

CHART_HORIZON_S: Final = 15.0
CHARTED: Final = ("prefill", "decode_admission")


@dataclass(slots=True)
class DecisionEntry:
    """A decision, and how many like it came in a row: holds of one split under the same guards count as one."""

    decision: Decision
    repeats: int = 1
    first_id: int = 0


@dataclass(slots=True)
class FlipEntry:
    """A flip: when it began, in run time, and the latest that is known of it."""

    t_s: float
    latest: Flip

    @property
    def changes_role(self) -> bool:
        """Whether it is a flip, and no worker that is taken out of the pool or comes back."""
        return self.latest.from_role != self.latest.to_role

    @property
    def under_way(self) -> bool:
        """Whether the worker has yet to serve again, in whichever role."""
        return self.latest.state not in ("serving", "restored", "quarantined", "dead")


class ConsoleModel:
    """Folds :class:`Stamped` events; every attribute may be read at any time.

    Attributes:
        view: the controller's latest aggregate; None until the first one came.
        now_ns: run time of the latest event.
        splits: the split over time.
        flips: the flips by their id, oldest first.
        demand: forecast and actual by target (``prefill``, ``decode_admission``), over 15 s from each tick.
        decisions: newest first.
        requests: what operators have asked for.
        pool, workers: the pool and its workers over time.
        policies: what each policy has decided so far, as far as this console has seen it.
        log: what happened, a line an event.
        trajectories: those that have been going on for longest, as last asked for, with the run time of the answer.
        version: grows with each event that was folded.
    """

    def __init__(self, *, decisions: int = 500, flips: int = 512, alerts: int = 100) -> None:
        self._limits = (decisions, flips, alerts)
        self.requests = Requests()
        self.version = 0
        self.reset()

    def reset(self) -> None:
        """Forget the run, as before a jump in a replay; what this console has asked for stays."""
        decisions, flips, alerts = self._limits
        self.view: View | None = None
        self.run: RunBegin | None = None
        self.ended: RunEnd | None = None
        self.lease: Lease | None = None
        self.now_ns = 0
        self.splits = SplitHistory()
        self.demand: dict[str, DemandHistory] = {target: DemandHistory() for target in CHARTED}
        self.decisions: deque[DecisionEntry] = deque(maxlen=decisions)
        self.flips: dict[str, FlipEntry] = {}
        self._most_flips = flips
        self.alerts: deque[tuple[int, Alert]] = deque(maxlen=alerts)
        self.pool = PoolHistory()
        self.workers = WorkerHistory()
        self.policies = PolicyRecord()
        self.shadow = ShadowRecord()
        self.log = Log()
        self.trajectories: tuple[TrajectoryView, ...] | None = None
        self.trajectories_ns: int | None = None
        self._sees_forecasts = False
        self.version += 1

    def apply(self, stamped: Stamped) -> None:
        """Fold one event. Events of other kinds than :data:`TOPICS` are passed over."""
        event = stamped.event
        match event:
            case View():
                self._fold_view(event)
            case Forecast():
                self._sees_forecasts = True
                self._fold_forecast(event.tick_ns, event.rows)
                for settled in event.settled:
                    if settled.horizon_s == CHART_HORIZON_S and settled.target in self.demand:
                        self.demand[settled.target].settle(settled)
            case Decision():
                self._fold_decision(event)
            case ShadowDecision():
                self.shadow.say(event)
            case Flip():
                self._fold_flip(event)
            case Override():
                self.requests.override(event, t_ns=stamped.t_ns)
            case Command():
                self._fold_command(event, stamped.t_ns)
            case Alert():
                self.alerts.appendleft((stamped.t_ns, event))
            case WorkerUp() | WorkerDown() | StepBegin() | StepEnd() | WeightsUpdateBegin() | WeightsUpdateEnd():
                pass
            case RunBegin():
                self.run, self.ended = event, None
            case RunEnd():
                self.ended = event
            case Lease():
                self.lease = event
            case _:
                return
        self.log.add(stamped)
        self.now_ns = max(self.now_ns, stamped.t_ns)
        self.version += 1

    def _fold_command(self, command: Command, t_ns: int) -> None:
        if not command.asks:
            self.requests.command(command, t_ns=t_ns)
        elif command.trajectories is not None:
            self.stand(command.trajectories, t_ns)

    def stand(self, trajectories: tuple[TrajectoryView, ...] | None, t_ns: int) -> None:
        """Which trajectories stand out at a run time, as somebody was asked for."""
        self.trajectories, self.trajectories_ns = trajectories, t_ns
        self.version += 1

    def _fold_view(self, view: View) -> None:
        self.view = view
        self.splits.add(seconds(view.tick_ns), view.split)
        self.pool.add(view)
        self.workers.add(seconds(view.tick_ns), view.workers)
        if not self._sees_forecasts:
            self._fold_forecast(view.tick_ns, view.forecast)
        for override in view.overrides:
            self.requests.seen_in_view(override, view.tick_ns)
        if view.last_decision is not None and not self.decisions:
            self._fold_decision(view.last_decision)

    def _fold_forecast(self, tick_ns: int, rows: tuple[ForecastRow, ...]) -> None:
        for row in rows:
            if row.source == "total" and row.horizon_s == CHART_HORIZON_S and row.target in self.demand:
                self.demand[row.target].forecast(tick_ns, row)

    def _fold_decision(self, decision: Decision) -> None:
        self.policies.add(decision)
        self.shadow.decide(decision)
        newest = self.decisions[0] if self.decisions else None
        if newest is not None and newest.decision.decision_id == decision.decision_id:
            newest.decision = decision
        elif newest is not None and _alike(newest.decision, decision):
            newest.decision = decision
            newest.repeats += 1
        else:
            self.decisions.appendleft(DecisionEntry(decision, first_id=decision.decision_id))

    def _fold_flip(self, flip: Flip) -> None:
        entry = self.flips.get(flip.flip_id)
        if entry is not None:
            entry.latest = flip
            return
        self.flips[flip.flip_id] = FlipEntry(seconds(flip.tick_ns), flip)
        if len(self.flips) > self._most_flips:
            del self.flips[next(iter(self.flips))]

    # --- what is asked of it -----------------------------------------------------------------------------------------

    @property
    def tick_s(self) -> float | None:
        """Run time of the latest view, in seconds."""
        return None if self.view is None else seconds(self.view.tick_ns)

    @property
    def known_s(self) -> float:
        """How much of the run, up to the latest view, this console knows."""
        return 0.0 if not self.splits.times_s else self.splits.until_s - self.splits.times_s[0]

    @property
    def proposal(self) -> Decision | None:
        """The plan that waits for approval."""
        return None if self.view is None else self.view.proposal

    def contexts_held(self) -> float | None:
        """How many contexts of today's mean length the caches of the workers in the pool hold; None where unknown."""
        view = self.view
        if view is None or not view.mean_context_tokens:
            return None
        capacities = [w.kv_capacity for w in view.workers if w.state not in ("dead", "quarantined")]
        known = [capacity for capacity in capacities if capacity is not None]
        return sum(known) / view.mean_context_tokens if known and len(known) == len(capacities) else None

    def flips_of(self, *, worker_id: str | None = None, decision_id: int | None = None) -> list[FlipEntry]:
        """The flips of a worker, or of a decision, newest first."""
        return [
            entry
            for entry in reversed(self.flips.values())
            if (worker_id is None or entry.latest.worker_id == worker_id)
            and (decision_id is None or entry.latest.decision_id == decision_id)
        ]

    def worker(self, worker_id: str) -> WorkerView | None:
        """A worker of the latest view."""
        workers = () if self.view is None else self.view.workers
        return next((worker for worker in workers if worker.worker_id == worker_id), None)

    def forecast_row(
        self, target: str, source: str = "total", horizon_s: float = CHART_HORIZON_S
    ) -> ForecastRow | None:
        """A row of the latest forecast that the view carries."""
        rows = () if self.view is None else self.view.forecast
        wanted = (target, source, horizon_s)
        return next((row for row in rows if (row.target, row.source, row.horizon_s) == wanted), None)

    def score(self, target: str, name: str = "wape", horizon_s: float = CHART_HORIZON_S) -> float | None:
        """A score of the forecasts so far, as the view carries them by target, horizon and name."""
        scores: Mapping[str, Mapping[str, Mapping[str, float | None]]] = {} if self.view is None else self.view.scores
        return scores.get(target, {}).get(f"{horizon_s:g}", {}).get(name)


def _alike(before: Decision, after: Decision) -> bool:
    return (
        before.status == after.status == "hold"
        and before.chosen == after.chosen
        and before.policy == after.policy
        and [guard.guard for guard in before.guards] == [guard.guard for guard in after.guards]
    )
