"""All there is to say about one thing: beside a table on wide screens, and in place of it after Enter."""

from collections.abc import Sequence

from textual.geometry import Size

from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit, wrap
from prorsa.console.model import ConsoleModel

_MOST_LINES = 2000


class Detail(Drawing):
    """Says everything about a subject that it looks up at every drawing, so that it stays current."""

    def __init__(self, model: ConsoleModel, look: Look, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(model, look, id=id, classes="panel detail")

    @property
    def restless(self) -> bool:
        """Whether it changes by itself, and so is drawn at every tick."""
        return False

    def title(self) -> str:
        """What it is about."""
        raise NotImplementedError

    def body(self, width: int) -> Sequence[Line]:
        """Everything, as long as it is."""
        raise NotImplementedError

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """As much of it as fits."""
        return self.body(width)[:height]

    def redraw(self) -> None:
        """Draw again, with the title as it is now."""
        self.border_title = self.look.plain(self.title())
        super().redraw()

    def content_lines(self) -> int:
        """Its length at its present width."""
        return min(max(len(self.body(max(self.size.width, 20))), 1), _MOST_LINES)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's signature
        """Its length at that width."""
        self._laid_out_lines = min(max(len(self.body(width)), 1), _MOST_LINES)
        return self._laid_out_lines

    # --- building blocks ---------------------------------------------------------------------------------------------

    def heading(self, text: str, width: int) -> Line:
        """A word and a rule behind it."""
        line = self.line().gap().add(text, "muted").gap()
        return line.add(self.look.glyphs.rule * max(width - line.width - 1, 0), "faint")

    def fact(self, name: str, value: str, width: int, style: str = "text", *, names: int = 16) -> list[Line]:
        """A name and its value, which goes on below itself where it is long."""
        parts = wrap(value, max(width - names - 2, 8)) or [""]
        lines = [self.line().gap().add(fit(name, names, self.look), "muted").add(parts[0], style)]
        return lines + [self.line().gap(names + 1).add(part, style) for part in parts[1:]]

    def say(self, text: str, width: int, style: str = "text") -> list[Line]:
        """A text over the whole width."""
        return [self.line().gap().add(part, style) for part in wrap(text, max(width - 2, 8))]
