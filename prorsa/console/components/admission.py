"""How many trajectories are live, beside how many the prefix caches hold, what is done about it, and why."""

from collections.abc import Sequence
from typing import Final

from prorsa.console.components.charts import bar
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count
from prorsa.events import Admission

_NAME: Final = 14
_BAR: Final = 16


def live_trajectories(model: ConsoleModel) -> int | None:
    """Trajectories that have been dispatched and have not ended; None where nobody follows them."""
    states = {} if model.view is None else model.view.trajectories
    return sum(number for state, number in states.items() if state != "done") if states else None


def crowded(admission: Admission, live: int | None) -> bool:
    """Whether more are live than the caches hold."""
    return live is not None and admission.limit is not None and live > admission.limit


class AdmissionLine(Drawing):
    """One line: a bar of the live trajectories up to the number that the caches hold, and what the controller says."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="admission")

    def lines(self, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002 - one line
        """Bar, numbers, gate, reason."""
        view = self.model.view
        if view is None:
            return []
        line = self.line().gap().add(fit("admission", _NAME, self.look), "muted")
        said, live = view.admission, live_trajectories(self.model)
        if said is None:
            return [line.add("unknown: the controller has not said how many trajectories the caches hold", "muted")]
        over = crowded(said, live)
        tone = "warning" if over else "text"
        share = None if said.limit is None or live is None else live / said.limit
        style = self.look.style(tone if over else "muted") + self.look.style("track")
        line.add(bar(share, _BAR, self.look), style).gap(2)
        line.add(("! " if over else "") + count(live), tone).add(" live of ", "muted")
        line.add("any number" if said.limit is None else count(said.limit), "strong").gap(2)
        gate = said.mode == "gate"
        line.add("GATE ON" if gate else "advice only", "strong" if gate else "muted").gap(2)
        return [line.add(fit_words(said.reason, max(width - line.width - 1, 0), self.look), "muted")]
