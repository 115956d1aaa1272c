"""Dialogs: the one that asks before an action, and the page of keys."""

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from prorsa.console.actions import Action, by_group
from prorsa.console.forms import Ask, Field, Form
from prorsa.console.impact import Impact
from prorsa.console.look import STYLES, Look
from prorsa.errors import InputError

_NAME_CELLS = 20


class Choice(Static, can_focus=True):
    """One of several words; left and right, or a click, choose."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "shift(1)", "Next", show=False),
        Binding("left", "shift(-1)", "Previous", show=False),
    ]

    class Changed(Message):
        """Another word has been chosen."""

    def __init__(self, options: tuple[str, ...], value: str, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.options = options
        self.value = value

    def render(self) -> Text:
        """The words, the chosen one in brackets."""
        text = Text()
        for option in self.options:
            chosen = option == self.value
            style = STYLES["strong"] + STYLES.get(option, STYLES["text"]) if chosen else STYLES["muted"]
            text.append(f"[{option}]" if chosen else f" {option} ", style)
            text.append(" ")
        return text

    def action_shift(self, steps: int) -> None:
        """Choose the word ``steps`` further, around the ends."""
        self.value = self.options[(self.options.index(self.value) + steps) % len(self.options)]
        self.refresh()
        self.post_message(self.Changed())

    def on_click(self) -> None:
        """Choose the next word."""
        self.focus()
        self.action_shift(1)


class ActionDialog(ModalScreen[Ask | None]):
    """Asks a form; gives the request, or None if it was cancelled. The focus starts on Cancel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(self, form: Form, look: Look) -> None:
        super().__init__()
        self.form = form
        self.look = look
        self._questions = {field.name: _question(field) for field in form.fields}
        self._impact = Static(id="impact")
        self._error = Static(id="error")
        self._typed_word: str | None = None
        self._typed = Input(id="typed", compact=True)
        self._typed_row = Horizontal(classes="field", id="typed-row")

    def compose(self) -> ComposeResult:
        """The effect on top, the questions, then the buttons."""
        with Vertical(id="dialog"):
            yield self._impact
            for field in self.form.fields:
                with Horizontal(classes="field"):
                    yield Label(self.look.plain(field.label), classes="name")
                    yield self._questions[field.name]
            with self._typed_row:
                yield Label("type to confirm", classes="name")
                yield self._typed
            yield self._error
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(self.form.confirm, id="confirm", compact=True, variant="warning")

    def on_mount(self) -> None:
        """Show the effect; put the focus where Enter does no harm."""
        self.query_one("#dialog").border_title = self.form.title
        self.query_one("#dialog").border_subtitle = "tab moves, esc cancels"
        self.query_one("#cancel").focus()
        self.update_impact()

    def answers(self) -> dict[str, str]:
        """What the questions are answered with now."""
        return {name: widget.value for name, widget in self._questions.items()}

    @on(Input.Changed)
    @on(Choice.Changed)
    def answered(self) -> None:
        """An answer has changed: what was wrong with the one before is over."""
        self._error.update("")
        self.update_impact()

    def update_impact(self) -> None:
        """Say what the present answers would do, by the present view."""
        try:
            impact = self.form.impact(self.answers())
        except InputError as error:
            # No effect can be named yet: an effect of earlier answers must not stay on the screen.
            self._typed_word = None
            text = Text(self.look.plain(str(error)), STYLES["muted"])
        else:
            self._typed_word = impact.typed
            text = self._describe(impact)
        self._impact.update(text)
        self._typed_row.display = self._typed_word is not None
        self._typed.placeholder = self._typed_word or ""

    def _describe(self, impact: Impact) -> Text:
        text = Text()
        for name, value in impact.facts:
            text.append(f"{name:<{_NAME_CELLS}}", STYLES["muted"])
            text.append(self.look.plain(value) + "\n", STYLES["text"])
        for warning in impact.warnings:
            text.append(f"! {self.look.plain(warning)}\n", STYLES["warning"])
        text.rstrip()
        return text

    @on(Input.Submitted)
    def to_confirm(self) -> None:
        """Enter in a line of text goes on to the next question, from the last to the button that confirms."""
        self.focus_next()
        if self.focused is not None and self.focused.id == "cancel":
            self.query_one("#confirm").focus()

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Send nothing."""
        self.dismiss(None)

    @on(Button.Pressed, "#confirm")
    def confirm(self) -> None:
        """Check the answers; hand the request back, or say what is missing and go there."""
        answers = self.answers()
        for field in self.form.fields:
            try:
                if field.check is not None:
                    field.check(answers[field.name])
            except InputError as error:
                self._refuse(str(error), field.name)
                return
        if self._typed_word is not None and self._typed.value != self._typed_word:
            self._refuse(f"type {self._typed_word} to confirm", "typed")
            return
        self.dismiss(self.form.ask(answers))

    def _refuse(self, text: str, field: str) -> None:
        self._error.update(Text(f"! {self.look.plain(text)}", STYLES["critical"]))
        self.query_one(f"#{field}").focus()


def _question(field: Field) -> Choice | Input:
    if field.options:
        return Choice(field.options, field.value, id=field.name)
    return Input(field.value, placeholder=field.hint, id=field.name, compact=True, select_on_focus=False)


class AskText(ModalScreen[str | None]):
    """Asks for one line of text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def __init__(self, field: Field, title: str) -> None:
        super().__init__()
        self.field = field
        self.title_text = title

    def compose(self) -> ComposeResult:
        """The question and its field."""
        with Vertical(id="dialog"):
            yield Input(self.field.value, placeholder=self.field.hint, id=self.field.name, compact=True)
            yield Static(id="error")

    def on_mount(self) -> None:
        """Show what is asked."""
        self.query_one("#dialog").border_title = self.title_text

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        """Give the text, if it passes the check."""
        try:
            if self.field.check is not None:
                self.field.check(event.value)
        except InputError as error:
            self.query_one("#error", Static).update(Text(f"! {error}", STYLES["critical"]))
            return
        self.dismiss(event.value)

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


class HelpPage(ModalScreen[None]):
    """All keys, made from the list of actions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "app.pop_screen", "Close", show=False)
    ]

    def __init__(self, available: list[Action], look: Look) -> None:
        super().__init__()
        self.available = available
        self.look = look

    def compose(self) -> ComposeResult:
        """A block a group."""
        with VerticalScroll(id="help"):
            yield Static(self._keys())

    def on_mount(self) -> None:
        """Name the page."""
        self.query_one("#help").border_title = "Keys"
        self.query_one("#help").border_subtitle = "esc closes"

    def _keys(self) -> Text:
        text = Text()
        for group, actions in by_group(self.available).items():
            text.append(f"{group}\n", STYLES["strong"])
            for action in actions:
                text.append(f"  {self.look.plain(action.shown):<6}", STYLES["prefill"])
                text.append(f"{self.look.plain(action.help)}\n", STYLES["text"])
            text.append("\n")
        text.rstrip()
        return text
