"""A pool whose workers do at once what they are asked to, to drive a controller in tests."""

from collections.abc import Callable, Sequence

from prorsa.clock import nanoseconds
from prorsa.cluster.effects import Effect
from prorsa.cluster.profile import load_profile
from prorsa.control.config import ControlConfig
from prorsa.control.controller import Controller, Step
from prorsa.events import (
    AnyEvent,
    Command,
    Decision,
    EffectResult,
    Override,
    Role,
    Stamped,
    WorkerLoad,
    WorkerRole,
    WorkerUp,
)


class Pool:
    """Stamps events as the hub does, answers effects, and remembers everything that was said.

    ``slow`` holds actions that are not answered until :meth:`answer` is called.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        slow: Sequence[str] = (),
        loads: Sequence[dict[str, object]] = (),
        make: Callable[[ControlConfig], Controller] = lambda config: Controller(config, None),
        **settings: object,
    ) -> None:
        config = ControlConfig(profile=load_profile("qwen3-32b-h200-tp2"), forecast=None, **settings)
        self.controller = make(config)
        self.t_s = 0.0
        self.hub_seq = 0
        self.said: list[AnyEvent] = []
        self.asked: list[Effect] = []
        self.log: list[Stamped] = []
        self.reporting = True
        self._slow = set(slow)
        self._loads = loads
        self._requests = 0
        for index, role in enumerate(roles):
            self.feed(WorkerUp(worker_id=f"w{index}", role=role, epoch=0, flippable=True, kv_capacity=700_000))
        self.report()

    def feed(self, event: AnyEvent) -> Step:
        self.hub_seq += 1
        stamped = Stamped(self.hub_seq, nanoseconds(self.t_s), "test", self.hub_seq, 0, event)
        self.log.append(stamped)
        return self._take(self.controller.observe(stamped))

    def report(self) -> None:
        """Every worker that is not dead reports its load, with the fields that were given for it."""
        for index, worker in enumerate(list(self.controller.registry)):
            if worker.state != "dead" and self.reporting:
                fields = self._loads[index] if self._loads else {}
                self.feed(WorkerLoad(worker_id=worker.worker_id, **fields))

    def tick(self, seconds: float = 1.0) -> Step:
        self.t_s += seconds
        self.report()
        return self._take(self.controller.tick(nanoseconds(self.t_s), self.hub_seq))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tick()

    def command(self, verb: str, **fields: object) -> Command:
        """Send a command and return its answer."""
        self._requests += 1
        fields = {"owner": "ann", "reason": "because", "request_id": f"r{self._requests}", **fields}
        self.feed(Command(client="c", verb=verb, state="requested", **fields))
        answers = [event for event in self.said if isinstance(event, Command)]
        return answers[-1]

    def answer(self, *, ok: bool = True) -> None:
        """Answer what was asked last and is still open."""
        effect = self.controller.executor.outstanding()[0]
        self._answer(effect, ok=ok)

    def roles(self) -> str:
        """The roles as letters in the order of the workers, lower case while not serving."""
        letters = [(worker.role[0], worker.serving) for worker in self.controller.registry]
        return "".join(letter.upper() if serving else letter for letter, serving in letters)

    def decisions(self) -> list[Decision]:
        return [event for event in self.said if isinstance(event, Decision)]

    def life(self, override_id: str) -> list[str]:
        """The states that an override went through."""
        return [event.state for event in self.said if isinstance(event, Override) and event.override_id == override_id]

    def _take(self, step: Step) -> Step:
        self.said += step.events
        self.asked += step.effects
        for effect in step.effects:
            if effect.action not in self._slow:
                self._answer(effect)
        return step

    def _answer(self, effect: Effect, *, ok: bool = True) -> None:
        if ok and effect.action == "switch":
            self.feed(WorkerRole(worker_id=effect.worker_id, role=effect.role, epoch=effect.epoch))
        self.feed(EffectResult(effect_id=effect.effect_id, worker_id=effect.worker_id, action=effect.action, ok=ok))
