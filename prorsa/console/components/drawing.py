"""The base of the console's widgets: lines drawn from the model when something has changed."""

from collections.abc import Sequence

from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from prorsa.console.look import Line, Look
from prorsa.console.model import ConsoleModel


class Drawing(Widget):
    """Draws ``lines`` of the model. Nothing is computed for a widget that is not on the screen."""

    DEFAULT_CSS = "Drawing { height: auto; }"

    def __init__(self, model: ConsoleModel, look: Look, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, classes=classes)
        self.model = model
        self.look = look
        self._laid_out_lines = 0
        self._drawn: tuple[tuple[int, int], list[Strip]] | None = None

    def lines(self, width: int, height: int) -> Sequence[Line | Strip]:
        """The lines of the widget, at most ``height`` of them; each is cut or padded to ``width``."""
        raise NotImplementedError

    def line(self) -> Line:
        """An empty line in the look of the console."""
        return Line(self.look)

    def content_lines(self) -> int:
        """How many lines the widget would like to have, where its height is left to it."""
        return 1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's signature
        """The height for Textual's layout."""
        self._laid_out_lines = self.content_lines()
        return self._laid_out_lines

    def redraw(self) -> None:
        """Draw again from the model as it is now."""
        self._drawn = None
        self.refresh(layout=self.content_lines() != self._laid_out_lines)

    def render_line(self, y: int) -> Strip:
        """One line of the drawing, for Textual."""
        width, height = self.size
        if self._drawn is None or self._drawn[0] != (width, height):
            strips = [item if isinstance(item, Strip) else item.strip(width) for item in self.lines(width, height)]
            self._drawn = ((width, height), strips)
        strips = self._drawn[1]
        strip = strips[y] if y < len(strips) else Strip.blank(width)
        return strip.adjust_cell_length(width).apply_style(self.rich_style)
