"""The policies: which one decides, what became of its wishes, and how it compares; unknown where nothing is known."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from textual.app import ComposeResult
from textual.containers import Container, Horizontal

from prorsa.clock import seconds
from prorsa.console.components.charts import bar
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.shadow import ShadowPanel, handover_text, score_text, stretches_of
from prorsa.console.components.table import Column, Piece, Table, cell, number
from prorsa.console.components.trends import Window
from prorsa.console.look import Line, Look, fit
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.record import PolicyStint
from prorsa.console.text import percent, ratio, run_time, span


class PolicyTable(Table[PolicyStint]):
    """The policies of the run in the order in which they decided, the active one on top."""

    title = "policies of this run, the active one on top"
    empty = "no decision yet"

    def all_rows(self) -> Sequence[PolicyStint]:
        """Newest first."""
        return self.model.policies.stints[::-1]

    def key_of(self, row: PolicyStint) -> str:
        """Its beginning."""
        return str(row.begin_ns)

    def text_of(self, row: PolicyStint) -> str:
        """Its name."""
        return row.policy

    def columns(self) -> Sequence[Column[PolicyStint]]:
        """What it decided."""
        return (
            Column("SINCE", 8, 0, lambda row, w: cell(run_time(row.begin_ns), w, self.look, "muted")),
            Column("POLICY", 18, 0, lambda row, w: cell(row.policy, w, self.look, "strong"), stretch=14),
            Column("DECISIONS", 9, 1, lambda row, w: number(str(row.total), w, self.look), align="right"),
            Column("MOVES", 5, 1, lambda row, w: number(str(row.moves), w, self.look), align="right"),
            Column("WISHES", 6, 2, lambda row, w: number(str(row.wishes), w, self.look), align="right"),
            Column("CHANGED", 7, 2, self._say_changed, align="right"),
        )  # fmt: skip

    def _say_changed(self, row: PolicyStint, width: int) -> list[Piece]:
        return number(percent(ratio(row.changed, row.wishes)), width, self.look)


class PolicyDetail(Detail):
    """One policy's record, and what is known of others beside it."""

    def __init__(
        self, model: ConsoleModel, look: Look, table: PolicyTable, *, stint: PolicyStint | None = None
    ) -> None:
        super().__init__(model, look)
        self._table = table
        self._stint = stint

    @property
    def stint(self) -> PolicyStint | None:
        """The one that it is about."""
        return self._table.selected if self._stint is None else self._stint

    def title(self) -> str:
        """Its name."""
        return "policy" if self.stint is None else f"policy {self.stint.policy}"

    def body(self, width: int) -> Sequence[Line]:
        """Record, guards, disagreements, handovers."""
        stint = self.stint
        if stint is None:
            return self.say("no decision yet", width, "muted")
        return self._record(stint, width) + self._guards(stint, width) + self._others(width)

    def _record(self, stint: PolicyStint, width: int) -> list[Line]:
        active = stint is self.model.policies.stints[-1]
        view = self.model.view
        lines = self.fact("now", "decides" if active else "no longer decides", width, "good" if active else "muted")
        if active and view is not None:
            lines += self.fact("mode", view.mode, width, "text" if view.mode == "auto" else "warning")
        lines += self.fact("settings", stint.config_hash, width)
        over_s = seconds(stint.last.tick_ns - stint.begin_ns)
        counts = ", ".join(f"{number} {status}" for status, number in stint.decisions.most_common())
        lines += self.fact("decisions", f"{stint.total} in {span(over_s)}: {counts}", width)
        lines += self.fact("last reason", stint.last.reason, width)
        disagreed = f"{stint.changed} of {stint.wishes} times that it wanted another split, something else was chosen"
        return lines + self.fact("overruled", disagreed, width, "warning" if stint.changed else "text")

    def _guards(self, stint: PolicyStint, width: int) -> list[Line]:
        lines = [self.line(), self.heading("guards and overrides that spoke", width)]
        if not stint.guards:
            return [*lines, *self.say("none", width, "muted")]
        room = max(min(width - 30, 30), 4)
        for guard, times in stint.guards.most_common():
            line = self.line().gap().add(fit(guard, 16, self.look), "warning")
            line.add(fit(f"{times}×", 6, self.look, align="right")).gap()
            share = bar(times / stint.total, room, self.look)
            lines.append(line.add(share, self.look.style("warning") + self.look.style("track")))
        return lines

    def _others(self, width: int) -> list[Line]:
        lines = [self.line(), self.heading("in shadow", width)]
        score = None if self.model.view is None else self.model.view.shadow
        said = self.model.shadow.last
        if score is None:
            lines += self.say(
                "none: H lets a second policy decide beside the active one, without acting", width, "muted"
            )
        else:
            lines += self.fact("policy", score.policy, width, "strong") + self.say(score_text(score), width)
        if score is not None and said is not None:
            lines += self.fact("last", f"{said.chosen or 'failed'}: {said.reason}", width)
        lines += self._changes(width)
        return lines if self._stint is None else lines + self._handovers(width) + self._disagreements(width)

    def _changes(self, width: int) -> list[Line]:
        stints = self.model.policies.stints
        changes = [f"{run_time(after.begin_ns)} {before.policy} → {after.policy}" for before, after in pairwise(stints)]
        lines = [self.line(), self.heading("changes of policy", width)]
        return lines + self.say("; ".join(changes) or "none that this console has seen", width, "muted")

    def _disagreements(self, width: int) -> list[Line]:
        found = list(stretches_of(self.model.shadow.disagreements()))
        if not found:
            return []
        lines = [self.line(), self.heading("disagreements, the latest first", width)]
        for stretch in found:
            decision, said = stretch.latest.decision, stretch.latest.said
            times = f" ×{stretch.times} since {run_time(stretch.begin_ns)}" if stretch.times > 1 else ""
            lines += self.say(f"{run_time(decision.tick_ns)}{times}", width, "muted")
            lines += self.fact(f"{said.policy} {said.chosen}", said.reason, width, names=22)
            lines += self.fact(f"{decision.policy} {decision.chosen}", decision.reason, width, names=22)
        return lines

    def _handovers(self, width: int) -> list[Line]:
        lines = [self.line(), self.heading("handovers", width)]
        for one in reversed(self.model.shadow.handovers.all):
            lines += self.say(handover_text(one), width, "warning" if one.end_ns is None else "text")
        return lines if len(lines) > 2 else [*lines, *self.say("none that this console has seen", width, "muted")]


class PoliciesPage(Page):
    """The policies that decided, what the one in shadow makes of it below, and the record of one beside them."""

    key = "policies"
    title = "Policies"
    short = "Pol"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.stints = PolicyTable(model, look, id="policies")
        self.shadow = ShadowPanel(model, look, window)
        self.beside = PolicyDetail(model, look, self.stints)

    @property
    def table(self) -> PolicyTable:
        """The policies."""
        return self.stints

    def detail(self) -> Detail | None:
        """The policy under the cursor."""
        stint = self.stints.selected
        return None if stint is None else PolicyDetail(self.model, self.look, self.stints, stint=stint)

    def compose(self) -> ComposeResult:
        """Table and shadow, and the pane."""
        with Horizontal(classes="split-page"):
            with Container(id="policies-left"):
                yield self.stints
                yield self.shadow
            yield self.beside

    def drawings(self) -> Iterable[Drawing]:
        """All three."""
        return [self.stints, self.shadow, self.beside]
