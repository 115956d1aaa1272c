"""The embedded cluster's process: the simulator in scaled real time, on the real bus.

Its state is checkpointed each second, so that a process that died goes on where it was: time that passed meanwhile is
left out, and every worker registers afresh, as it would after a restart.
"""

import asyncio
import contextlib
from typing import Final, get_args

import structlog
import zmq
import zmq.asyncio

from prorsa.bus import wire
from prorsa.bus.publisher import Publisher
from prorsa.bus.subscriber import Subscriber
from prorsa.clock import NS_PER_S
from prorsa.cluster.effects import Action, Effect
from prorsa.cluster.sim.simulation import Simulation
from prorsa.control.warm import warm_up
from prorsa.errors import EventError, UnavailableError
from prorsa.events import AnyEvent, Role
from prorsa.run import RunPlan
from prorsa.serve.backend import ADMISSION_TOPIC, AdmissionLimit, cluster_endpoint
from prorsa.serve.rundir import RunDir
from prorsa.simulate import make_simulation

PACE_S: Final = 0.01
"""Wall time between two advances: at 20 times real time, events are late by 0.2 run seconds at most."""
CHECKPOINT_EVERY_S: Final = 1.0

log = structlog.get_logger("cluster")


class EmbeddedCluster:
    """Advances a simulation with the run clock, publishes its events and performs effects on it."""

    def __init__(self, run_dir: RunDir) -> None:
        plan = run_dir.load_plan()
        assert isinstance(plan, RunPlan)
        self._plan = plan
        self._run_dir = run_dir
        self._resumed = run_dir.checkpoint.exists()
        self._sim = Simulation.load(run_dir.checkpoint) if self._resumed else make_simulation(plan)
        self._begin_s = 0.0
        _compile_ahead(self._sim)
        if plan.control.forecast is not None:
            warm_up()  # for the controller, which starts once the run's clock goes
        run_dir.cluster_ready.touch()

    async def run(self) -> None:
        """Run until the rollout is over and all its events are journalled."""
        self._endpoints = await self._hub()
        self._publisher = Publisher(self._endpoints.ingest, "cluster", run_id=self._plan.run_id)
        async with Subscriber(self._endpoints, topics=("run.begin",), connect_timeout_s=None) as subscriber:
            self._begin_s = subscriber.clock.now_ns() / NS_PER_S - self._sim.now_s
            if self._resumed:
                self._publish(self._sim.register_again())
                log.info("resumed", sim_s=round(self._sim.now_s, 1))
            effects = asyncio.create_task(self._serve_effects())
            try:
                await self._roll_out(subscriber)
            finally:
                effects.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await effects
        self._run_dir.save_result(self._sim.report())
        await asyncio.to_thread(self._publisher.close, 30.0)

    async def _hub(self) -> wire.Endpoints:
        """The hub starts after this process, so that its clock does not run while the simulator is compiled."""
        while True:
            try:
                return wire.Endpoints.load(self._run_dir.path)
            except UnavailableError:
                await asyncio.sleep(PACE_S)

    async def _roll_out(self, subscriber: Subscriber) -> None:
        saved_at = asyncio.get_running_loop().time()
        while not self._sim.done:
            until_s = subscriber.clock.now_ns() / NS_PER_S - self._begin_s
            while self._sim.now_s < until_s and not self._sim.done:
                self._publish(self._sim.advance(until_s))
            await asyncio.sleep(PACE_S)
            now = asyncio.get_running_loop().time()
            if now - saved_at >= CHECKPOINT_EVERY_S:
                saved_at = now
                self._checkpoint()

    async def _serve_effects(self) -> None:
        socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(cluster_endpoint(self._endpoints))
        try:
            while True:
                parts = await socket.recv_multipart()
                try:
                    frame = wire.unpack(parts[1:])
                    if frame.topic == ADMISSION_TOPIC:
                        self._publish(self._sim.admit(wire.decode(AdmissionLimit, frame.payload).limit))
                        continue
                    effect = wire.decode(Effect, frame.payload)
                except EventError as error:
                    log.warning("bad effect", error=str(error))
                    continue
                log.info("effect", effect_id=effect.effect_id, role=effect.role)
                self._publish(self._sim.perform(effect))
        finally:
            socket.close()

    def _publish(self, events: list[tuple[float, AnyEvent]]) -> None:
        for _, event in events:
            self._publisher.publish(event)

    def _checkpoint(self) -> None:
        draft = self._run_dir.checkpoint.with_suffix(".tmp.npz")
        self._sim.save(draft)
        draft.replace(self._run_dir.checkpoint)


def _compile_ahead(sim: Simulation) -> None:
    """Run a flip on a copy: what is compiled on its first use would otherwise stop the clock in the middle of a run."""
    rehearsal = sim.copy()
    rehearsal.advance(rehearsal.now_s)
    for action in get_args(Action):
        role: Role = "decode" if action in ("switch", "warm", "admit") else "prefill"
        rehearsal.perform(
            Effect(effect_id=action, worker_id="w0", action=action, role=role, epoch=1 << 30, deadline_s=1.0)
        )
        rehearsal.advance(rehearsal.now_s + 1.0)
    rehearsal.register_again()
    rehearsal.report()
    log.info("compiled")
