"""Small questions: a line of text, and whether to leave."""

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from prorsa.console.forms import Field
from prorsa.console.look import Look
from prorsa.errors import InputError


class AskFields(ModalScreen[dict[str, str] | None]):
    """Asks for a few lines of text, one after the other."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def __init__(self, fields: tuple[Field, ...], title: str, look: Look) -> None:
        super().__init__()
        self.fields = fields
        self.title_text = title
        self.look = look

    def compose(self) -> ComposeResult:
        """The questions."""
        with Vertical(id="dialog"):
            for field in self.fields:
                with Horizontal(classes="field"):
                    yield Label(self.look.plain(field.label), classes="name")
                    yield Input(field.value, placeholder=self.look.plain(field.hint), id=field.name, compact=True)
            yield Static(id="error")

    def on_mount(self) -> None:
        """Show what is asked."""
        self.query_one("#dialog").border_title = self.title_text
        self.query_one("#dialog").border_subtitle = "enter goes on, esc cancels"
        self.query(Input).first().focus()

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        """Go on to the next question; after the last give the answers, if they pass their checks."""
        if event.input is not self.query(Input).last():
            self.focus_next()
            return
        answers = {field.name: self.query_one(f"#{field.name}", Input).value for field in self.fields}
        for field in self.fields:
            try:
                if field.check is not None:
                    field.check(answers[field.name])
            except InputError as error:
                text = self.look.plain(f"! {field.label}: {error}")
                self.query_one("#error", Static).update(Text(text, self.look.style("critical")))
                self.query_one(f"#{field.name}").focus()
                return
        self.dismiss(answers)

    def action_cancel(self) -> None:
        """Give nothing."""
        self.dismiss(None)


class ConfirmLeave(ModalScreen[bool]):
    """Asks before leaving while something that was asked for has not come into effect."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "Stay", show=False),
        Binding("y,q", "answer(True)", "Quit", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, pending: list[str]) -> None:
        super().__init__()
        self.pending = pending

    def compose(self) -> ComposeResult:
        """What is pending, and two buttons."""
        with Vertical(id="dialog"):
            yield Static("Not in effect yet:\n" + "\n".join(f"  {text}" for text in self.pending), markup=False)
            yield Static("They go on without the console.", classes="muted")
            with Horizontal(id="buttons"):
                yield Button("Stay", id="stay", compact=True)
                yield Button("Quit", id="quit", compact=True, variant="warning")

    def on_mount(self) -> None:
        """Name the question."""
        self.query_one("#dialog").border_title = "Quit the console?"
        self.query_one("#stay").focus()

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """Answer by button."""
        self.dismiss(event.button.id == "quit")

    def action_answer(self, leave: bool) -> None:
        """Answer by key."""
        self.dismiss(leave)
