"""What if another policy had decided from a moment of a run on? Both futures, on copies of a simulated pool.

The run is simulated again from its beginning, with the flips that were recorded and what operators asked for, up to the
moment. From there two copies go on with the same trajectories: one under the policy that decided then, one under the
other. What they differ by is the simulator's word; how far the copy had come at the moment stands beside what was
recorded, so that it can be judged.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from prorsa.bus.journal import JournalReader
from prorsa.clock import nanoseconds, seconds
from prorsa.control.controller import Controller
from prorsa.control.policies import Planned, Policy, make_policy
from prorsa.driving import Driver
from prorsa.errors import InputError, RefusedError
from prorsa.events import Command, Decision, Flip, Move, RunBegin, View
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.futures import CoursePoint, Future, Likeness, WhatIf
from prorsa.run import LivePlan, RunPlan, plan_of
from prorsa.simulate import make_simulation

SHOWN_EVERY_S: Final = 5.0
"""Run seconds between two points of a future's course."""
_ORDERS: Final = ("pin", "override", "freeze", "release", "drain", "quarantine", "readmit")
"""Commands that are carried out again on the way to the moment; policy and mode are those of each future."""


def suppose(journal: Path, policy: str, *, at_s: float | None = None, for_s: float | None = 120.0) -> WhatIf:
    """Compare the policy that decided with another one, from a moment of a recorded or running embedded run.

    Args:
        journal: the run's journal.
        policy: the other policy; ``static:P:D`` is a split.
        at_s: the moment, in run seconds as the console shows them; the end of the journal if None.
        for_s: how far the futures go; to the end of the rollout if None.

    Raises:
        RefusedError: for a run on live workers, of which there is no copy.
        InputError: for a moment outside the run, an unknown policy, or a journal that cannot be read.
    """
    record = _Record(journal, at_s)
    supposed = make_policy(policy, record.plan.scenario.workers)
    decided = make_policy(record.policy, record.plan.scenario.workers)
    _check(record.plan, decided, supposed, for_s)
    base = record.replay()
    likeness = record.likeness(base)
    return WhatIf(
        scenario=record.plan.scenario.name,
        at_s=record.at_s,
        as_it_was=_go_on(base.fork(), decided, for_s),
        supposed=_go_on(base, supposed, for_s),
        copy=likeness,
    )


def _check(plan: RunPlan, decided: Policy, supposed: Policy, for_s: float | None) -> None:
    if for_s is not None and not for_s > 0:
        raise InputError(f"--for {for_s:g}: the futures go on for a time above zero")
    mixed = [name.startswith("colocated") for name in (decided.name, supposed.name)]
    if mixed[0] != mixed[1]:
        raise RefusedError(
            f"{supposed.name} and {decided.name} need workers that were launched differently, and SGLang cannot flip "
            f"between them: compare them with `prorsa simulate {plan.scenario.name} --policy …`"
        )


