"""The line of tabs: a number key and a name a page."""

from collections.abc import Sequence
from typing import Final

from rich.style import Style

from prorsa.console.actions import PAGES
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look
from prorsa.console.model import ConsoleModel

_SHORT: Final = {
    "overview": "Over",
    "workers": "Work",
    "trajectories": "Traj",
    "forecast": "Fcst",
    "decisions": "Decis",
    "policies": "Pol",
    "audit": "Audit",
    "log": "Log",
}


class Tabs(Drawing):
    """Names as long as there is room for, the current one filled."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="tabs")
        self.current = PAGES[0]

    def lines(self, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002 - one line
        """One line of tabs."""
        full = self._line({page: page.capitalize() for page in PAGES})
        if full.width <= width:
            return [full]
        short = self._line(_SHORT)
        return [short if short.width <= width else self._line(dict.fromkeys(PAGES, ""))]

    def _line(self, names: dict[str, str]) -> Line:
        line = self.line().gap()
        for number, page in enumerate(PAGES, 1):
            click = Style(meta={"@click": f"app.do('show_{page}')"})
            text = f" {number} {names[page]} " if names[page] else f" {number} "
            chosen = page == self.current
            line.add(
                text if not chosen or not self.look.glyphs.ascii else f"[{text.strip()}]",
                self.look.style("tab" if chosen else "muted") + click,
            )
        return line
