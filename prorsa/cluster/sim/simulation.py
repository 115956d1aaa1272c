"""The simulated pool as the rest of Prorsa sees it: advance it, perform effects on it, copy it, save it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from prorsa.cluster.effects import Effect, failed
from prorsa.cluster.profile import Profile
from prorsa.cluster.sim import checkpoint, engine, futures, narrate, records, report, telemetry
from prorsa.cluster.sim.actuator import Actuator
from prorsa.cluster.sim.allocation import allocate, burst_records
from prorsa.cluster.sim.config import SimConfig, check_faults, check_inputs
from prorsa.cluster.sim.decode_clock import output_so_far
from prorsa.cluster.sim.demand import demand_ahead
from prorsa.cluster.sim.heap import fault_timer, sampler_timer, set_timer, tick_timer
from prorsa.cluster.sim.outcome import Outcome, outcome
from prorsa.cluster.sim.state import ROLES, State, duplicate
from prorsa.cluster.workloads.standing import Standing
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError
from prorsa.events import AnyEvent, Role, RunBegin

Timed = tuple[float, AnyEvent]
"""An event and its simulated time in seconds."""

_FIRST_EPOCH: Final = 0


class Simulation:
    """One simulated pool with its sampler, router and workers.

    Args:
        config: pool and sampler.
        profile: performance of the workers; with ``decode_profile`` of the prefill workers alone.
        workload: what is rolled out; the same under every policy.
        roles: the role of each worker at the start; worker ``i`` is ``w<i>``.
        decode_profile: performance of the decode workers, where their parallelism is another; the roles are fixed then.
        emit: whether lifecycle events of trajectories and requests are emitted; without, only ``run.*``, ``step.*``,
            ``weights.*``, ``worker.*`` and ``effect.result``. The simulated times are the same.

    Raises:
        ConfigError: if profile, workload and roles do not fit together.
    """

    def __init__(
        self,
        config: SimConfig,
        profile: Profile,
        workload: Workload,
        roles: Sequence[Role],
        *,
        decode_profile: Profile | None = None,
        emit: bool = True,
    ) -> None:
        profiles = (profile,) if decode_profile is None else (profile, decode_profile)
        check_inputs(profiles, workload, roles)
        check_faults(config, len(roles))
        indices = tuple(ROLES.index(role) for role in roles)
        state = allocate(config, profiles, workload, indices, emit)
        parts = checkpoint.Parts(config, profiles, workload, Actuator().dump(), [report.split_row(state)], None)
        self._assemble(state, parts)
        set_timer(self._state, sampler_timer(self._state), 0.0)
        set_timer(self._state, tick_timer(self._state), 1.0)
        for f, fault in enumerate(config.faults):
            set_timer(self._state, fault_timer(self._state, f), fault.at_s)

    def _assemble(self, state: State, parts: checkpoint.Parts) -> None:
        self._state = state
        self._config, self._profiles, self._workload = parts.config, parts.profiles, parts.workload
        self._actuator = Actuator(parts.actuator)
        self._split = parts.split
        self._sampler = telemetry.Sampler(parts.config, parts.workload, parts.sampler)
        self._narrator = narrate.Narrator(parts.workload, state, parts.config)
        live = min(parts.config.concurrency, parts.workload.trajectories)
        self._room = burst_records(live, len(state.ranks), state.running.shape[1])

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return float(self._state.totals["now_s"][0])

    @property
    def done(self) -> bool:
        """Whether every trajectory has ended."""
        return self.ended == self._workload.trajectories

    @property
    def ended(self) -> int:
        """Trajectories that have ended."""
        return int(self._state.totals["ended"][0])

    @property
    def output_tokens(self) -> int:
        """Output tokens of the whole pool since the start."""
        return int(output_so_far(self._state))

    @property
    def worker_ids(self) -> list[str]:
        """The ids of the workers, in order."""
        return [narrate.worker_id(w) for w in range(len(self._state.workers))]

    def advance(self, until_s: float) -> list[Timed]:
        """Simulate up to and including ``until_s``, or to the next ``effect.result``, if that is earlier.

        It also stops when a worker dies or comes back, and when the last trajectory ends. From then on there is no
        telemetry; flips go on.

        Returns:
            The events with their times, in order. ``now_s`` says how far the simulation has come.
        """
        if not until_s >= self.now_s:
            raise ConfigError(f"cannot advance to {until_s} s: it is {self.now_s} s already")
        events = self._begin() if self._state.totals["began"][0] == 0 else []
        while True:
            stopped = engine.run(self._state, until_s, self._room)
            events += self._drain_log()
            if stopped == engine.TICKED:
                events += self._tick()
            elif stopped != engine.FULL:
                self._note_split()
                return events

    def coast(self, until_s: float = math.inf) -> None:
        """Simulate on with nobody looking, to ``until_s`` or to the end of the run: what happens is told to nobody.

        For copies that only the outcome is wanted of. No effect may be under way.
        """
        while True:
            stopped = engine.run(self._state, until_s, self._room)
            self._state.totals["logged"] = 0
            if stopped in (engine.REACHED, engine.FINISHED):
                return

    def perform(self, effect: Effect) -> list[Timed]:
        """Perform an effect on a worker now; returns what happened at once, its answer too where that is immediate.

        An effect on an unknown worker is answered with ``ok=False``.
        """
        w = self._index_of(effect.worker_id)
        if w is None:
            return [(self.now_s, failed(effect, f"no worker {effect.worker_id} in the pool"))]
        events: list[Timed] = [(self.now_s, event) for event in self._actuator.perform(self._state, w, effect)]
        engine.follow_up(self._state)
        self._state.totals["answered"] = 0
        events += self._drain_log()
        self._note_split()
        return events

    def admit(self, limit: int | None) -> list[Timed]:
        """Let the first turns of so many trajectories in at a time, from now on; None for no limit.

        Others wait at the router, unseen, in the order of their dispatch. Turns of trajectories that have begun never
        do. Returns what happened at once.
        """
        engine.open_gate(self._state, limit or 0)
        engine.follow_up(self._state)
        return self._drain_log()

    def register_again(self) -> list[Timed]:
        """All workers come back as after a restart: serving in the role that they have, whatever flip they were in.

        Returns what workers and sampler say when they are seen again.
        """
        self._actuator.restart(self._state)
        self._note_split()
        events: list[AnyEvent] = list(telemetry.workers_up(self._state, self._profiles))
        events += self._sampler.state(self._state)
        return [(self.now_s, event) for event in events]

    def future_demand(self, horizons_s: Sequence[float]) -> dict[float, dict[str, float]]:
        """The true demand of the next seconds under the frozen split, in tokens, by horizon.

        ``backlog``: uncached prompt tokens of requests that are ready and not yet computed. ``arrivals``: those of
        requests that become ready within the horizon. ``decode_admission``: prompt + output of the requests that
        decode admits within it. ``kv_need``: the highest KV that decode holds within it. Workers that are on their
        way to another role stay out of the pool for the horizon.
        """
        state = duplicate(self._state)
        state.params["emit"] = True
        return demand_ahead(state, horizons_s, self._room)

    def outcome(self, horizons_s: Sequence[float]) -> dict[float, Outcome]:
        """What forecasts made now are scored against, by horizon, if the run goes on under the frozen split."""
        state = duplicate(self._state)
        state.params["emit"] = True
        return outcome(state, horizons_s, self._room)

    def report(self) -> dict[str, Any]:
        """What the run has come to so far, by the definitions of ``docs/metrics.md``."""
        return report.measure(self._state, self._config, self._profiles, self._workload, self._split)

    def copy(self, *, emit: bool | None = None) -> "Simulation":
        """An independent copy that goes on as this one would; ``emit``, where given, is the copy's own."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._state = duplicate(self._state)
        if emit is not None:
            copied._state.params["emit"] = emit
        copied._actuator = self._actuator.copy()
        copied._sampler = self._sampler.copy()
        copied._split = list(self._split)
        return copied

    def standing(self) -> Standing:
        """Where every trajectory stands, as far as it can be seen from outside."""
        return futures.standing_of(self._state)

    def redrawn(self, workload: Workload) -> "Simulation":
        """An independent copy that goes on with ``workload``: one with the past that has been seen, and its own future.

        See :class:`prorsa.cluster.workloads.redraw.Redraw`.
        """
        copied = self.copy()
        copied._go_on_with(workload)  # noqa: SLF001 - of its own class
        return copied

    def _go_on_with(self, workload: Workload) -> None:
        self._state = futures.with_workload(self._state, workload)
        self._workload = workload

    def save(self, path: str | Path) -> None:
        """Write a checkpoint; :meth:`load` goes on from it as this simulation would."""
        parts = checkpoint.Parts(
            self._config, self._profiles, self._workload, self._actuator.dump(), self._split, self._sampler.last
        )
        checkpoint.save(Path(path), self._state, parts)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Go on from a checkpoint.

        Raises:
            InputError: if there is none, or it is of another version.
        """
        self = cls.__new__(cls)
        self._assemble(*checkpoint.load(Path(path)))
        return self

    def _index_of(self, worker: str) -> int | None:
        suffix = worker.removeprefix("w")
        index = int(suffix) if suffix.isdecimal() else -1
        known = 0 <= index < len(self._state.workers) and narrate.worker_id(index) == worker
        return index if known else None

    @property
    def _emits(self) -> bool:
        return bool(self._state.params["emit"][0])

    def _begin(self) -> list[Timed]:
        begin = RunBegin(
            scenario=self._config.name,
            profile="+".join(profile.name for profile in self._profiles),
            seed=self._config.seed,
            workers=len(self._state.workers),
            concurrency=self._config.concurrency,
            trajectories=self._workload.trajectories,
            cache=self._config.cache,
        )
        events: list[AnyEvent] = [begin, *telemetry.workers_up(self._state, self._profiles)]
        if self._emits:
            events += self._sampler.changes(self._state)
        return [(self.now_s, event) for event in events]

    def _tick(self) -> list[Timed]:
        """Telemetry of the second that has just gone by, where it is one that workers report in."""
        if round(self.now_s) % self._config.report_s:
            return []
        events: list[AnyEvent] = list(telemetry.loads(self._state, self._profiles))
        if self._emits:
            events += telemetry.progress(self._state, self._narrator)
            events += self._sampler.changes(self._state)
        return [(self.now_s, event) for event in events]

    def _drain_log(self) -> list[Timed]:
        count = int(self._state.totals["logged"][0])
        self._state.totals["logged"] = 0
        log = self._state.log[:count]
        results = np.flatnonzero((log["kind"] == records.EFFECT_RESULT) | (log["kind"] == records.WORKER_UP))
        if not len(results):
            return list(self._narrator.tell(log, self._state))
        events: list[Timed] = []
        start = 0
        for at in results.tolist():
            events += self._narrator.tell(log[start:at], self._state)
            events.append(self._tell(log[at]))
            start = at + 1
        return [*events, *self._narrator.tell(log[start:], self._state)]

    def _tell(self, record: np.void) -> Timed:
        """The event of a record that is not the narrator's."""
        worker, ok, resumed, dropped = (int(record[name]) for name in "abcd")
        if record["kind"] == records.WORKER_UP:
            return float(record["time_s"]), telemetry.worker_up(self._state, self._profiles, worker)
        return float(record["time_s"]), self._actuator.answer(worker, ok, resumed, dropped)

    def _note_split(self) -> None:
        row = report.split_row(self._state)
        if row[1:] == self._split[-1][1:]:
            return
        if row[0] == self._split[-1][0]:
            self._split.pop()
        self._split.append(row)
