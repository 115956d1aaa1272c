"""The decisions: what was decided when, and of one of them from what, why, what a guard changed and what followed."""

from collections.abc import Iterable, Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal

from prorsa.clock import seconds
from prorsa.console.components.decisions import STATUS, STATUS_TONES, alternative_lines, split_change
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.table import Column, Piece, Table, cell
from prorsa.console.components.trends import Window
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel, DecisionEntry, FlipEntry
from prorsa.console.pages.base import Page
from prorsa.console.text import count, percent, run_time, span
from prorsa.events import Decision

BEFORE_S: Final = 30.0
"""Run seconds before a decision over which the pool's rates are averaged, to compare with afterwards."""
AFTER_S: Final = 60.0
"""Run seconds after it, from the end of its flips on."""


class DecisionTable(Table[DecisionEntry]):
    """Decisions, newest first; holds alike in a row count as one."""

    title = "decisions"
    empty = "no decision yet"

    def all_rows(self) -> Sequence[DecisionEntry]:
        """As the model keeps them."""
        return tuple(self.model.decisions)

    def key_of(self, row: DecisionEntry) -> str:
        """Its first decision's number, which stays while more of the same are added."""
        return str(row.first_id)

    def text_of(self, row: DecisionEntry) -> str:
        """Status, policy, splits, guards, workers and reason."""
        decision = row.decision
        guards = " ".join(guard.guard for guard in decision.guards)
        moves = " ".join(move.worker_id for move in decision.moves)
        what = f"#{decision.decision_id} {decision.status} {decision.policy} {decision.chosen}"
        return f"{what} {guards} {moves} {decision.reason}"

    def columns(self) -> Sequence[Column[DecisionEntry]]:
        """When, what, why."""
        return (
            Column("TIME", 8, 0, lambda row, w: cell(run_time(row.decision.tick_ns), w, self.look, "muted")),
            Column("#", 5, 4, lambda row, w: cell(str(row.decision.decision_id), w, self.look, "muted")),
            Column("DECISION", 12, 0, self._say_status),
            Column("SPLIT", 13, 1, self._say_split),
            Column("WANTED", 7, 5, self._say_wanted),
            Column("GUARDS", 12, 2, self._say_guards, stretch=6),
            Column("WHY", 10, 3, self._say_why, stretch=200),
        )

    def _say_status(self, row: DecisionEntry, width: int) -> list[Piece]:
        text = row.decision.status + (f" ×{row.repeats}" if row.repeats > 1 else "")
        return cell(text, width, self.look, STATUS_TONES[row.decision.status])

    def _say_split(self, row: DecisionEntry, width: int) -> list[Piece]:
        style = "muted" if row.decision.status == "hold" else "strong"
        return cell(split_change(row.decision), width, self.look, style)

    def _say_wanted(self, row: DecisionEntry, width: int) -> list[Piece]:
        changed = row.decision.wanted != row.decision.chosen
        return cell(str(row.decision.wanted) if changed else "", width, self.look, "warning")

    def _say_guards(self, row: DecisionEntry, width: int) -> list[Piece]:
        names = ", ".join(dict.fromkeys(guard.guard for guard in row.decision.guards))
        return cell(f"! {names}" if names else "", width, self.look, "warning")

    def _say_why(self, row: DecisionEntry, width: int) -> list[Piece]:
        return [(fit_words(row.decision.reason, width, self.look), "muted")]


class DecisionsPage(Page):
    """The table, on wide screens beside everything about the decision under the cursor."""

    key = "decisions"
    title = "Decisions"
    short = "Decis"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.decisions = DecisionTable(model, look, id="all-decisions")
        self.beside = DecisionDetail(model, look, table=self.decisions)

    @property
    def table(self) -> DecisionTable:
        """The decisions."""
        return self.decisions

    def detail(self) -> Detail | None:
        """The decision under the cursor."""
        entry = self.decisions.selected
        return None if entry is None else DecisionDetail(self.model, self.look, entry=entry)

    def compose(self) -> ComposeResult:
        """Table and pane."""
        with Horizontal(classes="split-page"):
            yield self.decisions
            yield self.beside

    def drawings(self) -> Iterable[Drawing]:
        """Both."""
        return [self.decisions, self.beside]


