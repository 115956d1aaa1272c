"""What operators have asked for, and what became of it."""

from collections.abc import Sequence

from prorsa.clock import seconds
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.requests import ENDED, RequestLife
from prorsa.console.text import span

TONES = {
    "requested": "warning",
    "accepted": "text",
    "draining": "warning",
    "effective": "good",
    "rejected": "critical",
    "unanswered": "critical",
    "expired": "muted",
    "released": "muted",
}


class RequestPanel(Drawing):
    """Requests, those in force first, each with the states it has been through."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="requests", classes="panel")
        self.roomy = False
        """Whether every request gets a second line, for its reason."""

    def shown(self) -> list[RequestLife]:
        """Those in force or pending, newest first, then the rest, newest first."""
        lives = list(self.model.requests)[::-1]
        return [life for life in lives if life.in_force or life.pending] + [
            life for life in lives if not (life.in_force or life.pending)
        ]

    def content_lines(self) -> int:
        """A line a request, two on wide screens, and one that says that there is none."""
        return max((2 if self.roomy else 1) * len(self.shown()), 1)

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """A line a request."""
        shown = self.shown()
        if not shown:
            return [
                self.line()
                .gap()
                .add(fit("nothing is held: P pins the selected worker, O holds a split", width - 2, self.look), "muted")
            ]
        what = min(max(len(life.what()) for life in shown), 24)
        roomy = self.roomy and 2 * len(shown) <= height
        lines = []
        for life in shown[:height]:
            lines.append(self._line(life, what, width, noted=not roomy))
            if roomy:
                note = self.line().gap(what + 3)
                lines.append(
                    note.add(fit_words(self._note(life), width - note.width - 1, self.look), self._note_tone(life))
                )
        return lines

    def _line(self, life: RequestLife, what: int, width: int, *, noted: bool) -> Line:
        over = life.state in ENDED
        line = self.line().gap().add(fit(life.what(), what, self.look), "muted" if over else "strong").gap(2)
        right = self.line()
        if life.in_force and life.expires_ns is not None:
            right.add(f"{span(max(seconds(life.expires_ns - self.model.now_ns), 0.0))} left").gap()
        self._states(line, life, width - line.width - right.width - 2)
        rest = width - line.width - right.width - 4
        if noted and rest >= 12:
            line.gap(2).add(fit_words(self._note(life), rest, self.look), self._note_tone(life))
        return line.right(right, width)

    def _note(self, life: RequestLife) -> str:
        if life.state in ("rejected", "unanswered") and life.detail:
            return life.detail
        return f"{life.owner}: {life.reason}"

    def _note_tone(self, life: RequestLife) -> str:
        return TONES[life.state] if life.state in ("rejected", "unanswered") else "muted"

    def _states(self, line: Line, life: RequestLife, room: int) -> None:
        """As many of the states as there is room for, the latest for sure."""
        states = list(life.states)
        while len(states) > 1 and sum(len(state) + 3 for state in states) - 3 > room:
            del states[0]
        for index, state in enumerate(states):
            if index:
                line.add(" → ", "faint")
            line.add(state, TONES[state] if index == len(states) - 1 else "muted")
