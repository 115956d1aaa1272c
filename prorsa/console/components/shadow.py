"""The policy in shadow: how often it disagrees with the one that decides, over time, where last and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prorsa.beside import Disagreement, Handover, agreement
from prorsa.console.components.charts import sparkline
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.trends import Window
from prorsa.console.history import stretches
from prorsa.console.look import Line, Look, fit, fit_words, wrap
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count, percent, run_time
from prorsa.events import ShadowScore

_NAME = 14
_ROOMY = 16
"""Lines from which on reasons are told in full."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Disagreements about the same two splits in a row: the latest, how many, and when they began."""

    latest: Disagreement
    times: int
    begin_ns: int


def stretches_of(disagreements: Sequence[Disagreement]) -> Iterator[Stretch]:
    """Disagreements, newest first, with those alike in decisions that follow one another as one."""
    found: Stretch | None = None
    for one in reversed(disagreements):
        earlier = one.decision.decision_id + 1
        if found is not None and _alike(found.latest, one) and earlier == _first(found):
            found = Stretch(found.latest, found.times + 1, one.decision.tick_ns)
            continue
        if found is not None:
            yield found
        found = Stretch(one, 1, one.decision.tick_ns)
    if found is not None:
        yield found


def _first(stretch: Stretch) -> int:
    return stretch.latest.decision.decision_id - stretch.times + 1


def _alike(one: Disagreement, other: Disagreement) -> bool:
    return one.said.chosen == other.said.chosen and one.decision.chosen == other.decision.chosen


def score_text(score: ShadowScore) -> str:
    """How a policy in shadow compares, in a sentence."""
    share = agreement(score)
    if share is None:
        return f"nothing to compare yet in {score.decisions} decisions"
    more = score.prefill_more or 0.0
    text = f"agrees in {percent(share)} of {score.compared} decisions since {run_time(score.since_ns)}"
    if score.agreed < score.compared:
        text += f"; {score.prefill_apart or 0.0:.2f} prefill workers apart on average ({more:+.2f})"
    text += f"; would have moved workers in {score.would_move}, the active policy in {score.moved}"
    text += f"; handed over in {score.handed_over}" if score.handed_over else ""
    return text + (f"; failed in {score.failed}" if score.failed else "")


def handover_text(one: Handover) -> str:
    """One handover: who, when, for how long, why."""
    where = " (in shadow)" if one.in_shadow else ""
    until = "still away" if one.end_ns is None else f"back at {run_time(one.end_ns)}"
    return f"{run_time(one.begin_ns)} {one.policy}{where}, {until}: {one.reason}"


class ShadowPanel(Drawing):
    """The policy in shadow: score, disagreement over time, the latest disagreements with both reasons, handovers."""

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, id="shadow", classes="panel")
        self.window = window

    def redraw(self) -> None:
        """Draw again, with the name in the title."""
        score = self._score()
        self.border_title = self.look.plain("in shadow" if score is None else f"in shadow: {score.policy}")
        super().redraw()

    def _score(self) -> ShadowScore | None:
        return None if self.model.view is None else self.model.view.shadow

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """As much as fits; handovers keep their room below the disagreements."""
        score = self._score()
        if score is None:
            lines = self._say("none: H lets a second policy decide beside the active one, without acting", width)
        else:
            known = self.model.shadow.last
            failed = known is not None and known.chosen is None
            lines = self._say(score_text(score), width, "text")
            if failed and known is not None:
                lines += self._say(f"! {known.reason}", width, "warning")
            lines += [self._over_time(width)]
        handovers = self._handovers(width)[: max(height - len(lines) - 4, 2)]
        room = height - len(lines) - len(handovers)
        return [*lines, *self._disagreements(width, room), *handovers][:height]

    def _say(self, text: str, width: int, style: str = "muted") -> list[Line]:
        return [self.line().gap().add(part, style) for part in wrap(text, max(width - 2, 8))]

    def _over_time(self, width: int) -> Line:
        """The share of decisions that disagreed, by stretches of the window that the charts show."""
        line = self.line().gap().add(fit("disagreement", _NAME, self.look), "muted")
        end_s = self.model.tick_s
        columns = width - _NAME - 16
        if end_s is None or columns < 8:
            return line
        shares = [
            self.model.shadow.disagreed(from_s, to_s)
            for from_s, to_s in stretches(end_s - self.window.length_s, end_s, columns)
        ]
        line.add(sparkline(shares, 1.0, self.look), "warning").gap(2)
        return line.add(f"last {self.window.name()}", "muted")

    def _disagreements(self, width: int, room: int) -> list[Line]:
        found = self.model.shadow.disagreements()
        if not found or room < 2:
            return []
        lines = [self._heading("latest disagreements: in shadow, then what was decided", width)]
        for stretch in stretches_of(found):
            more = self._disagreement(stretch, width, whole=room >= _ROOMY)
            if len(lines) + len(more) > room:
                break
            lines += more
        return lines

    def _disagreement(self, stretch: Stretch, width: int, *, whole: bool) -> list[Line]:
        """Both splits, each with its reason: as much of it as fits a line, or the ``whole``."""
        decision, said = stretch.latest.decision, stretch.latest.said
        times = f"×{stretch.times}" if stretch.times > 1 else ""
        names = max(len(decision.policy), len(said.policy))
        lines = []
        for when, name, split, why, style in (
            (run_time(decision.tick_ns), said.policy, said.chosen, said.reason, "warning"),
            (f"{times:>8}", decision.policy, decision.chosen, decision.reason, "text"),
        ):
            line = self.line().gap().add(fit(when, 8, self.look), "muted").gap()
            line.add(fit(name, min(names, 18), self.look), "muted").gap().add(fit(str(split), 8, self.look), style)
            at, room = line.width, max(width - line.width - 1, 8)
            parts = wrap(why, room) if whole else [fit_words(why, room, self.look)]
            lines += [
                line.add(part, "muted") if not row else self.line().gap(at).add(part, "muted")
                for row, part in enumerate(parts or [""])
            ]
        return lines

    def _handovers(self, width: int) -> list[Line]:
        newest = list(self.model.shadow.handovers.all)[::-1]
        if not newest:
            return []
        lines = [self._heading(f"handovers: {count(len(newest))}", width)]
        for one in newest:
            style = "warning" if one.end_ns is None else "text"
            lines += self._say(handover_text(one), width, style)
        return lines

    def _heading(self, text: str, width: int) -> Line:
        line = self.line().gap().add(text, "muted").gap()
        return line.add(self.look.glyphs.rule * max(width - line.width - 1, 0), "faint")
