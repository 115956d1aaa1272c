"""The audit: who asked for what, when and why, and what came of it."""

from collections.abc import Iterable, Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal

from prorsa.clock import seconds
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.requests import TONES
from prorsa.console.components.table import Column, Piece, SortKey, Table, cell
from prorsa.console.components.trends import Window
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.requests import RequestLife
from prorsa.console.text import run_time, span


class AuditTable(Table[RequestLife]):
    """Every request that is known, the newest on top."""

    title = "what operators have asked for"
    empty = "nobody has asked for anything"

    def all_rows(self) -> Sequence[RequestLife]:
        """Newest first."""
        return list(self.model.requests)[::-1]

    def key_of(self, row: RequestLife) -> str:
        """Its id."""
        return row.request_id

    def text_of(self, row: RequestLife) -> str:
        """Who, what, state, why."""
        return f"{row.owner} {row.what()} {row.state} {row.reason} {row.detail or ''}"

    def sorts(self) -> Mapping[str, SortKey | None]:
        """Newest first, or by who asked, or what, or its state."""
        return {
            "time": None,
            "who": lambda row: row.owner,
            "what": lambda row: row.what(),
            "state": lambda row: (not (row.in_force or row.pending), row.state),
        }

    def columns(self) -> Sequence[Column[RequestLife]]:
        """When, who, what, what came of it, why."""
        return (
            Column("WHEN", 8, 0, lambda row, w: cell(run_time(row.asked_ns), w, self.look, "muted"), sort="time"),
            Column("WHO", 8, 1, lambda row, w: cell(row.owner, w, self.look), sort="who", stretch=6),
            Column("WHAT", 20, 0, self._say_what, sort="what", stretch=8),
            Column("STATE", 11, 0, lambda row, w: cell(row.state, w, self.look, TONES[row.state]), sort="state"),
            Column("LEFT", 8, 3, self._say_left, align="right"),
            Column("WHY, WHY NOT", 12, 1, self._say_why, stretch=200),
        )

    def _say_what(self, row: RequestLife, width: int) -> list[Piece]:
        live = row.in_force or row.pending
        return cell(row.what(), width, self.look, "strong" if live else "text")

    def _say_left(self, row: RequestLife, width: int) -> list[Piece]:
        if not row.in_force:
            return cell("", width, self.look)
        if row.expires_ns is None:
            return cell("no end", width, self.look, "muted", right=True)
        left_s = max(seconds(row.expires_ns - self.model.now_ns), 0.0)
        return cell(span(left_s), width, self.look, "text", right=True)

    def _say_why(self, row: RequestLife, width: int) -> list[Piece]:
        refused = row.state in ("rejected", "unanswered") and row.detail
        text = row.detail if refused and row.detail else row.reason
        return [(fit_words(text, width, self.look), "critical" if refused else "muted")]


class RequestDetail(Detail):
    """One request with every state that it has been through."""

    def __init__(self, model: ConsoleModel, look: Look, table: AuditTable, *, request_id: str | None = None) -> None:
        super().__init__(model, look)
        self._table = table
        self._request_id = request_id

    @property
    def life(self) -> RequestLife | None:
        """The request."""
        return self._table.selected if self._request_id is None else self.model.requests.get(self._request_id)

    def title(self) -> str:
        """What was asked."""
        return "request" if self.life is None else self.life.what()

    def body(self, width: int) -> Sequence[Line]:
        """Who, why, the states, what was said."""
        life = self.life
        if life is None:
            return self.say("nobody has asked for anything", width, "muted")
        lines = self.fact("who", life.owner + (", at this console" if life.mine else ""), width)
        lines += self.fact("why", life.reason, width)
        lines += self.fact("request", life.request_id, width, "muted")
        if life.in_force or life.pending:
            ends = "when it is released" if life.verb not in ("drain", "quarantine") else "when it is readmitted"
            lines += self.fact("ends", ends if life.expires_ns is None else f"at {run_time(life.expires_ns)}", width)
        if life.detail:
            lines += self.fact("said of it", life.detail, width, TONES[life.state])
        lines += [self.line(), self.heading("its life", width)]
        for state, entered_ns in zip(life.states, life.entered_ns, strict=True):
            line = self.line().gap().add(run_time(entered_ns), "muted").gap()
            lines.append(line.add(fit(state, 12, self.look), TONES[state]))
        return lines


class AuditPage(Page):
    """The table, beside the request under the cursor."""

    key = "audit"
    title = "Audit"
    short = "Audit"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.requests = AuditTable(model, look, id="audit")
        self.beside = RequestDetail(model, look, self.requests)

    @property
    def table(self) -> AuditTable:
        """The requests."""
        return self.requests

    def detail(self) -> Detail | None:
        """The request under the cursor."""
        life = self.requests.selected
        if life is None:
            return None
        return RequestDetail(self.model, self.look, self.requests, request_id=life.request_id)

    def compose(self) -> ComposeResult:
        """Table and pane."""
        with Horizontal(classes="split-page"):
            yield self.requests
            yield self.beside

    def drawings(self) -> Iterable[Drawing]:
        """Both."""
        return [self.requests, self.beside]
