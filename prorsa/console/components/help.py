"""The page of keys and commands, made from the list of actions."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from prorsa.console.actions import Action, by_group
from prorsa.console.look import Look

_SIGNS = (
    ("*", "pinned"),
    ("~", "flipping: P → D is on its way from prefill to decode"),
    ("!", "a guard spoke, something failed, or needs a look"),
    ("–", "unknown; never 0"),
    ("×3", "three alike in a row"),
)


class HelpPage(ModalScreen[None]):
    """What works here: keys, the commands that do the same, and what the signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "app.pop_screen", "Close", show=False),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, available: Sequence[Action], look: Look) -> None:
        super().__init__()
        self.available = available
        self.look = look
        self._page = VerticalScroll(id="help")

    def compose(self) -> ComposeResult:
        """A block a group."""
        with self._page:
            yield Static(self._keys())

    def on_mount(self) -> None:
        """Name the page."""
        self._page.border_title = "Keys and commands"
        self._page.border_subtitle = "j and k scroll, esc closes"

    def action_scroll(self, lines: int) -> None:
        """Scroll the page."""
        self._page.scroll_relative(y=lines, animate=False)

    def _keys(self) -> Table:
        """Three columns, of which the last goes on below itself where there is little room."""
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        for group, actions in by_group(self.available).items():
            table.add_row(self._text(group, "strong"), "", "")
            for action in actions:
                key, command = self._text(f" {action.shown}", "prefill"), self._text(f":{action.word}", "muted")
                table.add_row(key, command, self._text(action.help, "text"))
            table.add_row("", "", "")
        table.add_row(self._text("Signs", "strong"), "", "")
        for sign, meaning in _SIGNS:
            table.add_row(self._text(f" {sign}", "warning"), "", self._text(meaning, "text"))
        return table

    def _text(self, text: str, style: str) -> Text:
        return Text(self.look.plain(text), self.look.style(style))
