"""What an operator does with the screen and with a recording: pages, cursor, filter, time, speed, jumps."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prorsa.clock import nanoseconds
from prorsa.console.actions import PAGES
from prorsa.console.commandline import Spoken, complete
from prorsa.console.components.asking import AskFields
from prorsa.console.components.help import HelpPage
from prorsa.console.components.table import Filter, Table
from prorsa.console.feeds import Player
from prorsa.console.forms import Field
from prorsa.console.look import DARK, LIGHT
from prorsa.console.steering import Doer
from prorsa.console.text import parse_duration_s
from prorsa.errors import InputError

if TYPE_CHECKING:
    from prorsa.console.app import ProrsaConsole

SEEK_STEP_S: Final = 10.0
_PAGE_ROWS: Final = 10


class Looking:
    """Everything that changes what is shown, and nothing else."""

    def __init__(self, app: "ProrsaConsole") -> None:
        self._app = app

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        shows: dict[str, Doer] = {f"show_{page}": self._shower(page) for page in PAGES}
        return {
            **shows,
            "details": lambda _: self.details(),
            "back": lambda _: self.back(),
            "mark": lambda _: self._with_table(lambda table: table.toggle_mark()),
            "filter": self.filter,
            "sort": self.sort,
            "zoom_in": lambda _: self.zoom(-1),
            "zoom_out": lambda _: self.zoom(1),
            "down": lambda _: self.move(1),
            "up": lambda _: self.move(-1),
            "page_down": lambda _: self.move(_PAGE_ROWS),
            "page_up": lambda _: self.move(-_PAGE_ROWS),
            "top": lambda _: self.end(first=True),
            "bottom": lambda _: self.end(first=False),
            "theme": self.theme,
            "help": lambda _: self._app.push_screen(HelpPage(self._app.available(), self._app.look)),
            "command": lambda _: self.command(),
            "palette": lambda _: self._app.action_command_palette(),
        }

    def _shower(self, page: str) -> Doer:
        def show(spoken: Spoken | None) -> None:
            del spoken
            self._app.frame.show_page(page)
            self._app.ask_desk()

        return show

    # --- pages, tables -----------------------------------------------------------------------------------------------

    def details(self) -> None:
        """Show everything about the row under the cursor."""
        detail = self._app.frame.page.detail()
        if detail is not None and self._app.frame.detail is None:
            self._app.frame.open_detail(detail)

    def back(self) -> None:
        """Close the details; else take off the filter; else the marks."""
        if self._app.frame.close_detail():
            self._app.redraw()
            return

        def undo(table: Table[Any]) -> None:
            if table.filter.text:
                table.filter = Filter()
            else:
                table.marks.clear()
            table.redraw()

        self._with_table(undo)

    def _with_table(self, act: Callable[[Table[Any]], object]) -> None:
        table = self._app.frame.page.table
        if table is not None and self._app.frame.detail is None:
            act(table)

    def move(self, rows: int) -> None:
        """Move the cursor, or scroll the details."""
        if self._app.frame.detail is not None:
            self._app.frame.over.scroll_relative(y=rows, animate=False)
        else:
            self._with_table(lambda table: table.move(rows))

    def end(self, *, first: bool) -> None:
        """Go to the first or the last row."""
        if self._app.frame.detail is not None:
            over = self._app.frame.over
            over.scroll_home(animate=False) if first else over.scroll_end(animate=False)
        else:
            self._with_table(lambda table: table.select(0 if first else -1))

    def sort(self, spoken: Spoken | None) -> None:
        """Take the next order, or the one that was named."""
        named = spoken.word(0) if spoken is not None else None

        def order(table: Table[Any]) -> None:
            if named is not None:
                table.sort_by = _named(named, list(table.sorts()))
                table.redraw()
            else:
                table.sort()

        self._with_table(order)

    def filter(self, spoken: Spoken | None) -> None:
        """Ask for a filter, or set the one that was typed."""
        table = self._app.frame.page.table
        if table is None:
            return
        if spoken is not None:
            self.set_filter(" ".join(spoken.words))
        else:
            self._app.frame.prompt.open("filter", table.filter.text)

    def set_filter(self, text: str) -> None:
        """Show only rows of the page's table with these words."""
        table = self._app.frame.page.table
        if table is not None:
            table.filter = Filter(text)
            self._app.redraw()

    def command(self) -> None:
        """Ask for a command."""
        available, model = self._app.available(), self._app.model
        self._app.frame.prompt.open("command", "", lambda text: complete(text, available, model))

    def zoom(self, steps: int) -> None:
        """Show a longer stretch of time, or a shorter one if negative."""
        self._app.frame.window.zoom(steps)
        self._app.redraw()

    def theme(self, spoken: Spoken | None) -> None:
        """Take the other theme, or the one that was named."""
        look = self._app.look
        named = spoken.word(0) if spoken is not None else None
        if named is not None:
            look.palette = LIGHT if _named(named, ["dark", "light"]) == "light" else DARK
        else:
            look.palette = LIGHT if look.palette.dark else DARK
        self._app.theme = look.palette.name
        self._app.redraw()


