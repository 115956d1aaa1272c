"""Practice on recorded runs: their trajectories drawn anew, on a pool like theirs, with as many faults and updates."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np

from prorsa.clock import seconds
from prorsa.cluster.scenario import CacheMode, Scenario
from prorsa.cluster.sim.config import Fault
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.learn.episodes import Episode, midway
from prorsa.control.learn.redrawing import STEPS
from prorsa.errors import InputError
from prorsa.events import (
    Stamped,
    StepBegin,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerUp,
)
from prorsa.recordings import EVENTS as TRAJECTORY_EVENTS
from prorsa.recordings import groups_of, read_recording

EVENTS: Final = (*TRAJECTORY_EVENTS, "step.begin", "weights.update_begin", "weights.update_end", "worker.down")
"""The event types that are read."""

_ROUNDS: Final = 3
"""Trajectories of an asynchronous episode, in those that are in flight at a time."""
_LOAD: Final = (0.7, 1.3)
"""Trajectories in flight in an episode, by those in the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What is known of a recorded pool beside its events; None for what they tell themselves."""

    profile: str
    workers: int | None = None
    concurrency: int | None = None
    cache: CacheMode = "retained"
    host_kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run to practise on.

    Attributes:
        scenario: its pool, its concurrency and how it dispatches and updates.
        workload: its complete trajectories, in the order of dispatch.
        span_s: of the recording; its faults come within so long.
        incomplete: trajectories whose end is not in the recording.
    """

    scenario: Scenario
    workload: Workload
    span_s: float
    incomplete: int


@dataclass(frozen=True, slots=True)
class RecordedDomain:
    """Recorded runs, each with equal chances, with other numbers in flight and from other splits."""

    runs: tuple[RecordedRun, ...]

    def draw(self, rng: np.random.Generator) -> Episode:
        """One episode."""
        run = self.runs[rng.integers(len(self.runs))]
        base = run.scenario
        changes: dict[str, Any] = {
            "prefill_workers": int(rng.integers(1, base.workers)),
            "faults": tuple(_moved(fault, base.workers, run.span_s, rng) for fault in base.faults),
        }
        factor, ended = rng.uniform(*_LOAD), 0
        if base.groups_per_step is None:
            live = max(1, round(base.concurrency * factor))
            changes |= {"concurrency": live, "trajectories": _whole(_ROUNDS * live, base.group_size)}
            ended = midway(rng, live)
        else:
            groups = max(1, round(base.groups_per_step * factor))
            changes |= {"groups_per_step": groups, "concurrency": groups * (base.group_size or 1)}
        scenario, seed = msgspec.structs.replace(base, **changes), int(rng.integers(1 << 31))
        return Episode(scenario, seed, "lifecycle", run.workload, ended)


def read_run(rows: Iterable[Stamped], where: str, facts: PoolFacts) -> RecordedRun:
    """The run that a journal's events of :data:`EVENTS` tell of.

    Raises:
        InputError: if no trajectory is complete, or there are too few workers to have roles; names the journal.
        ConfigError: if there is no such profile.
    """
    rows = list(rows)
    recording, course = read_recording(rows, where), _Course()
    for row in rows:
        course.observe(row)
    begin, workers = recording.begin, facts.workers or len(recording.roles)
    if workers < 2:
        raise InputError(f"{where} names {workers} worker(s), and roles need 2: give --workers")
    live = facts.concurrency or (begin.concurrency if begin else None) or recording.most_live
    scenario = Scenario(
        name=where,
        profile=facts.profile,
        workers=workers,
        workload="coding",  # a scenario names a class; the trajectories are the recording's
        cache=facts.cache,
        host_kv_tokens=facts.host_kv_tokens,
        faults=course.faults(sorted(recording.roles), workers),
        **course.mode(recording.workload, live),
    )
    return RecordedRun(scenario, recording.workload, recording.span_s, recording.incomplete)


def _whole(trajectories: int, group_size: int | None) -> int:
    return trajectories + -trajectories % (group_size or 1)


def _moved(fault: Fault, workers: int, span_s: float, rng: np.random.Generator) -> Fault:
    return msgspec.structs.replace(fault, worker=int(rng.integers(workers)), at_s=float(rng.uniform(0.0, span_s)))


