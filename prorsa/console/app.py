"""The operator console: a Textual application over a feed of events. It draws, asks and sends; it decides nothing."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from prorsa.console.actions import ACTIONS, Action, bindings
from prorsa.console.commander import Commander
from prorsa.console.commandline import Spoken, parse
from prorsa.console.components.asking import ConfirmLeave
from prorsa.console.components.frame import Frame
from prorsa.console.components.prompt import Prompt
from prorsa.console.desk import Desk
from prorsa.console.feeds import Feed
from prorsa.console.keeping import Keeping
from prorsa.console.look import PALETTES, Look
from prorsa.console.looking import Looking, Playing
from prorsa.console.model import ConsoleModel
from prorsa.console.steering import Doer, Steering
from prorsa.console.supposing import Supposing
from prorsa.errors import ProrsaError

TICK_S: Final = 0.5
FIRST_LOOK_S: Final = 0.05
"""Wall seconds between two looks for the first view."""
ASK_EVERY_S: Final = 2.0
"""Wall seconds between two questions for details, while they are on the screen."""


class ProrsaConsole(App[None]):
    """The console.

    Args:
        feed: where the events come from; its status is asked for at every tick.
        commander: what sends commands; None makes the console read-only.
        desk: what answers for single trajectories; None leaves them unknown.
        journal: the run's journal, if it is on this machine: for exports and what-if.
        look: characters and colours.
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
        desk: Desk | None = None,
        journal: Path | None = None,
        look: Look | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        super().__init__()
        self.look = Look() if look is None else look
        for palette in PALETTES.values():
            self.register_theme(palette.theme())
        self.theme = self.look.palette.name
        self.feed = feed
        self.read_only = commander is None
        self.model = ConsoleModel()
        self.failure: Exception | None = None
        self._kind = feed.status().kind
        self.frame = Frame(self.model, self.look, kind=self._kind, read_only=self.read_only)
        self.steering = Steering(self, commander)
        self.journal = journal
        self.supposing = Supposing(self, journal)
        self._doers = self._all_doers()
        self._desk = desk
        self._asked_s = 0.0
        self._asking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick_s = tick_s
        self._drawn_version = -1
        self._held = False
        self.set_class(self.look.glyphs.ascii, "ascii")

    def _all_doers(self) -> Mapping[str, Doer]:
        parts = (self.steering, Looking(self), Playing(self), Keeping(self), self.supposing)
        doers: dict[str, Doer] = {name: doer for part in parts for name, doer in part.doers().items()}
        return doers | {"pause": lambda _: self.hold(), "leave": lambda _: self.leave()}

    def get_default_screen(self) -> Screen[None]:
        """The frame, with the overview in it."""
        return self.frame

    def on_mount(self) -> None:
        """Begin to listen and to draw."""
        self.start(self.feed.run(self.model))
        self.set_interval(self._tick_s, self.tick)
        self._waiting = self.set_interval(min(FIRST_LOOK_S, self._tick_s), self._look_for_first)
        self.tick()

    def _look_for_first(self) -> None:
        """Draw the first view as soon as it is there, rather than at the next tick."""
        if self.model.view is not None:
            self._waiting.stop()
            self.tick()

    async def on_unmount(self) -> None:
        """Let what runs beside the screen close its sockets before the event loop ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run something beside the screen; what goes wrong in it ends the console."""
        task = asyncio.create_task(self._rooted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rooted(self, work: Coroutine[object, object, None]) -> None:
        """The root of a task: what goes wrong in it is raised once the terminal is restored."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a task root
            self.failure = error
            self.exit()

    # --- drawing -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Draw what has changed since the last tick. A held display changes its top bar alone."""
        status = self.feed.status()
        self.frame.show_status(status, held=self._held)
        if time.monotonic() - self._asked_s >= ASK_EVERY_S:
            self.ask_desk()
        detail = self.frame.detail
        if detail is not None and detail.restless:
            detail.redraw()
        if self._held or self._drawn_version == self.model.version:
            return
        self._drawn_version = self.model.version
        self.redraw()

    def redraw(self) -> None:
        """Draw all that is on the screen from the model."""
        self.frame.redraw()
        if self.steering.dialog is not None:
            self.steering.dialog.update_impact()

    def hold(self) -> None:
        """Hold the display still, or let it follow the run again."""
        self._held = not self._held
        self._drawn_version = -1
        self.tick()

    def ask_desk(self) -> None:
        """Ask for details, if the page that is shown has any and no question is open."""
        wanted = self.frame.page.key == "trajectories" and self.model.view is not None and not self._held
        if self._desk is None or self._asking or not wanted:
            return
        self._asked_s, self._asking = time.monotonic(), True
        self.start(self._ask(self._desk))

    async def _ask(self, desk: Desk) -> None:
        try:
            answer = await desk.trajectories()
        except ProrsaError:
            return  # nobody answers: the list stays, with its age
        finally:
            self._asking = False
        if answer is not None:
            self.model.stand(*answer)

    # --- actions -----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which actions work here: those of this kind of feed, and none that sends where the console is read-only."""
        if action != "do":
            return super().check_action(action, parameters)
        return any(item.id == parameters[0] for item in self.available())

    def available(self) -> list[Action]:
        """The actions that work here."""
        return [action for action in ACTIONS if action.available(self._kind, read_only=self.read_only)]

    def action_do(self, action_id: str) -> None:
        """Carry out an action of the registry, as its key does."""
        self.carry_out(action_id, None)

    def carry_out(self, action_id: str, spoken: Spoken | None) -> None:
        """Carry out an action, as a key started it or as it was typed; says what is wrong with it."""
        try:
            self._doers[action_id](spoken)
        except ProrsaError as error:
            self.notify(str(error), severity="error", markup=False)

    @on(Prompt.Entered)
    def entered(self, event: Prompt.Entered) -> None:
        """A command or a filter has been typed."""
        if event.kind == "filter":
            if self.frame.page.table is not None:
                self.carry_out("filter", Spoken(_FILTER, tuple(event.text.split())))
            return
        if not event.text:
            return
        try:
            spoken = parse(event.text, self.available())
        except ProrsaError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.carry_out(spoken.action.id, spoken)

    @on(Prompt.Closed)
    def prompt_closed(self) -> None:
        """The keys go to the page's table again."""
        if self.frame.page.table is not None:
            self.frame.page.table.focus()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002 - Textual's signature
        """The command palette lists the same actions."""
        for action in self.available():
            if action.id != "palette":
                yield SystemCommand(action.label, action.help, lambda name=action.id: self.carry_out(name, None))

    def leave(self) -> None:
        """Close the details; else the console, after a question if something asked for is not in effect yet."""
        if self.frame.close_detail():
            self.redraw()
            return
        pending = [f"{life.what()}: {life.state}" for life in self.model.requests.pending()]
        if pending:
            self.push_screen(ConfirmLeave(pending), lambda leave: self.exit() if leave else None)
        else:
            self.exit()


_FILTER: Final = next(action for action in ACTIONS if action.id == "filter")
