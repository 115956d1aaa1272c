"""The operator console: a Textual application over a feed of events. It draws, asks and sends; it decides nothing."""

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widgets import Static

from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.console import forms
from prorsa.console.actions import ACTIONS, Action, bindings
from prorsa.console.commander import BusCommander, Commander
from prorsa.console.components.decisions import DecisionPanel
from prorsa.console.components.dialogs import ActionDialog, AskText, ConfirmLeave, HelpPage
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.footer import Footer
from prorsa.console.components.requests import RequestPanel
from prorsa.console.components.topbar import Banner, SplitBar, Timeline, TopBar
from prorsa.console.components.trends import TARGETS, DemandChart, Sparks, SplitChart, Window
from prorsa.console.components.workers import WorkerTable
from prorsa.console.feeds import Feed, LiveFeed
from prorsa.console.forms import Ask, Form
from prorsa.console.look import ASCII, UNICODE, Look
from prorsa.console.model import ConsoleModel
from prorsa.console.playback import JournalFeed
from prorsa.console.status import FeedStatus, is_old, waiting_for, why_old
from prorsa.console.text import parse_duration_s
from prorsa.errors import InputError, ProrsaError, UnavailableError
from prorsa.events import Command

TICK_S: Final = 0.5
MIN_COLUMNS: Final = 40
MIN_ROWS: Final = 12
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
    # Textual declares these two as instance variables, so they cannot be ClassVars here.
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (MIN_COLUMNS, "-narrow"),
        (80, "-medium"),
        (120, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_ROWS, "-short"), (46, "-tall")]  # noqa: RUF012

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
        self.window = Window()
        self.failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.top = TopBar(self.model, self.look, read_only=self.read_only)
        self.bar = SplitBar(self.model, self.look)
        self.timeline = Timeline(self.model, self.look)
        self.banner = Banner(self.model, self.look)
        self.waiting = Static(id="waiting")
        self.body = Container(id="body")
        self.charts = [
            SplitChart(self.model, self.look, self.window, id="split"),
            *(DemandChart(self.model, self.look, self.window, target) for target in TARGETS),
        ]
        self.table = WorkerTable(self.model, self.look)
        self._tick_s = tick_s
        self._kind = feed.status().kind
        self._drawn_version = -1
        self._held = False
        self.set_class(self.look.glyphs.ascii, "ascii")

    # --- what is on the screen -------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """All widgets; the size decides which of them are shown."""
        yield self.top
        yield self.bar
        yield self.timeline
        yield self.banner
        yield self.waiting
        yield Static(id="small")
        with self.body:
            with Horizontal(id="charts"):
                yield from self.charts
            yield Sparks(self.model, self.look, self.window)
            with Container(id="main"):
                with Container(id="left"):
                    yield self.table
                    yield RequestPanel(self.model, self.look)
                yield DecisionPanel(self.model, self.look)
        yield Footer(self.model, self.look, kind=self._kind, read_only=self.read_only)

    def on_mount(self) -> None:
        """Name the panels, begin to listen and to draw."""
        titles = {
            "split": "split over time",
            "workers": "workers",
            "requests": "requests and overrides",
            "decisions": "decisions",
        }
        titles |= {target.key.replace("_", "-"): f"{target.title}, next 15 s" for target in TARGETS}
        for widget_id, title in titles.items():
            self.query_one(f"#{widget_id}").border_title = title
        self.timeline.set_class(self._kind == "replay", "shown")
        self.table.focus()
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

    def on_resize(self) -> None:
        """Say what size is needed, where it is too small."""
        text = f"The console needs {MIN_COLUMNS}×{MIN_ROWS}; this terminal has {self.size.width}×{self.size.height}."
        self.query_one("#small", Static).update(self.look.plain(text))

    def tick(self) -> None:
        """Draw what has changed since the last tick. A held display changes its top bar alone."""
        status = self.feed.status()
        self._draw_status(status)
        if self._held or self._drawn_version == self.model.version:
            return
        self._drawn_version = self.model.version
        self.redraw()

    def _draw_status(self, status: FeedStatus) -> None:
        known = self.model.view is not None
        old = known and is_old(status, ended=self.model.ended is not None)
        self.top.status, self.top.paused, self.timeline.status = status, self._held, status
        self.banner.old, self.banner.now_ns = why_old(status) if old else None, status.now_ns
        self.bar.set_class(old, "old")
        self.body.set_class(old, "old")
        self.body.set_class(known, "shown")
        self.waiting.set_class(known, "hidden")
        if not known:
            self.waiting.update(self.look.plain("\n".join(waiting_for(status))))
        for widget in (self.top, self.timeline, self.banner):
            widget.redraw()

    def redraw(self) -> None:
        """Draw all that is on the screen from the model."""
        self.window.follow(self.model.known_s)
        for widget in self.query(Drawing):
            widget.redraw()
        if isinstance(self.screen, ActionDialog):
            self.screen.update_impact()

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
        self.push_screen(ActionDialog(form, self.look), self._asked)

    def _asked(self, ask: Ask | None) -> None:
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
        self.window.zoom(-1)
        self.redraw()

    def action_zoom_out(self) -> None:
        """Show a longer stretch of time."""
        self.window.zoom(1)
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
) -> int:
    """Run the console in this terminal until it is left; returns the exit code.

    Args:
        run_dir: a run to attach to, by its directory.
        endpoints: a run to attach to, by its sockets; found in ``run_dir`` if None.
        replay: a journal to play instead.
        read_only: send no commands.
        owner: in whose name commands are sent.

    Raises:
        InputError: if nothing is named to attach to or to play, or the journal cannot be read.
        UnavailableError: if there is no hub in ``run_dir``.
        RefusedError: if another run came to be served at the endpoints.
    """
    app = make_console(run_dir=run_dir, endpoints=endpoints, replay=replay, read_only=read_only, owner=owner)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def make_console(
    *, run_dir: Path | None, endpoints: Endpoints | None, replay: Path | None, read_only: bool, owner: str
) -> ProrsaConsole:
    """The console that :func:`run_console` runs; see there."""
    if replay is not None:
        return ProrsaConsole(JournalFeed(replay), None)
    if endpoints is None and run_dir is None:
        raise InputError("nothing to show: name a run directory, a hub's endpoints, or a journal to replay")
    if endpoints is None:
        assert run_dir is not None
        endpoints = Endpoints.load(run_dir)
    feed = LiveFeed(endpoints, where=str(run_dir) if run_dir is not None else None)
    return ProrsaConsole(feed, None if read_only else BusCommander(endpoints, owner=owner))
