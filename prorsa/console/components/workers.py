"""The table of workers: role, load, KV and state, with a cursor and marks that the actions refer to."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.style import Style

from prorsa.console.components.charts import bar, sparkline
from prorsa.console.components.table import Column, Piece, SortKey, Table, cell, number
from prorsa.console.history import natural
from prorsa.console.look import ROLE_LETTERS, Look, fit
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count, percent, ratio, span
from prorsa.events import WorkerView

OLD_TELEMETRY_S: Final = 5.0
"""Age of a worker's telemetry past which what it says is drawn as old."""
OUT_STATES: Final = ("dead", "quarantined")
_ROLES: Final = ("prefill", "decode", "mixed")


class WorkerTable(Table[WorkerView]):
    """The workers of the latest view. What an old report says is faint: it may not hold any more."""

    title = "workers"
    empty = "no worker has registered yet"

    def __init__(self, model: ConsoleModel, look: Look, *, id: str = "workers", roomy: bool = False) -> None:  # noqa: A002
        self._roomy = roomy
        super().__init__(model, look, id=id)

    def all_rows(self) -> Sequence[WorkerView]:
        """The workers by id, ``w2`` before ``w10``: the registry's order."""
        return () if self.model.view is None else self.model.view.workers

    def key_of(self, row: WorkerView) -> str:
        """The worker's id."""
        return row.worker_id

    def text_of(self, row: WorkerView) -> str:
        """Id, role, state, and what holds it."""
        held = f"pinned {row.pinned}" if row.pinned else ""
        return f"{row.worker_id} {row.role} {row.to_role or ''} {row.state} {held} {self._note(row)}"

    def sorts(self) -> Mapping[str, SortKey | None]:
        """By id, role, KV, queue, state and age; what is not known comes last."""
        return {
            "id": None,
            "role": lambda row: (_ROLES.index(row.role), natural(row.worker_id)),
            "KV": lambda row: -(ratio(row.kv_used, row.kv_capacity) or -1.0),
            "queue": lambda row: -(-1 if row.queued is None else row.queued),
            "state": lambda row: (row.state == "serving", row.state, natural(row.worker_id)),
            "age": lambda row: -(-1.0 if row.age_s is None else row.age_s),
        }

    def widths(self, rows: Sequence[WorkerView]) -> Mapping[str, int]:
        """Ids get up to 22 cells."""
        return {"WORKER": min(max((len(row.worker_id) for row in rows), default=0), 22)}

    def columns(self) -> Sequence[Column[WorkerView]]:
        """What is said of a worker, the most wanted first to a screen."""
        return (
            Column("WORKER", 7, 0, self._say_id, sort="id"),
            Column(" ROLE", 10, 0, self._say_role, sort="role"),
            Column("STATE", 11, 1, self._say_state, sort="state"),
            Column("KV", 10, 1, self._say_kv, stretch=14, sort="KV"),
            Column("KV TREND", 14, 6, self._say_trend, stretch=16),
            Column("BUSY", 4, 2, lambda row, w: self._number(row, percent(row.busy), w), align="right"),
            Column("QUEUE", 6, 3, lambda row, w: self._number(row, count(row.queued), w), align="right", sort="queue"),
            Column("RUN", 4, 3, lambda row, w: self._number(row, count(row.running), w), align="right"),
            Column("PRE/S", 5, 4, lambda row, w: self._number(row, count(row.prefill_tokens_per_s), w), align="right"),
            Column("OUT/S", 5, 4, lambda row, w: self._number(row, count(row.output_tokens_per_s), w), align="right"),
            Column("AGE", 6, 5, self._say_age, align="right", sort="age"),
            Column("EPOCH", 5, 8, lambda row, w: number(str(row.epoch), w, self.look, "muted"), align="right"),
            Column("HELD", 16, 7 if self._roomy else 9, self._say_note, stretch=40 if self._roomy else 0),
        )

    def _old(self, row: WorkerView) -> bool:
        return row.age_s is not None and row.age_s > OLD_TELEMETRY_S

    def _number(self, row: WorkerView, text: str, width: int) -> list[Piece]:
        return number(text, width, self.look, "faint" if self._old(row) else "text")

    def _say_id(self, row: WorkerView, width: int) -> list[Piece]:
        return cell(row.worker_id, width, self.look, "strong")

    def _say_role(self, row: WorkerView, width: int) -> list[Piece]:
        letter = ROLE_LETTERS[row.role]
        pinned: Piece = ("*", "warning") if row.pinned else (" ", "text")
        if row.to_role is not None and row.to_role != row.role:
            arrow = f" {self.look.glyphs.arrow} "
            to = fit(ROLE_LETTERS[row.to_role], width - 5, self.look)
            return [pinned, (letter, row.role), (arrow, "muted"), (to, row.to_role)]
        return [pinned, (fit(f"{letter} {row.role}", width - 1, self.look), row.role)]

    def _say_state(self, row: WorkerView, width: int) -> list[Piece]:
        if row.state == "serving":
            return cell(row.state, width, self.look, "muted")
        if row.state in OUT_STATES:
            return cell(f"! {row.state}", width, self.look, "critical")
        return cell(row.state, width, self.look, "warning")

    def _say_kv(self, row: WorkerView, width: int) -> list[Piece]:
        used = ratio(row.kv_used, row.kv_capacity)
        full = used is not None and used >= 0.95
        faint = used is None or self._old(row)
        style = "faint" if faint else "critical" if full else "text"
        colour: Style = self.look.style("faint" if faint else row.role) + self.look.style("track")
        share = fit(percent(used), 4, self.look, align="right")
        return [(bar(used, width - 5, self.look), colour), (" ", "text"), (share, style)]

    def _say_trend(self, row: WorkerView, width: int) -> list[Piece]:
        points = self.model.workers.series(row.worker_id, _kv_share, width)
        return cell(sparkline(points, 1.0, self.look), width, self.look, row.role, right=True)

    def _say_age(self, row: WorkerView, width: int) -> list[Piece]:
        return cell(span(row.age_s), width, self.look, "warning" if self._old(row) else "muted", right=True)

    def _say_note(self, row: WorkerView, width: int) -> list[Piece]:
        note = self._note(row)
        return cell(note, width, self.look, "muted" if note == "not flippable" else "warning")

    def _note(self, row: WorkerView) -> str:
        out = self.model.requests.holding_out(row.worker_id)
        if out is not None:
            return f"{out.verb} by {out.owner}: {out.reason}"
        if row.pinned:
            return f"pinned {row.pinned}"
        return "not flippable" if row.flippable is False else ""


def _kv_share(worker: WorkerView) -> float | None:
    return ratio(worker.kv_used, worker.kv_capacity)
