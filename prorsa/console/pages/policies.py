"""The policies: which one decides, what became of its wishes, and how it compares; unknown where nothing is known."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from textual.app import ComposeResult
from textual.containers import Horizontal

from prorsa.clock import seconds
from prorsa.console.components.charts import bar
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
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
        """Record, guards, shadow, handovers."""
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
        lines = [self.line(), self.heading("beside it", width)]
        lines += self.fact("shadow", "none: no second policy decides beside the active one", width, "muted")
        lines += self.fact(
            "disagreement", "unknown without a shadow policy; W runs another policy on a copy", width, "muted"
        )
        stints = self.model.policies.stints
        changes = [f"{run_time(after.begin_ns)} {before.policy} → {after.policy}" for before, after in pairwise(stints)]
        return lines + self.fact("handovers", "; ".join(changes) or "none that this console has seen", width)


class PoliciesPage(Page):
    """The table, beside the record of the one under the cursor."""

    key = "policies"
    title = "Policies"
    short = "Pol"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.stints = PolicyTable(model, look, id="policies")
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
        """Table and pane."""
        with Horizontal(classes="split-page"):
            yield self.stints
            yield self.beside

    def drawings(self) -> Iterable[Drawing]:
        """Both."""
        return [self.stints, self.beside]