class DecisionDetail(Detail):
    """A decision: ``entry``, or the one under the cursor of ``table``."""

    def __init__(
        self, model: ConsoleModel, look: Look, *, entry: DecisionEntry | None = None, table: DecisionTable | None = None
    ) -> None:
        super().__init__(model, look)
        self._entry = entry
        self._table = table

    @property
    def entry(self) -> DecisionEntry | None:
        """The decision that it is about."""
        return self._entry if self._table is None else self._table.selected

    def title(self) -> str:
        """Its number."""
        return "decision" if self.entry is None else f"decision {self.entry.decision.decision_id}"

    def body(self, width: int) -> Sequence[Line]:
        """What, why, guards, moves, what followed, inputs, alternatives."""
        if self.entry is None:
            return self.say("no decision yet", width, "muted")
        decision = self.entry.decision
        lines = [self._headline(self.entry), *self.say(decision.reason, width)]
        for guard in decision.guards:
            lines += self.say(f"! {guard.guard}: {guard.text}", width, "warning")
        lines += self._moves(decision, width)
        lines += self._afterwards(decision, width)
        lines += self._inputs(decision, width)
        lines += self._alternatives(decision, width)
        lines += [self.line(), self.heading("made by", width)]
        who = f"{decision.policy} (state {decision.policy_state or 'none'}), mode {decision.mode}"
        lines += self.fact("policy", who, width)
        lines += self.fact("settings", decision.config_hash, width)
        return lines + self.fact("from", f"the events up to hub_seq {decision.upto_hub_seq}", width)

    def _headline(self, entry: DecisionEntry) -> Line:
        decision = entry.decision
        text, style = STATUS[decision.status]
        line = self.line().gap().add(f" {text} ", style).gap().add(split_change(decision), "strong")
        if decision.wanted != decision.chosen:
            line.add(f" wanted {decision.wanted}", "warning")
        line.gap(2).add(run_time(decision.tick_ns), "muted")
        return line.add(f" ×{entry.repeats}", "muted") if entry.repeats > 1 else line

    def _moves(self, decision: Decision, width: int) -> list[Line]:
        if not decision.moves:
            return []
        lines = [self.line(), self.heading("moves", width)]
        for move in decision.moves:
            line = self.line().gap().add(f"{move.worker_id} ", "strong").add(move.from_role, move.from_role)
            line.add(f" {self.look.glyphs.arrow} ", "muted").add(move.to_role, move.to_role)
            lines.append(line.add(fit_words(f"  {move.reason}", max(width - line.width - 1, 0), self.look), "muted"))
        return lines

    def _afterwards(self, decision: Decision, width: int) -> list[Line]:
        flips = self.model.flips_of(decision_id=decision.decision_id)
        if not flips:
            return []
        lines = [self.line(), self.heading("what followed", width)]
        for entry in flips:
            lines += self.fact(entry.latest.worker_id, self._outcome(entry), width, names=8)
        done_s = max(entry.t_s + (entry.latest.elapsed_s or 0.0) for entry in flips)
        if any(entry.under_way for entry in flips):
            return lines + self.say("its flips are still under way", width, "warning")
        return lines + self._rates(seconds(decision.tick_ns), done_s, width)

    def _outcome(self, entry: FlipEntry) -> str:
        flip = entry.latest
        moved = f"{count(flip.requests_resumed)} requests moved, {count(flip.kv_tokens_dropped)} KV tokens lost"
        return f"{flip.state} after {span(flip.elapsed_s)}; {moved}"

    def _rates(self, at_s: float, done_s: float, width: int) -> list[Line]:
        """The pool before and after: other things change too, so this says what followed, not what came of it."""
        pool = self.model.pool
        head = self.line().gap(15).add(f"{f'{BEFORE_S:g} s before':>13}", "muted")
        lines = [head.add(f"{f'{AFTER_S:g} s after':>13}", "muted")]
        for name, title, write in (
            ("prefill_tokens_per_s", "prefill tok/s", count),
            ("output_tokens_per_s", "output tok/s", count),
            ("idle", "idle", percent),
        ):
            before = pool.mean(name, at_s - BEFORE_S, at_s)
            after = pool.mean(name, done_s, done_s + AFTER_S)
            line = self.line().gap().add(fit(title, 14, self.look), "muted")
            lines.append(line.add(f"{write(before):>13}").add(f"{write(after):>13}", "strong"))
        so_far_s = seconds(self.model.now_ns) - done_s
        if so_far_s < AFTER_S:
            lines += self.say(f"only {span(max(so_far_s, 0.0))} have gone by since", width, "muted")
        return lines

    def _inputs(self, decision: Decision, width: int) -> list[Line]:
        if not decision.inputs:
            return []
        lines = [self.line(), self.heading("inputs", width)]
        names = max(len(name) for name in decision.inputs) + 1
        for name, value in decision.inputs.items():
            lines += self.fact(name.replace("_", " "), count(value), width, names=names)
        return lines

    def _alternatives(self, decision: Decision, width: int) -> list[Line]:
        lines = alternative_lines(self, decision, width, bar_cells=12)
        return [self.line(), self.heading("alternatives, by cost", width), *lines] if lines else []
