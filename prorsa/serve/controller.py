"""The controller's process: reads the bus, ticks, publishes what it decides, and performs effects.

State is a fold over the journal, so a process that starts (again) first reads the whole run from the hub, ticks where
its predecessor did, publishes what that one could not publish any more, and asks again for the effects that await a
result. Nothing is done without the controller lease, and no effect before the events that announce it are journalled.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from prorsa.bus.commands import RENEW_S, LeaseKeeper
from prorsa.bus.keys import Keys
from prorsa.bus.publisher import Publisher
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints
from prorsa.clock import NS_PER_S, nanoseconds
from prorsa.control.config import ControlConfig
from prorsa.control.controller import INPUT_TYPES, Controller, Step
from prorsa.control.replay import fold, ticks_of
from prorsa.control.view import make_view
from prorsa.control.warm import warm_up
from prorsa.errors import UnavailableError
from prorsa.events import Admission, AnyEvent, Command, Flip, Override, Stamped, type_name
from prorsa.forecast.predictor import ForecastConfig, Predictor
from prorsa.serve.backend import Backend

VIEW_EVERY_S: Final = 0.5
"""Wall time between two aggregates for the console."""
JOURNALLED_WITHIN_S: Final = 10.0
"""How long to wait for the journal before effects; without it they are dropped and the executor asks again."""
CLOSE_WITHIN_S: Final = 2.0
BREATHE_EVERY_S: Final = 0.05
HOLDER: Final = "controller"
"""The name under which a controller asks for the lease at its start: a restarted one need not wait for its own."""
PREDECESSOR_ENDS_S: Final = RENEW_S + 0.25

Connect = Callable[[LeaseKeeper], Awaitable[Backend]]
"""Makes a backend that fences its effects with the lease's epoch."""

log = structlog.get_logger("controller")


class ControllerService:
    """Runs one :class:`Controller` against a hub.

    Args:
        endpoints: the hub's sockets.
        config: the controller's settings, those that the journal was begun with.
        run_id: the run, which the hub checks.
        connect: makes the backend that performs effects, once the lease is there.
        keys: an operator's, for a hub that asks for keys.
        holder: in whose name the lease is asked for; the same name takes it over at once.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        config: ControlConfig,
        run_id: str,
        connect: Connect,
        keys: Keys | None = None,
        *,
        holder: str = HOLDER,
    ) -> None:
        self._keys = keys
        self._holder = holder
        self._endpoints = endpoints
        self._config = config
        self._connect = connect
        self._backend: Backend | None = None
        self._publisher = Publisher(endpoints.ingest, "controller", run_id=run_id, keys=keys)
        self._controller = make_controller(config)
        self._inputs = frozenset(INPUT_TYPES)
        self._upto = 0
        self._next_tick_ns = 0
        self._effects: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled, or until the lease is lost: then the state here is no longer the run's.

        Raises:
            UnavailableError: if no hub answers at the start.
        """
        try:
            async with (
                LeaseKeeper(self._endpoints, self._holder, self._keys) as lease,
                Subscriber(self._endpoints, after_seq=0, keys=self._keys) as subscriber,
                asyncio.TaskGroup() as tasks,
            ):
                epoch = await lease.acquire()
                log.info("lease", epoch=epoch)
                if epoch > 1:
                    # A predecessor that still lives may publish until its next renewal is refused.
                    await asyncio.sleep(PREDECESSOR_ENDS_S)
                self._backend = await self._connect(lease)
                await self._recover(subscriber)
                views = tasks.create_task(self._views(subscriber))
                await self._live(subscriber, lease)
                views.cancel()
        finally:
            if self._backend is not None:
                await self._backend.close()
            await asyncio.to_thread(self._publisher.close, CLOSE_WITHIN_S)

    async def _recover(self, subscriber: Subscriber) -> None:
        """Fold the run so far; a new run has none."""
        history = await self._history(subscriber)
        ticks = ticks_of(history)
        known = {key for stamped in history if (key := _key(stamped.event))}
        unpublished: list[AnyEvent] = []
        inputs = (stamped for stamped in history if type_name(stamped.event) in self._inputs)
        breathe = _Breath()
        for step in fold(self._controller, inputs, ticks):
            await breathe()
            unpublished += [event for event in step.events if (key := _key(event)) and key not in known]
        self._upto = history[-1].hub_seq if history else 0
        self._next_tick_ns = self._after(max(subscriber.clock.now_ns(), ticks[-1].t_ns if ticks else 0))
        log.info("recovered", events=len(history), ticks=len(ticks), unpublished=len(unpublished))
        self._carry_out(Step(events=unpublished, effects=self._controller.executor.outstanding()))

    async def _history(self, subscriber: Subscriber) -> list[Stamped]:
        head = subscriber.status.head_seq if subscriber.status else 0
        history: list[Stamped] = []
        while (history[-1].hub_seq if history else 0) < head:
            history.append(await anext(subscriber))
            history += subscriber.take()
        return history

    async def _live(self, subscriber: Subscriber, lease: LeaseKeeper) -> None:
        while lease.held:
            now_ns = subscriber.clock.now_ns()
            if now_ns >= self._next_tick_ns:
                self._next_tick_ns = self._after(now_ns)
                self._tick(now_ns, subscriber)
                await asyncio.sleep(0)
                continue
            wait_s = (self._next_tick_ns - now_ns) / NS_PER_S / subscriber.clock.speed
            with contextlib.suppress(TimeoutError):
                self._observe(await asyncio.wait_for(anext(subscriber), wait_s))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # It came with an event, and wait_for kept it to itself.
                raise asyncio.CancelledError
            self._observe_all(subscriber)

    def _tick(self, now_ns: int, subscriber: Subscriber) -> None:
        self._observe_all(subscriber)
        if subscriber.link.state == "live":
            self._carry_out(self._controller.tick(now_ns, self._upto))

    def _observe_all(self, subscriber: Subscriber) -> None:
        for stamped in subscriber.take():
            self._observe(stamped)

    def _observe(self, stamped: Stamped) -> None:
        self._upto = stamped.hub_seq
        if type_name(stamped.event) in self._inputs:
            self._carry_out(self._controller.observe(stamped))

    def _carry_out(self, step: Step) -> None:
        if step.events:
            self._publisher.publish_all(step.events)
        limits = [event.limit for event in step.events if isinstance(event, Admission) and event.mode == "gate"]
        if step.effects or limits:
            task = asyncio.create_task(self._perform(step, limits))
            self._effects.add(task)
            task.add_done_callback(self._effects.discard)

    async def _perform(self, step: Step, limits: list[int | None]) -> None:
        # Intent first: a side effect whose announcement is not in the journal would be forgotten by a restart.
        if not await asyncio.to_thread(self._publisher.flush, JOURNALLED_WITHIN_S):
            log.warning("hub silent: effects held back", effects=[effect.effect_id for effect in step.effects])
            return
        assert self._backend is not None
        for limit in limits:
            await self._backend.admit(limit)
        for effect in step.effects:
            log.info("effect", action=effect.action, worker=effect.worker_id, role=effect.role, epoch=effect.epoch)
            result = await self._backend.perform(effect)
            if result is not None:
                self._publisher.publish(result)

    async def _views(self, subscriber: Subscriber) -> None:
        while True:
            gaps = subscriber.link.gaps
            self._publisher.publish(make_view(self._controller, subscriber.clock.now_ns(), self._upto, gaps=gaps))
            await asyncio.sleep(VIEW_EVERY_S)

    def _after(self, now_ns: int) -> int:
        """The next tick after ``now_ns``, on whole multiples of the tick; missed ones are not made up for."""
        every_ns = nanoseconds(tick_every_s(self._config))
        return (math.floor(now_ns / every_ns) + 1) * every_ns


