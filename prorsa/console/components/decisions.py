"""Decisions with their reason: the latest in full, those before it in a line each."""

from collections.abc import Sequence
from typing import Final

from prorsa.clock import seconds
from prorsa.console.components.charts import bar
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit, fit_words, wrap
from prorsa.console.model import ConsoleModel, DecisionEntry
from prorsa.console.text import count, run_time, span
from prorsa.events import Decision

STATUS_TONES: Final = {"hold": "muted", "applied": "good", "proposed": "warning", "observed": "text"}
_ALTERNATIVES: Final = 6
_REASON_CELLS: Final = 20
"""The least room in which the beginning of a reason says something."""
STATUS: Final = {
    "hold": ("HOLD", "badge-muted"),
    "applied": ("APPLIED", "badge-good"),
    "proposed": ("PROPOSED", "badge-warning"),
    "observed": ("OBSERVED", "badge-replay"),
}


class DecisionPanel(Drawing):
    """What the controller decided last, from what and why."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="decisions", classes="panel")

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The latest decision, as much of it as fits, then the earlier ones."""
        if not self.model.decisions:
            return [self.line().gap().add("no decision yet", "muted")]
        latest = self.model.decisions[0]
        lines = self._headline(latest, width)
        if height > 6:
            lines += self._details(latest.decision, width)
        if len(lines) + 2 < height:
            lines += self._earlier(width, height - len(lines))
        return lines[:height]

    def _headline(self, entry: DecisionEntry, width: int) -> list[Line]:
        decision = entry.decision
        text, style = STATUS[decision.status]
        line = self.line().gap().add(f" {text} ", style).gap()
        line.add(split_change(decision), "strong")
        if decision.wanted != decision.chosen:
            line.add(f" wanted {decision.wanted}", "warning")
        line.gap(2)
        line.add(f"#{decision.decision_id}", "muted")
        if entry.repeats > 1:
            line.add(f" ×{entry.repeats}", "muted")
        line.right(self.line().add(f"{self._age(decision)}", "muted").gap(), width)
        lines = [line]
        lines += [self.line().gap().add(text, "text") for text in wrap(decision.reason, width - 2)]
        for guard in decision.guards:
            parts = wrap(f"{guard.guard}: {guard.text}", width - 4)
            lines += [
                self.line().gap().add("! " if not row else "  ", "warning").add(part, "warning")
                for row, part in enumerate(parts)
            ]
        return lines

    def _age(self, decision: Decision) -> str:
        age_s = seconds(self.model.now_ns - decision.tick_ns)
        return "now" if age_s < 1 else f"{span(age_s)} ago"

    def _details(self, decision: Decision, width: int) -> list[Line]:
        lines = []
        for move in decision.moves:
            line = self.line().gap().add(f"{move.worker_id} ", "strong").add(move.from_role, move.from_role)
            line.add(f" {self.look.glyphs.arrow} ", "muted").add(move.to_role, move.to_role)
            lines.append(line.add(fit_words(f"  {move.reason}", width - line.width - 1, self.look), "muted"))
        lines += self._inputs(decision, width)
        return lines + self._alternatives(decision, width)

    def _inputs(self, decision: Decision, width: int) -> list[Line]:
        items = list(decision.inputs.items())
        if not items:
            return []
        lines = [self.line(), self._heading("inputs", width)]
        names = max(len(name) for name, _ in items)
        cell = min(names + 9, width - 2)
        per_line = max((width - 1) // cell, 1)
        for start in range(0, len(items), per_line):
            line = self.line().gap()
            for name, value in items[start : start + per_line]:
                line.add(fit(name.replace("_", " "), cell - 9, self.look), "muted").gap()
                line.add(fit(count(value), 6, self.look, align="right"), "text").gap(2)
            lines.append(line)
        return lines

    def _alternatives(self, decision: Decision, width: int) -> list[Line]:
        lines = alternative_lines(self, decision, width, bar_cells=10)[:_ALTERNATIVES]
        return [self.line(), self._heading("alternatives, by cost", width), *lines] if lines else []

    def _heading(self, text: str, width: int) -> Line:
        line = self.line().gap().add(text, "muted").gap()
        return line.add(self.look.glyphs.rule * max(width - line.width - 1, 0), "faint")

    def _earlier(self, width: int, room: int) -> list[Line]:
        entries = list(self.model.decisions)[1 : room - 1]
        if not entries:
            return []
        lines = [self.line(), self._heading("earlier", width)]
        change = max(len(split_change(entry.decision)) for entry in entries)
        return lines + [self._short(entry, change, width) for entry in entries]

    def _short(self, entry: DecisionEntry, change: int, width: int) -> Line:
        decision = entry.decision
        text, _ = STATUS[decision.status]
        tone = STATUS_TONES[decision.status]
        line = self.line().gap().add(run_time(decision.tick_ns), "muted").gap()
        line.add(fit(text.lower() + (f" ×{entry.repeats}" if entry.repeats > 1 else ""), 10, self.look), tone).gap()
        line.add(fit(split_change(decision), change, self.look), "text" if decision.status != "hold" else "muted").gap()
        room = width - line.width - 1
        return line.add(fit_words(decision.reason, room, self.look), "muted") if room >= _REASON_CELLS else line


def split_change(decision: Decision) -> str:
    """The split that was chosen, behind the one before where it is another."""
    if decision.current == decision.chosen:
        return str(decision.chosen)
    return f"{decision.current} → {decision.chosen}"


def alternative_lines(drawing: Drawing, decision: Decision, width: int, *, bar_cells: int) -> list[Line]:
    """The splits that were considered, cheapest first, with bars from the cheapest, or 0, to the dearest."""
    costed = [(option.cost, option) for option in decision.alternatives if option.cost is not None]
    if not costed:
        return []
    known = sorted(costed, key=lambda pair: pair[0])
    low, high = min(known[0][0], 0.0), known[-1][0]
    look, lines = drawing.look, []
    for cost, option in known:
        chosen = option.split == decision.chosen
        share = (cost - low) / (high - low) if high > low else 0.0
        line = drawing.line().gap().add(look.glyphs.live if chosen else " ", "good").gap()
        line.add(fit(str(option.split), 8, look), "strong" if chosen else "text")
        line.add(bar(share, bar_cells, look), look.style("muted") + look.style("track")).gap()
        line.add(fit(count(cost), 6, look, align="right"), "text").gap(2)
        lines.append(line.add(fit_words(option.note or "", max(width - line.width - 1, 0), look), "muted"))
    return lines
