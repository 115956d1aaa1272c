"""What the frame asks of a page."""

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.containers import Container

from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.table import Table
from prorsa.console.components.trends import Window
from prorsa.console.look import Look
from prorsa.console.model import ConsoleModel


class Page(Container):
    """One tab.

    Attributes:
        key: its name in commands, and its id.
        title: its name on the tab; ``short`` where there is little room.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    short: ClassVar[str]

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(id=f"page-{self.key}", classes="page")
        self.model = model
        self.look = look
        self.window = window

    @property
    def table(self) -> Table[Any] | None:
        """The table that the cursor keys, filter, order and marks belong to."""
        return None

    def detail(self) -> Detail | None:
        """Everything about the row under the cursor; None where there is no row, or nothing more to say."""
        return None

    def drawings(self) -> Iterable[Drawing]:
        """What is drawn again when something has changed."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything from the model."""
        for drawing in self.drawings():
            drawing.redraw()
