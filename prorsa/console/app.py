"""The operator console: a Textual application over a feed of events. It draws, asks and sends; it decides nothing."""

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.console import forms
from prorsa.console.actions import ACTIONS, Action, bindings
from prorsa.console.commander import BusCommander, Commander
from prorsa.console.components.dialogs import ActionDialog, AskText, ConfirmLeave, HelpPage
from prorsa.console.components.overview import Overview
from prorsa.console.components.workers import WorkerTable
from prorsa.console.feeds import Feed, LiveFeed
from prorsa.console.forms import Ask, Form
from prorsa.console.look import ASCII, UNICODE, Look
from prorsa.console.model import ConsoleModel
from prorsa.console.playback import JournalFeed
from prorsa.console.text import parse_duration_s
from prorsa.errors import InputError, ProrsaError, UnavailableError
from prorsa.events import Command

TICK_S: Final = 0.5
SEEK_STEP_S: Final = 10.0


class ProrsaConsole(App[None]):
    """The console.

    Args:
        feed: where the events come from; its status is asked for at every tick.
        commander: what sends commands; None makes the console read-only.
        look: characters and colours; by the environment if None.
        tick_s: wall seconds between two drawings.
    """

    TITLE = "Prorsa"
    CSS_PATH = "console.tcss"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings())

    def __init__(
        self,
        feed: Feed,
        commander: Commander | None,
        *,
        look: Look | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        super().__init__()
        self.look = look_of_environment() if look is None else look
        self.feed = feed
        self.commander = commander
        self.read_only = commander is None
        self.model = ConsoleModel()
        self.failure: Exception | None = None
        self._kind = feed.status().kind
        self.overview = Overview(self.model, self.look, kind=self._kind, read_only=self.read_only)
        self._dialog: ActionDialog | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick_s = tick_s
        self._drawn_version = -1
        self._held = False
        self.set_class(self.look.glyphs.ascii, "ascii")

    def get_default_screen(self) -> Screen[None]:
        """The overview is what the console opens with."""
        return self.overview

    @property
    def table(self) -> WorkerTable:
        """The table whose cursor the actions refer to."""
        return self.overview.table

    def on_mount(self) -> None:
        """Begin to listen and to draw."""
        self._start(self.feed.run(self.model))
        self.set_interval(self._tick_s, self.tick)
        self.tick()

    async def on_unmount(self) -> None:
        """Let what runs beside the screen close its sockets before the event loop ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._rooted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rooted(self, work: Coroutine[object, object, None]) -> None:
        """The root of a task: what goes wrong in it ends the console, and is raised once the terminal is restored."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a task root
            self.failure = error
            self.exit()

    def tick(self) -> None:
        """Draw what has changed since the last tick. A held display changes its top bar alone."""
        status = self.feed.status()
        self.overview.show_status(status, held=self._held)
        if self._held or self._drawn_version == self.model.version:
            return
        self._drawn_version = self.model.version
        self.redraw()

    def redraw(self) -> None:
        """Draw all that is on the screen from the model."""
        self.overview.redraw()
        if self._dialog is not None:
            self._dialog.update_impact()

    # --- steering --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which actions work here: those of this kind of feed, and none that sends where the console is read-only."""
        found = next((item for item in ACTIONS if item.id == action), None)
        if found is None:
            return super().check_action(action, parameters)
        return found.available(self._kind, read_only=self.read_only)

    def available(self) -> list[Action]:
        """The actions that work here."""
        return [action for action in ACTIONS if action.available(self._kind, read_only=self.read_only)]

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual's signature
        """The command palette lists the same actions."""
        for action in self.available():
            if action.id != "palette":
                yield SystemCommand(action.label, action.help, getattr(self, f"action_{action.id}"))

    def _ask(self, form: Form) -> None:
        self._dialog = ActionDialog(form, self.look)
        self.push_screen(self._dialog, self._asked)

    def _asked(self, ask: Ask | None) -> None:
        self._dialog = None
        if ask is not None:
            self._start(self._send(ask))

    async def _send(self, ask: Ask) -> None:
        assert self.commander is not None
        command = self.commander.prepare(ask)
        life = self.model.requests.command(command, mine=True)
        self.redraw()
        try:
            answer = await self.commander.send(command)
        except UnavailableError as error:
            self.model.requests.unanswered(command.request_id, str(error))
            self.notify(str(error), title=f"{life.what()}: no answer", severity="error", markup=False)
        except ProrsaError as error:
            self._answered(msgspec.structs.replace(command, state="rejected", detail=str(error)))
        else:
            self._answered(answer)
        self.redraw()

    def _answered(self, answer: Command) -> None:
        life = self.model.requests.command(answer, mine=True)
        if answer.state == "rejected":
            self.notify(
                answer.detail or "no reason given", title=f"{life.what()}: rejected", severity="error", markup=False
            )

    def _steerable(self) -> bool:
        """Whether there is a view to act on; says so if there is none."""
        if self.model.view is None:
            self.notify("There is nothing to steer before the controller's first view.", severity="warning")
        return self.model.view is not None

    def action_pin(self) -> None:
        """Ask how to pin the selected worker."""
        worker = self.table.selected
        if self._steerable() and worker is not None:
            self._ask(forms.pin(self.model, worker))

    def action_override(self) -> None:
        """Ask for a split to hold."""
        if self._steerable():
            self._ask(forms.override(self.model))

    def action_freeze(self) -> None:
        """Ask for how long no flip may start."""
        if self._steerable():
            self._ask(forms.freeze(self.model))

    def action_release(self) -> None:
        """Ask what to release."""
        if not self._steerable():
            return
        worker = self.table.selected
        targets = forms.releasable(self.model, worker.worker_id if worker is not None else None)
        if targets:
            self._ask(forms.release(self.model, tuple(targets)))
        else:
            self.notify("Nothing is held: no pin, no split, no freeze.")

    def action_approve(self) -> None:
        """Approve the plan that waits."""
        self._answer_plan("approve")

    def action_reject(self) -> None:
        """Reject the plan that waits."""
        self._answer_plan("reject")

    def _answer_plan(self, verb: str) -> None:
        if not self._steerable():
            return
        if self.model.proposal is None:
            self.notify("No plan waits for approval; plans wait in mode approve only.")
            return
        self._ask(forms.answer_plan(self.model, "approve" if verb == "approve" else "reject"))

    def action_mode(self) -> None:
        """Ask for a mode."""
        if self._steerable():
            self._ask(forms.mode(self.model))

    def action_policy(self) -> None:
        """Ask for a policy."""
        if self._steerable():
            self._ask(forms.policy(self.model))

    # --- replay ----------------------------------------------------------------------------------------------------

    def action_toggle_play(self) -> None:
        """Play or pause the recording."""
        if self.feed.player is not None:
            self.feed.player.toggle()
            self.tick()

    def action_seek_back(self) -> None:
        """Go back by ten seconds of the run."""
        self._seek_by(-SEEK_STEP_S)

    def action_seek_on(self) -> None:
        """Go on by ten seconds of the run."""
        self._seek_by(SEEK_STEP_S)

    def _seek_by(self, step_s: float) -> None:
        now_ns = self.feed.status().now_ns
        if self.feed.player is not None and now_ns is not None:
            self.feed.player.seek(now_ns + nanoseconds(step_s))

    def action_step(self) -> None:
        """Go on to the next view."""
        if self.feed.player is not None:
            self.feed.player.step()

    def action_slower(self) -> None:
        """Halve the speed."""
        if self.feed.player is not None:
            self.feed.player.scale(0.5)
            self.tick()

    def action_faster(self) -> None:
        """Double the speed."""
        if self.feed.player is not None:
            self.feed.player.scale(2.0)
            self.tick()

    def action_seek(self) -> None:
        """Ask for a time to go to."""
        field = forms.Field("time", "time", hint="from the run's beginning: 90s, 12m, 1h5m", check=parse_duration_s)
        self.push_screen(AskText(field, "Go to"), self._seek_to)

    def _seek_to(self, text: str | None) -> None:
        if text is not None and self.feed.player is not None:
            self.feed.player.seek(nanoseconds(parse_duration_s(text)))

    # --- looking ---------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Hold the display still, or let it follow the run again."""
        self._held = not self._held
        self._drawn_version = -1
        self.tick()

    def action_zoom_in(self) -> None:
        """Show a shorter stretch of time."""
        self.overview.window.zoom(-1)
        self.redraw()

    def action_zoom_out(self) -> None:
        """Show a longer stretch of time."""
        self.overview.window.zoom(1)
        self.redraw()

    def action_sort(self) -> None:
        """Sort the workers by the next column."""
        self.table.sort()

    def action_down(self) -> None:
        """Select the next worker."""
        self.table.move(1)

    def action_up(self) -> None:
        """Select the worker before."""
        self.table.move(-1)

    def action_top(self) -> None:
        """Select the first worker."""
        self.table.select(0)

    def action_bottom(self) -> None:
        """Select the last worker."""
        self.table.select(-1)

    # --- the console itself ----------------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(HelpPage(self.available(), self.look))

    def action_palette(self) -> None:
        """Open the command palette."""
        self.action_command_palette()

    def action_leave(self) -> None:
        """Close the console, after a question if something that was asked for is not in effect yet."""
        pending = [f"{life.what()}: {life.state}" for life in self.model.requests.pending()]
        if pending:
            self.push_screen(ConfirmLeave(pending), lambda leave: self.exit() if leave else None)
        else:
            self.exit()


def look_of_environment() -> Look:
    """ASCII if ``PRORSA_ASCII`` is set or the terminal's encoding is not UTF-8; no colour if ``NO_COLOR`` is set."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    only_ascii = bool(os.environ.get("PRORSA_ASCII")) or encoding != "utf8"
    return Look(ASCII if only_ascii else UNICODE, colour="NO_COLOR" not in os.environ)


def run_console(
    *,
    run_dir: Path | None,
    endpoints: Endpoints | None,
    replay: Path | None,
    read_only: bool = False,
    owner: str,
    keys: Keys | None = None,
) -> int:
    """Run the console in this terminal until it is left; returns the exit code.

    Args:
        run_dir: a run to attach to, by its directory.
        endpoints: a run to attach to, by its sockets; found in ``run_dir`` if None.
        replay: a journal to play instead.
        read_only: send no commands.
        owner: in whose name commands are sent.
        keys: for a hub that asks for keys.

    Raises:
        InputError: if nothing is named to attach to or to play, or the journal cannot be read.
        UnavailableError: if there is no hub in ``run_dir``.
        RefusedError: if another run came to be served at the endpoints.
    """
    app = make_console(run_dir=run_dir, endpoints=endpoints, replay=replay, read_only=read_only, owner=owner, keys=keys)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def make_console(
    *,
    run_dir: Path | None,
    endpoints: Endpoints | None,
    replay: Path | None,
    read_only: bool,
    owner: str,
    keys: Keys | None = None,
) -> ProrsaConsole:
    """The console that :func:`run_console` runs; see there."""
    if replay is not None:
        return ProrsaConsole(JournalFeed(replay), None)
    if endpoints is None and run_dir is None:
        raise InputError("nothing to show: name a run directory, a hub's endpoints, or a journal to replay")
    if endpoints is None:
        assert run_dir is not None
        endpoints = Endpoints.load(run_dir)
    # A viewer's keys only look, whatever the command line says: the hub would refuse its commands.
    looks = read_only or (keys is not None and keys.role == "viewer")
    feed = LiveFeed(endpoints, where=str(run_dir) if run_dir is not None else None, keys=keys)
    return ProrsaConsole(feed, None if looks else BusCommander(endpoints, owner=owner, keys=keys))
