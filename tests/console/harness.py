"""A real hub in a thread, and a controller small enough for a test that answers commands as Prorsa's does."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from textual.app import App
from textual.pilot import Pilot

from prorsa.bus.hub import Hub, HubConfig
from prorsa.bus.journal import JournalWriter, row_of
from prorsa.bus.keys import HubKeys
from prorsa.bus.publisher import Publisher
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.workers import WorkerTable
from prorsa.events import Command, Override, OverrideView, PredictedEffect, View
from tests.console import story

OVERRIDE_KINDS = {
    "pin": "pin",
    "override": "split",
    "freeze": "freeze",
    "drain": "drain",
    "quarantine": "quarantine",
}


@contextlib.contextmanager
def running_hub(folder: Path, *, speed: float = 1.0, keys: HubKeys | None = None) -> Iterator[Endpoints]:
    """A hub that serves until the block is left; it can be entered again on the same folder."""
    known = Endpoints.load(folder) if (folder / "endpoints.json").exists() else Endpoints.ipc(folder)
    config = HubConfig(folder / "journal", known, run_id="run", speed=speed, keys=keys)
    stop, serving = threading.Event(), threading.Event()

    def serve() -> None:
        # The journal's connections belong to the thread that opens them.
        hub = Hub(config)
        serving.set()
        hub.run(stop)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert serving.wait(60.0)
        known = msgspec.structs.replace(known, hub_key=None if keys is None else keys.public)
        known.save(folder)
        yield known
    finally:
        stop.set()
        thread.join()


@dataclass
class TinyController:
    """Answers commands: refuses what has ``refuse`` in its reason, and lets overrides come into effect when told."""

    endpoints: Endpoints
    publisher: Publisher
    view: View = field(default_factory=lambda: story.view_at(0.0, overrides=()))
    seen: list[Command] = field(default_factory=list)
    overrides: dict[str, Override] = field(default_factory=dict)

    async def serve(self) -> None:
        """Answer every request until cancelled."""
        async with Subscriber(self.endpoints, ("command",), 0) as subscriber:
            async for stamped in subscriber:
                event = stamped.event
                if isinstance(event, Command) and event.state == "requested":
                    if not event.asks:
                        self.seen.append(event)
                    self._answer(event)

    def _answer(self, command: Command) -> None:
        if command.asks:
            effect = PredictedEffect(current=self.view.split, leads_to=self.view.split)
            self.publisher.publish(msgspec.structs.replace(command, state="accepted", effect=effect))
            return
        if "refuse" in command.reason:
            self.publisher.publish(msgspec.structs.replace(command, state="rejected", detail="the guards forbid it"))
            return
        self.publisher.publish(msgspec.structs.replace(command, state="accepted"))
        if command.verb in OVERRIDE_KINDS:
            self.overrides[command.request_id] = Override(
                override_id=command.request_id,
                kind=OVERRIDE_KINDS[command.verb],
                state="accepted",
                owner=command.owner,
                reason=command.reason,
                target=command.target,
                value=command.value,
                expires_ns=nanoseconds(command.for_s or 1800.0),
            )
            self.publisher.publish(self.overrides[command.request_id])

    def enter(self, state: str) -> None:
        """Let every override enter a state, and publish a view that says so."""
        for override_id, override in self.overrides.items():
            self.overrides[override_id] = msgspec.structs.replace(override, state=state)
            self.publisher.publish(self.overrides[override_id])
        self.show()

    def show(self, **changes: object) -> None:
        """Publish a view."""
        rows = tuple(
            OverrideView(o.override_id, o.kind, o.state, o.owner, o.reason, target=o.target, value=o.value)
            for o in self.overrides.values()
        )
        self.view = msgspec.structs.replace(self.view, overrides=rows, **changes)
        self.publisher.publish(self.view)


@contextlib.asynccontextmanager
async def tiny_controller(endpoints: Endpoints) -> AsyncIterator[TinyController]:
    """A controller that serves while the block runs."""
    with Publisher(endpoints.ingest, "controller") as publisher:
        controller = TinyController(endpoints, publisher)
        task = asyncio.create_task(controller.serve())
        try:
            yield controller
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def record(folder: Path, until_s: float = 300.0) -> Path:
    """A journal of the story up to ``until_s``."""
    journal = folder / "journal"
    with JournalWriter(journal, run_id="run", meta={}) as writer:
        writer.append([row_of(stamped) for stamped in story.stamped(until_s)])
    return journal


def worker_table(app: ProrsaConsole) -> WorkerTable:
    """The workers of the overview."""
    table = app.frame.pages["overview"].table
    assert isinstance(table, WorkerTable)
    return table


def screen_text(app: App[None]) -> str:
    """What is on the screen, as text."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], holds: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not holds():
            await pilot.pause(0.02)


async def shows(pilot: Pilot[None], app: App[None], text: str, within_s: float = 60.0) -> None:
    """Wait until a text is on the screen, which is drawn some time after what it shows has changed."""
    try:
        await until(pilot, lambda: text in screen_text(app), within_s)
    except TimeoutError:
        pytest.fail(f"{text!r} is not on the screen:\n{screen_text(app)}")
