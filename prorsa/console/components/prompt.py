"""The line in which commands and filters are typed, with what would complete them above it."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from prorsa.console.look import Look

_SHOWN = 6


class PromptInput(Input):
    """The field itself; tab takes the first completion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", show=False, priority=True),
        Binding("escape", "cancel", show=False, priority=True),
        Binding("up", "recall(-1)", show=False, priority=True),
        Binding("down", "recall(1)", show=False, priority=True),
    ]

    class Complete(Message):
        """The text is to be completed."""

    class Recall(Message):
        """Another of the commands before is wanted."""

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

    class Cancel(Message):
        """Nothing is to be done."""

    def action_complete(self) -> None:
        """Ask for the completion."""
        self.post_message(self.Complete())

    def action_cancel(self) -> None:
        """Give up."""
        self.post_message(self.Cancel())

    def action_recall(self, steps: int) -> None:
        """Ask for another command of before."""
        self.post_message(self.Recall(steps))


class Prompt(Vertical):
    """Opens for a command or a filter, and tells the app what was typed."""

    class Entered(Message):
        """A line has been entered."""

        def __init__(self, kind: Literal["command", "filter"], text: str) -> None:
            super().__init__()
            self.kind = kind
            self.text = text

    class Closed(Message):
        """The line is closed, with or without a result."""

    def __init__(self, look: Look) -> None:
        super().__init__(id="prompt")
        self.look = look
        self.kind: Literal["command", "filter"] = "command"
        self.history: list[str] = []
        self._at = 0
        self._complete: Callable[[str], Sequence[str]] = lambda _: ()
        self._sign = Static(id="prompt-sign")
        self._field = PromptInput(compact=True, id="prompt-field")
        self._offers = Static(id="prompt-offers")

    def compose(self) -> ComposeResult:
        """What would complete it, the sign and the field."""
        yield self._offers
        with Horizontal(id="prompt-line"):
            yield self._sign
            yield self._field

    @property
    def is_open(self) -> bool:
        """Whether something is being typed."""
        return self.has_class("open")

    def open(
        self, kind: Literal["command", "filter"], text: str, complete: Callable[[str], Sequence[str]] = lambda _: ()
    ) -> None:
        """Ask for a line."""
        self.kind = kind
        self._complete = complete
        self._at = len(self.history)
        self._sign.update(":" if kind == "command" else "/")
        self.add_class("open")
        self._field.value = text
        self._field.cursor_position = len(text)
        self._field.focus()
        self._offer()

    def close(self) -> None:
        """Close the line."""
        if self.is_open:
            self.remove_class("open")
            self.post_message(self.Closed())

    def _offer(self) -> None:
        offers = list(self._complete(self._field.value))
        text = Text()
        for offer in offers[:_SHOWN]:
            text.append(self.look.plain(offer) + "   ", self.look.style("muted"))
        if len(offers) > _SHOWN:
            text.append(self.look.plain(f"… {len(offers) - _SHOWN} more"), self.look.style("faint"))
        self._offers.update(text)
        self._offers.display = bool(offers)

    @on(Input.Changed)
    def changed(self) -> None:
        """Offer anew; a filter works while it is typed."""
        self._offer()
        if self.kind == "filter" and self.is_open:
            self.post_message(self.Entered("filter", self._field.value))

    @on(PromptInput.Complete)
    def completed(self) -> None:
        """Take the first offer, as far as all offers agree if there are several."""
        offers = list(self._complete(self._field.value))
        if offers:
            self._field.value = _common(offers) if len(offers) > 1 else offers[0] + " "
            self._field.cursor_position = len(self._field.value)

    @on(PromptInput.Recall)
    def recalled(self, event: PromptInput.Recall) -> None:
        """Show one of the commands before."""
        if self.kind == "command" and self.history:
            self._at = min(max(self._at + event.steps, 0), len(self.history) - 1)
            self._field.value = self.history[self._at]
            self._field.cursor_position = len(self._field.value)

    @on(PromptInput.Cancel)
    def cancelled(self) -> None:
        """Do nothing; a filter that was being typed is taken off."""
        if self.kind == "filter":
            self.post_message(self.Entered("filter", ""))
        self.close()

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Hand the line on."""
        text = event.value.strip()
        if self.kind == "command" and text:
            self.history.append(text)
            del self.history[:-100]
        self.close()
        self.post_message(self.Entered(self.kind, text))


def _common(offers: Sequence[str]) -> str:
    """What all offers begin with."""
    first, last = min(offers), max(offers)
    for index, char in enumerate(first):
        if index >= len(last) or char != last[index]:
            return first[:index]
    return first