@dataclass(slots=True)
class _Course:
    """Steps, weight updates and outages of a recorded run."""

    first_ns: int | None = None
    last_ns: int = 0
    begun: set[str] = field(default_factory=set)
    ended: int = 0
    targets: list[int | None] = field(default_factory=list)
    dispatched: list[int] = field(default_factory=list)
    update_began_ns: int | None = None
    updates_s: list[float] = field(default_factory=list)
    ended_at_updates: list[int] = field(default_factory=list)
    flushed: bool = False
    down_ns: dict[str, int] = field(default_factory=dict)
    outages: list[tuple[str, float, float]] = field(default_factory=list)

    def observe(self, row: Stamped) -> None:
        t_ns, event = row.t_ns, row.event
        self.first_ns = t_ns if self.first_ns is None else self.first_ns
        self.last_ns = t_ns
        match event:
            case TrajectoryDispatched() | TrajectoryReady() if event.trajectory_id not in self.begun:
                self.begun.add(event.trajectory_id or "")
                if self.dispatched:
                    self.dispatched[-1] += 1
            case TrajectoryEnd():
                self.ended += 1
            case StepBegin():
                self.targets.append(event.target_groups)
                self.dispatched.append(0)
            case WeightsUpdateBegin():
                if self.update_began_ns is None:
                    self.ended_at_updates.append(self.ended)
                self.update_began_ns = t_ns + round(1e9 * (event.expected_in_s or 0.0))
                self.flushed |= bool(event.cache_flushed)
            case WeightsUpdateEnd():
                self._updated(t_ns)
                self.flushed |= bool(event.cache_flushed)
            case WorkerDown():
                self.down_ns.setdefault(event.worker_id, t_ns)
            case WorkerUp() if event.worker_id in self.down_ns:
                self._back(event.worker_id, t_ns)
            case _:
                pass

    def _updated(self, t_ns: int) -> None:
        if self.update_began_ns is not None:
            self.updates_s.append(max(seconds(t_ns - self.update_began_ns), 0.0))
        self.update_began_ns = None

    def _back(self, worker: str, t_ns: int) -> None:
        down_ns = self.down_ns.pop(worker)
        self.outages.append((worker, seconds(down_ns - (self.first_ns or 0)), max(seconds(t_ns - down_ns), 1.0)))

    def mode(self, workload: Workload, live: int) -> dict[str, Any]:
        """The fields of a scenario that say how trajectories are dispatched and weights updated."""
        sizes = [len(members) for members in groups_of(workload)]
        size = round(float(np.median(sizes))) if (workload.group >= 0).any() else None
        update = {
            "weight_update_s": round(float(np.mean(self.updates_s)), 3) if self.updates_s else 0.0,
            "cache_flush": self.flushed,
        }
        kind: Literal["sync", "async"] = "sync" if self.targets else "async"
        if kind == "sync":
            groups = self._groups_per_step(size or 1)
            length = {"steps": STEPS, "groups_per_step": groups, "group_size": size or 1}
            return {"mode": kind, "concurrency": groups * (size or 1), **length, **update}
        if not self.ended_at_updates:
            return {"mode": kind, "concurrency": live, "group_size": size}
        every = max(1, round(self.ended_at_updates[-1] / len(self.ended_at_updates)))
        return {"mode": kind, "concurrency": live, "group_size": size, "update_every": every, **update}

    def _groups_per_step(self, size: int) -> int:
        told = [target for target in self.targets if target]
        whole = self.dispatched[:-1] or self.dispatched
        return max(1, round(float(np.mean(told or np.array(whole) / size))))

    def faults(self, workers: list[str], count: int) -> tuple[Fault, ...]:
        """The outages; a worker that did not come back was gone until the end of the recording."""
        gone = [
            (name, seconds(t_ns - (self.first_ns or 0)), max(seconds(self.last_ns - t_ns), 1.0))
            for name, t_ns in self.down_ns.items()
        ]
        places = {name: index for index, name in enumerate(workers)}
        return tuple(
            Fault(worker=places.get(name, 0) % count, at_s=at_s, kind="dies", for_s=for_s)
            for name, at_s, for_s in [*self.outages, *gone]
        )