class _Record:
    """What a journal says of a run up to a moment."""

    def __init__(self, journal: Path, at_s: float | None) -> None:
        with JournalReader(journal) as reader:
            plan = plan_of(reader.meta)
            if isinstance(plan, LivePlan):
                raise RefusedError("this run is on live workers, of which there is no copy to try another policy on")
            self.plan = plan
            last = reader.last()
            end_s = seconds(last.t_ns) if last is not None else 0.0
            self.at_s = end_s if at_s is None else at_s
            if not 0.0 <= self.at_s <= end_s:
                raise InputError(f"{self.at_s:g} s is outside the run, which has {end_s:g} s so far")
            upto_seq = reader.seq_before(nanoseconds(self.at_s) + 1)
            kinds = ("run.begin", "flip", "command", "decision", "view")
            events = list(reader.read(upto_seq=upto_seq, types=kinds))
        self._events = events
        begins = [seconds(stamped.t_ns) for stamped in events if isinstance(stamped.event, RunBegin)]
        if not begins:
            raise InputError(f"{journal} holds no embedded run that had begun by {self.at_s:g} s")
        self._begin_s = begins[0]
        decisions = [stamped.event for stamped in events if isinstance(stamped.event, Decision)]
        self.policy = decisions[-1].policy if decisions else plan.control.policy

    def replay(self) -> Driver:
        """The simulated run at the moment, with a controller that has seen it all."""
        config = msgspec.structs.replace(self.plan.control, forecast="lifecycle", mode="auto", shadow=None)
        controller = Controller(config, Predictor(ForecastConfig()), Planned("recorded"))
        driver = Driver(make_simulation(self.plan), controller, config.tick_s)
        pending = deque(self._doings())
        until_s = self.at_s - self._begin_s
        while driver.due_s <= until_s:
            driver.advance()
            if driver.simulation.done:
                break
            now_s = driver.due_s
            driver.tick()
            while pending and pending[0][0] <= now_s + config.tick_s / 2:
                _do(driver, pending.popleft()[1], now_s)
        return driver

    def _doings(self) -> Iterator[tuple[float, Move | Command]]:
        """Flips that began and orders of operators, with their times on the simulation's clock."""
        for stamped in self._events:
            event = stamped.event
            if isinstance(event, Flip) and event.state == "fenced" and event.from_role != event.to_role:
                move = Move(event.worker_id, event.from_role, event.to_role, event.reason)
                yield seconds(event.tick_ns) - self._begin_s, move
            elif isinstance(event, Command) and event.state == "requested" and event.verb in _ORDERS and not event.asks:
                yield seconds(stamped.t_ns) - self._begin_s, event

    def likeness(self, driver: Driver) -> Likeness:
        """The copy beside the last view that was recorded."""
        views = [stamped.event for stamped in self._events if isinstance(stamped.event, View)]
        return Likeness(
            ended=driver.simulation.ended,
            ended_recorded=views[-1].done if views else None,
            split=driver.controller.registry.split(),
            split_recorded=views[-1].split if views else None,
        )


def _do(driver: Driver, doing: Move | Command, now_s: float) -> None:
    if isinstance(doing, Move):
        driver.start((doing,), now_s)
    else:
        driver.observe("operator", now_s, doing)


def _go_on(driver: Driver, policy: Policy, for_s: float | None) -> Future:
    """One future; the driver is used up."""
    driver.controller.policy = policy
    driver.controller.decide_soon()
    simulation, begin_s = driver.simulation, driver.ticks * driver.tick_s
    before = simulation.report()
    course = [_point(driver, begin_s, before)]
    while not simulation.done and (for_s is None or driver.due_s <= begin_s + for_s):
        driver.advance()
        if not simulation.done:
            driver.tick()
        if simulation.now_s - begin_s - course[-1].t_s >= SHOWN_EVERY_S:
            course.append(_point(driver, begin_s, before))
    course.append(_point(driver, begin_s, before))
    after = simulation.report()
    return Future(
        policy=policy.name,
        over_s=course[-1].t_s,
        output_tokens=after["output_tokens"] - before["output_tokens"],
        prefill_tokens=after["computed_prefill_tokens"] - before["computed_prefill_tokens"],
        trajectories_ended=course[-1].ended,
        gpu_idle_ratio=_idle(before, after, begin_s, simulation.now_s),
        flips=after["flips"] - before["flips"],
        finished_s=simulation.now_s - begin_s if simulation.done else None,
        course=tuple(course),
    )


def _point(driver: Driver, begin_s: float, before: dict[str, Any]) -> CoursePoint:
    now = driver.simulation.report()
    return CoursePoint(
        t_s=round(driver.simulation.now_s - begin_s, 3),
        split=driver.controller.registry.split(),
        output_tokens=now["output_tokens"] - before["output_tokens"],
        ended=_ended(now) - _ended(before),
    )


def _ended(report: dict[str, Any]) -> int:
    return int(report["trajectories_completed"]) + int(report["trajectories_truncated"])


def _idle(before: dict[str, Any], after: dict[str, Any], begin_s: float, end_s: float) -> float | None:
    """The idle share of the time between two reports, from their shares of the time since the beginning."""
    if after["gpu_idle_ratio"] is None or not end_s > begin_s:
        return None
    idle_before_s = (before["gpu_idle_ratio"] or 0.0) * begin_s
    return float((after["gpu_idle_ratio"] * end_s - idle_before_s) / (end_s - begin_s))
