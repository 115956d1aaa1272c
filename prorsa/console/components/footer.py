"""The last line: the actions that work here, each a key and a click."""

from collections.abc import Sequence

from rich.style import Style

from prorsa.console.actions import Action, find, footer
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look
from prorsa.console.model import ConsoleModel
from prorsa.console.status import FeedKind


class Footer(Drawing):
    """Made from the list of actions; what does not fit is left to the help page."""

    def __init__(self, model: ConsoleModel, look: Look, *, kind: FeedKind, read_only: bool) -> None:
        super().__init__(model, look, id="footer")
        self.kind: FeedKind = kind
        self.read_only = read_only
        self.steering_first = True
        """Whether the page is one of workers; on others what looks into its rows comes first."""
        self.detailed = False
        """Whether the details of a row are open: then the way back takes the place of the way in."""

    def fitting(self, width: int) -> list[Action]:
        """The actions that fit into ``width``; help and quit always do."""
        offered = [
            find("back") if self.detailed and action.id == "details" else action
            for action in footer(self.kind, read_only=self.read_only)
            if action.id not in ("approve", "reject") or self.model.proposal is not None
        ]
        if not self.steering_first:
            offered.sort(key=lambda action: action.group == "Steer" and action.id not in ("approve", "reject"))
        must = [action for action in offered if action.id in ("help", "leave")]
        room = width - 1 - sum(_width(action) for action in must)
        chosen = []
        for action in offered:
            if action in must:
                chosen.append(action)
            elif _width(action) <= room:
                chosen.append(action)
                room -= _width(action)
        return chosen

    def lines(self, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002 - one line
        """One line of keys."""
        line = self.line().gap()
        for action in self.fitting(width):
            click = Style(meta={"@click": f"app.do('{action.id}')"})
            line.add(f" {action.shown} ", self.look.style("key") + click).add(
                f" {action.label}", self.look.style("text") + click
            ).gap(2)
        return [line]


def _width(action: Action) -> int:
    return len(action.shown) + len(action.label) + 5