class Playing:
    """The controls of a recording."""

    def __init__(self, app: "ProrsaConsole") -> None:
        self._app = app

    @property
    def _player(self) -> Player:
        player = self._app.feed.player
        assert player is not None
        return player

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        return {
            "toggle_play": lambda _: self._then_tick(self._player.toggle),
            "seek_back": lambda _: self.seek_by(-SEEK_STEP_S),
            "seek_on": lambda _: self.seek_by(SEEK_STEP_S),
            "step": lambda _: self._player.step(),
            "slower": lambda _: self._then_tick(lambda: self._player.scale(0.5)),
            "faster": lambda _: self._then_tick(lambda: self._player.scale(2.0)),
            "speed": self.speed,
            "seek": self.seek,
            "next_decision": lambda _: self.jump("decision"),
            "next_flip": lambda _: self.jump("flip"),
            "next_alert": lambda _: self.jump("alert"),
        }

    def _then_tick(self, act: Callable[[], object]) -> None:
        act()
        self._app.tick()

    def seek_by(self, step_s: float) -> None:
        """Go on by so many seconds of the run, back if negative."""
        now_ns = self._app.feed.status().now_ns
        if now_ns is not None:
            self._player.seek(now_ns + nanoseconds(step_s))

    def seek(self, spoken: Spoken | None) -> None:
        """Go to the time that was named, or ask for one."""
        named = spoken.word(0) if spoken is not None else None
        if named is not None:
            self._player.seek(nanoseconds(parse_time_s(named)))
            return
        field = Field("time", "time", hint="from the run's beginning: 90s, 12m, 1h5m, 00:12:30", check=parse_time_s)

        def go(answers: dict[str, str] | None) -> None:
            if answers is not None:
                self._player.seek(nanoseconds(parse_time_s(answers["time"])))

        self._app.push_screen(AskFields((field,), "Go to", self._app.look), go)

    def speed(self, spoken: Spoken | None) -> None:
        """Set the speed that was named."""
        named = (spoken.word(0) if spoken is not None else None) or ""
        try:
            factor = float(named.lstrip("x×"))
        except ValueError:
            factor = 0.0
        if factor <= 0:
            raise InputError("speed takes a number of run seconds a second, as in :speed 20")
        self._then_tick(lambda: self._player.set_speed(factor))

    def jump(self, kind: str) -> None:
        """Go to the next decision that moves workers, flip, or alert, and pause there."""
        moment_ns = self._player.next_moment(kind)
        if moment_ns is None:
            self._app.notify(f"No further {kind} in this recording.")
            return
        self._player.pause()
        self._player.seek(moment_ns)
        self._app.tick()


def parse_time_s(text: str) -> float:
    """Seconds from the run's beginning: a duration, or ``hh:mm:ss`` as the console writes it.

    Raises:
        InputError: if it is neither.
    """
    parts = text.strip().split(":")
    if len(parts) in (2, 3) and all(part.isdigit() for part in parts):
        hours, minutes, seconds = [0, *map(int, parts)][-3:]
        return 3600.0 * hours + 60.0 * minutes + seconds
    if text.strip() in ("0", "0s"):
        return 0.0
    return parse_duration_s(text)


def _named(text: str, names: list[str]) -> str:
    found = [name for name in names if name.lower().startswith(text.lower()) and name]
    if not found:
        raise InputError(f"{text!r}: there are {', '.join(name for name in names if name) or 'no orders here'}")
    return found[0]