class _Breath:
    """Lets others run now and then in long work: the lease must be renewed meanwhile."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    async def __call__(self) -> None:
        if time.monotonic() - self._at > BREATHE_EVERY_S:
            await asyncio.sleep(0.001)
            self._at = time.monotonic()


def make_controller(config: ControlConfig) -> Controller:
    """A fresh controller with these settings."""
    predictor = None if config.forecast is None else Predictor(ForecastConfig())
    return Controller(config, predictor)


def tick_every_s(config: ControlConfig) -> float:
    """Run seconds between ticks: without a forecast there is nothing to do between decisions."""
    return config.decide_s if config.forecast is None else config.tick_s


def _key(event: AnyEvent) -> tuple[str, ...] | None:
    """What tells apart the events that must not be lost with the process that was to publish them."""
    match event:
        case Flip():
            return ("flip", event.flip_id, event.state)
        case Override():
            return ("override", event.override_id, event.state)
        case Command(state="accepted" | "rejected"):
            return ("command", event.client, event.request_id)
        case _:
            return None


async def run_controller(
    endpoints: Endpoints, config: ControlConfig, run_id: str, connect: Connect, keys: Keys | None = None
) -> None:
    """Run the controller until cancelled.

    It starts over, with state from the journal, where the hub was away for longer than the lease lasts. Where another
    controller has taken the lease over, it stands by until that one is gone.
    """
    if config.forecast is not None:
        # Before the lease is asked for: who compiles for a minute cannot renew it.
        await asyncio.to_thread(warm_up)
    holder = HOLDER
    while True:
        try:
            await ControllerService(endpoints, config, run_id, connect, keys, holder=holder).run()
            log.warning("lease lost: standing by")
            holder = f"{HOLDER}-{os.getpid()}"
        except UnavailableError as error:
            log.warning("waiting for the hub", error=str(error))
            await asyncio.sleep(1.0)
