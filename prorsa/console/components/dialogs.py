"""The dialog that asks before an action: what would come of it, the questions, and two buttons."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from prorsa.console.forms import Ask, Field, Form
from prorsa.console.impact import Impact
from prorsa.console.look import Look
from prorsa.errors import InputError, ProrsaError
from prorsa.events import Command
from prorsa.lines import effect_lines

Rehearse = Callable[[tuple[Ask, ...]], None]
"""Has the controller asked what would come of requests; :meth:`ActionDialog.told` is called with its answers."""

_NAME_CELLS = 20


class Choice(Static, can_focus=True):
    """One of several words; left and right, or a click, choose."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,space", "shift(1)", "Next", show=False),
        Binding("left", "shift(-1)", "Previous", show=False),
    ]

    class Changed(Message):
        """Another word has been chosen."""

    def __init__(self, options: tuple[str, ...], value: str, look: Look, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.look = look
        self.options = options
        self.value = value

    def render(self) -> Text:
        """The words, the chosen one in brackets."""
        text = Text()
        for option in self.options:
            chosen = option == self.value
            role = option if option in ("prefill", "decode") else "text"
            style = self.look.style("strong") + self.look.style(role) if chosen else self.look.style("muted")
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


class ActionDialog(ModalScreen[tuple[Ask, ...] | None]):
    """Asks a form; gives the requests, or None if it was cancelled. The focus starts on Cancel.

    The effect is first told from the latest view, and then by the controller, which is asked for a dry run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(self, form: Form, look: Look, rehearse: Rehearse) -> None:
        super().__init__()
        self.form = form
        self.look = look
        self._rehearse = rehearse
        self._questions = {field.name: _question(field, look) for field in form.fields}
        self._impact = Static(id="impact")
        self._dry_run = Static(id="dry-run")
        self._error = Static(id="error")
        self._typed_word: str | None = None
        self._typed = Input(id="typed", compact=True)
        self._typed_row = Horizontal(classes="field", id="typed-row")

    def compose(self) -> ComposeResult:
        """The effect on top, the questions, then the buttons."""
        with Vertical(id="dialog"):
            with VerticalScroll(id="effect", can_focus=False):
                yield self._impact
                yield self._dry_run
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
        self._ask_controller()

    def answers(self) -> dict[str, str]:
        """What the questions are answered with now."""
        return {name: widget.value for name, widget in self._questions.items()}

    @on(Input.Changed)
    @on(Choice.Changed)
    def answered(self) -> None:
        """An answer has changed: what was wrong with the one before is over."""
        self._error.update("")
        self.update_impact()
        self._ask_controller()

    def _ask_controller(self) -> None:
        """Have the controller say what would come of the present answers."""
        try:
            # A dry run needs no reason; what else is missing is told by the impact.
            asks = self.form.asks({**self.answers(), "reason": self.answers()["reason"] or "dry run"})
        except InputError:
            self._dry_run.update("")
            self._rehearse(())
            return
        self._dry_run.update(self._tell("asking the controller …", "muted"))
        self._rehearse(asks)

    def told(self, results: Sequence[tuple[Ask, Command | ProrsaError]]) -> None:
        """What the controller says would come of the answers, request by request."""
        text = self._tell("The controller, asked for a dry run:", "muted")
        for ask, result in results:
            text.append_text(self._told(f"{ask.target}: " if len(results) > 1 else "", result))
        text.rstrip()
        self._dry_run.update(text)

    def _told(self, name: str, result: Command | ProrsaError) -> Text:
        if isinstance(result, ProrsaError):
            return self._tell(f"{name}no dry run: {result}", "muted")
        if result.state == "rejected" or result.effect is None:
            why = result.detail or "it does not say why"
            return self._tell(f"! {name}the controller would refuse: {why}", "critical")
        text = self._tell(f"{name}{result.detail or 'it would be accepted'}", "good")
        for line in effect_lines(result.effect):
            text.append_text(self._tell(f"  {line}", "warning" if line.startswith("guard") else "text"))
        return text

    def _tell(self, text: str, style: str) -> Text:
        return Text(self.look.plain(text) + "\n", self.look.style(style))

    def update_impact(self) -> None:
        """Say what the present answers would do, by the present view."""
        try:
            impact = self.form.impact(self.answers())
        except InputError as error:
            # No effect can be named yet: an effect of earlier answers must not stay on the screen.
            self._typed_word = None
            text = Text(self.look.plain(str(error)), self.look.style("muted"))
        else:
            self._typed_word = impact.typed
            text = self._describe(impact)
        self._impact.update(text)
        # What need not be typed any more takes the focus with it, and keys would go nowhere.
        left_alone = self.focused is self._typed and self._typed_word is None
        self._typed_row.display = self._typed_word is not None
        self._typed.placeholder = self._typed_word or ""
        if left_alone:
            self.query_one("#confirm").focus()

    def _describe(self, impact: Impact) -> Text:
        text = Text()
        for name, value in impact.facts:
            text.append(f"{name:<{_NAME_CELLS}}", self.look.style("muted"))
            text.append(self.look.plain(value) + "\n", self.look.style("text"))
        for warning in impact.warnings:
            text.append(f"! {self.look.plain(warning)}\n", self.look.style("warning"))
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
        self.dismiss(self.form.asks(answers))

    def _refuse(self, text: str, field: str) -> None:
        self._error.update(Text(f"! {self.look.plain(text)}", self.look.style("critical")))
        self.query_one(f"#{field}").focus()


def _question(field: Field, look: Look) -> Choice | Input:
    if field.options:
        return Choice(field.options, field.value, look, id=field.name)
    return Input(field.value, placeholder=field.hint, id=field.name, compact=True, select_on_focus=False)
