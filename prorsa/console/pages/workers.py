"""The workers, and everything about one of them with its history."""

from collections.abc import Callable, Iterable, Sequence

from textual.app import ComposeResult

from prorsa.clock import seconds
from prorsa.console.components.charts import sparkline
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.trends import Window
from prorsa.console.components.workers import OLD_TELEMETRY_S, WorkerTable
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel, FlipEntry
from prorsa.console.pages.base import Page
from prorsa.console.text import count, percent, ratio, run_time, span
from prorsa.events import WorkerView


class WorkersPage(Page):
    """The table over the whole screen."""

    key = "workers"
    title = "Workers"
    short = "Work"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.worker_table = WorkerTable(model, look, id="all-workers", roomy=True)

    @property
    def table(self) -> WorkerTable:
        """The workers."""
        return self.worker_table

    def detail(self) -> Detail | None:
        """The worker under the cursor."""
        worker = self.worker_table.selected
        return None if worker is None else WorkerDetail(self.model, self.look, self.window, worker.worker_id)

    def compose(self) -> ComposeResult:
        """The table."""
        yield self.worker_table

    def drawings(self) -> Iterable[Drawing]:
        """The table."""
        return [self.worker_table]


class WorkerDetail(Detail):
    """One worker: what it is and does now, what it did, its flips, and what operators asked of it."""

    def __init__(self, model: ConsoleModel, look: Look, window: Window, worker_id: str) -> None:
        super().__init__(model, look)
        self.worker_id = worker_id
        self.window = window

    def title(self) -> str:
        """The worker."""
        return f"worker {self.worker_id}"

    def body(self, width: int) -> Sequence[Line]:
        """Facts, history, flips, requests."""
        worker = self.model.worker(self.worker_id)
        if worker is None:
            return self.say(f"{self.worker_id} is not in the latest view: it has left the pool", width, "warning")
        lines = self._facts(worker, width) + self._history(worker, width)
        lines += self._flips(width) + self._requests(width)
        return lines

    def _facts(self, worker: WorkerView, width: int) -> list[Line]:
        old = worker.age_s is not None and worker.age_s > OLD_TELEMETRY_S
        role = worker.role if worker.to_role in (None, worker.role) else f"{worker.role} → {worker.to_role}"
        lines = self.fact("role", f"{role}, epoch {worker.epoch}", width, worker.role)
        lines += self.fact("state", worker.state, width, "text" if worker.state == "serving" else "warning")
        lines += self.fact("held", self._held(worker), width)
        flippable = {True: "yes", False: "no", None: "unknown"}[worker.flippable]
        lines += self.fact("flippable", flippable, width)
        age = "it has never reported its load" if worker.age_s is None else f"{span(worker.age_s)} old"
        lines += self.fact("telemetry", age + (": what follows may not hold any more" if old else ""), width,
                           "warning" if old or worker.age_s is None else "text")  # fmt: skip
        kv = f"{count(worker.kv_used)} of {count(worker.kv_capacity)} tokens in use"
        kv += f" ({percent(ratio(worker.kv_used, worker.kv_capacity))}), {count(worker.kv_cached)} kept as cache"
        lines += self.fact("KV", kv, width, "faint" if old else "text")
        requests = f"{count(worker.queued)} queued, {count(worker.running)} running"
        return lines + self.fact("requests", requests, width, "faint" if old else "text")

    def _held(self, worker: WorkerView) -> str:
        held = [life for life in self.model.requests.in_force() if life.target == worker.worker_id]
        if not held:
            return "by nobody" if worker.pinned is None else f"pinned to {worker.pinned}"
        life = held[-1]
        left = "until it is readmitted" if life.expires_ns is None else f"{self._left(life.expires_ns)} left"
        return f"{life.what()} by {life.owner}, {left}: {life.reason}"

    def _left(self, expires_ns: int) -> str:
        return span(max(seconds(expires_ns - self.model.now_ns), 0.0))

    def _history(self, worker: WorkerView, width: int) -> list[Line]:
        points = self.model.workers.points(self.worker_id)
        if len(points) < 2:
            return []
        names, room = 14, max(width - 38, 10)
        length_s = points[-1][0] - points[0][0]
        rows: tuple[tuple[str, Callable[[WorkerView], float | None], Callable[[float | None], str]], ...] = (
            ("KV used", lambda view: ratio(view.kv_used, view.kv_capacity), percent),
            ("busy", lambda view: view.busy, percent),
            ("queued", lambda view: view.queued, count),
            ("running", lambda view: view.running, count),
            ("prefill tok/s", lambda view: view.prefill_tokens_per_s, count),
            ("output tok/s", lambda view: view.output_tokens_per_s, count),
        )
        lines = [self.line(), self.heading(f"last {span(length_s)}", width)]
        for name, read, write in rows:
            values = _columns([(t_s, read(view)) for t_s, view in points], room)
            known = [value for value in values if value is not None]
            top = max(known, default=0.0)
            line = self.line().gap().add(fit(name, names, self.look), "muted")
            line.add(sparkline(values, 1.0 if write is percent else top, self.look), worker.role).gap(2)
            line.add(f"now {fit(write(read(worker)), 6, self.look)}", "text")
            lines.append(line.add(f" max {write(max(known) if known else None)}", "muted"))
        return lines

    def _flips(self, width: int) -> list[Line]:
        entries = self.model.flips_of(worker_id=self.worker_id)[:20]
        lines = [self.line(), self.heading("flips and absences", width)]
        if not entries:
            return [*lines, *self.say("none that this console has seen", width, "muted")]
        return lines + [self._flip(entry, width) for entry in entries]

    def _flip(self, entry: FlipEntry, width: int) -> Line:
        flip = entry.latest
        line = self.line().gap().add(run_time(round(entry.t_s * 1e9)), "muted").gap()
        roles = f"{flip.from_role} → {flip.to_role}" if entry.changes_role else flip.to_role
        line.add(fit(roles, 18, self.look), flip.to_role)
        tone = "warning" if entry.under_way else "good" if flip.state == "serving" else "critical"
        line.add(fit(flip.state, 12, self.look), tone if entry.changes_role else "text")
        line.add(fit(span(flip.elapsed_s), 7, self.look))
        return line.add(fit_words(flip.reason, max(width - line.width - 1, 0), self.look), "muted")

    def _requests(self, width: int) -> list[Line]:
        lives = [life for life in self.model.requests if life.target == self.worker_id][::-1]
        if not lives:
            return []
        lines = [self.line(), self.heading("requests", width)]
        for life in lives[:10]:
            text = f"{life.what()}: {' → '.join(life.states)}, {life.owner}: {life.reason}"
            lines += self.say(text, width)
        return lines


def _columns(points: Sequence[tuple[float, float | None]], columns: int) -> list[float | None]:
    """Values by equal stretches of time, the latest of each; a stretch without any takes that of the one before."""
    begin_s, end_s = points[0][0], points[-1][0]
    values: list[float | None] = []
    index, last = 0, points[0][1]
    for column in range(columns):
        until_s = begin_s + (end_s - begin_s) * (column + 1) / columns
        while index < len(points) and points[index][0] <= until_s:
            last = points[index][1]
            index += 1
        values.append(last)
    return values
