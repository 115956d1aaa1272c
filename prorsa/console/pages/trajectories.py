"""The trajectories: how many in each state, how they flow, and which have been going on for longest or are stuck."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal

from prorsa.clock import seconds
from prorsa.console.components.charts import bar
from prorsa.console.components.detail import Detail
from prorsa.console.components.drawing import Drawing
from prorsa.console.components.table import Column, Piece, SortKey, Table, cell, number
from prorsa.console.components.trends import Window
from prorsa.console.look import Line, Look, fit
from prorsa.console.model import ConsoleModel
from prorsa.console.pages.base import Page
from prorsa.console.text import count, span
from prorsa.events import TrajectoryView

STATES: Final = ("dispatched", "sandbox", "ready", "prefill", "decode", "tool", "reward")
"""The states of a live trajectory, in the order in which it goes through them."""
FLOW_WINDOW_S: Final = 60.0
OLD_ANSWER_S: Final = 10.0
"""Run seconds after which the list of trajectories counts as old."""


def state_style(state: str) -> str:
    """Prefill and decode in their colours."""
    return state if state in ("prefill", "decode") else "text"


class StatesPanel(Drawing):
    """Live trajectories by state, and how many enter and leave each a minute."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="states", classes="panel")

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """A line a state."""
        view = self.model.view
        if view is None or not view.trajectories:
            why = "unknown: this controller follows no trajectories" if view is not None else "nothing yet"
            return [self.line().gap().add(fit(why, width - 2, self.look), "muted")]
        flows, _ = self.model.pool.flows_per_minute(FLOW_WINDOW_S)
        most = max((view.trajectories.get(state, 0) for state in STATES), default=0)
        room = max(width - 42, 4)
        rows = [self._state(state, view.trajectories.get(state), most, room, flows) for state in STATES]
        return [self._head(room), *rows, self._total(view.done, view.total)][:height]

    def _head(self, room: int) -> Line:
        line = (
            self.line()
            .gap()
            .add(fit("STATE", 11, self.look), "head")
            .add(fit("NOW", 6, self.look, align="right"), "head")
        )
        line.gap(2).add(fit("", room, self.look)).gap()
        line.add(fit("IN/MIN", 8, self.look, align="right"), "head")
        return line.add(fit("OUT/MIN", 9, self.look, align="right"), "head")

    def _state(self, state: str, now: int | None, most: int, room: int, flows: Mapping[str, float]) -> Line:
        style = state_style(state)
        line = self.line().gap().add(fit(state, 11, self.look), style)
        line.add(fit(count(now), 6, self.look, align="right"), "strong").gap(2)
        share = None if now is None else now / most if most else 0.0
        line.add(bar(share, room, self.look), self.look.style(style) + self.look.style("track")).gap()
        into = [rate for name, rate in flows.items() if name.endswith(f">{state}")]
        out = [rate for name, rate in flows.items() if name.startswith(f"{state}>")]
        line.add(fit(_rate(into, flows), 8, self.look, align="right"), "text")
        return line.add(fit(_rate(out, flows), 9, self.look, align="right"), "text")

    def _total(self, done: int | None, total: int | None) -> Line:
        line = self.line().gap().add(fit("done", 11, self.look), "muted")
        line.add(fit(count(done), 6, self.look, align="right"), "strong")
        return line.add(f"  of {total}" if total is not None else "", "muted")


def _rate(rates: Sequence[float], flows: Mapping[str, float]) -> str:
    """A sum of rates; without any count of flows it is unknown."""
    return count(round(sum(rates), 1)) if flows else count(None)


class FlowPanel(Drawing):
    """Moves between states a minute, the most frequent first."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="flow", classes="panel")

    def redraw(self) -> None:
        """Draw again, with the time over which the moves were counted."""
        _, over_s = self.model.pool.flows_per_minute(FLOW_WINDOW_S)
        over = f", last {span(over_s)}" if over_s else ""
        self.border_title = self.look.plain(f"flow between states, a minute{over}")
        super().redraw()

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """A line a pair of states."""
        flows, _ = self.model.pool.flows_per_minute(FLOW_WINDOW_S)
        moving = sorted(((rate, name) for name, rate in flows.items() if rate > 0), reverse=True)
        if not moving:
            return [self.line().gap().add("no moves counted yet", "muted")]
        room = max(width - 36, 4)
        lines = []
        for rate, name in moving[:height]:
            before, after = name.split(">")
            line = self.line().gap().add(fit(before, 11, self.look), state_style(before))
            line.add(f"{self.look.glyphs.arrow} ", "muted").add(fit(after, 11, self.look), state_style(after))
            line.add(fit(count(round(rate, 1)), 6, self.look, align="right"), "strong").gap(2)
            lines.append(
                line.add(bar(rate / moving[0][0], room, self.look), self.look.style("muted") + self.look.style("track"))
            )
        return lines


class TrajectoryTable(Table[TrajectoryView]):
    """Those that are stuck, then those that have been going on for longest, as the controller last said."""

    title = "slowest and stuck"

    def all_rows(self) -> Sequence[TrajectoryView]:
        """In the controller's order."""
        return self.model.trajectories or ()

    def when_empty(self) -> str:
        """Whether nobody has been asked yet, or nobody knows, or there is none."""
        if self.model.trajectories_ns is None:
            return "the list comes from the controller, within a moment"
        none = self.model.trajectories is not None
        return "no trajectory is live" if none else "unknown: this controller follows no trajectories"

    def key_of(self, row: TrajectoryView) -> str:
        """Its id."""
        return row.trajectory_id

    def text_of(self, row: TrajectoryView) -> str:
        """Id, state, tool, and whether it is stuck."""
        return f"{row.trajectory_id} {row.state} {row.waits_for or ''} {'stuck' if row.stuck else ''}"

    def sorts(self) -> Mapping[str, SortKey | None]:
        """Stuck first; by age, time in state, prompt."""
        return {
            "stuck": None,
            "age": lambda row: -(row.age_s or -1.0),
            "in state": lambda row: -(row.state_s or -1.0),
            "prompt": lambda row: -(row.prompt_tokens or -1),
        }

    def columns(self) -> Sequence[Column[TrajectoryView]]:
        """Where it stands and for how long."""
        return (
            Column("TRAJECTORY", 14, 0, lambda row, w: cell(row.trajectory_id, w, self.look, "strong"), stretch=14),
            Column("STATE", 10, 0, lambda row, w: cell(row.state, w, self.look, state_style(row.state))),
            Column("IN STATE", 9, 1, self._say_in_state, align="right", sort="in state"),
            Column("AGE", 8, 1, lambda row, w: number(span(row.age_s), w, self.look), align="right", sort="age"),
            Column("TURN", 4, 2, lambda row, w: number(_turn(row), w, self.look), align="right"),
            Column("PROMPT", 7, 3, self._say_prompt, align="right", sort="prompt"),
            Column("OUTPUT", 6, 4, lambda row, w: number(count(row.output_tokens), w, self.look), align="right"),
            Column("WAITS FOR", 16, 5, self._say_wait, stretch=60),
        )  # fmt: skip

    def widths(self, rows: Sequence[TrajectoryView]) -> Mapping[str, int]:
        """Ids get up to 28 cells."""
        return {"TRAJECTORY": min(max((len(row.trajectory_id) for row in rows), default=0), 28)}

    def _say_prompt(self, row: TrajectoryView, width: int) -> list[Piece]:
        return number(count(row.prompt_tokens), width, self.look)

    def _say_in_state(self, row: TrajectoryView, width: int) -> list[Piece]:
        text = ("! " if row.stuck else "") + span(row.state_s)
        return cell(text, width, self.look, "critical" if row.stuck else "text", right=True)

    def _say_wait(self, row: TrajectoryView, width: int) -> list[Piece]:
        text = row.waits_for or ""
        if row.expected_s is not None:
            text += f" expected {span(row.expected_s)}"
        return cell(text.strip(), width, self.look, "muted")

    def _title(self) -> str:
        title = super()._title()
        asked_ns, now_ns = self.model.trajectories_ns, self.model.now_ns
        if asked_ns is None:
            return title
        age_s = seconds(now_ns - asked_ns)
        return title + (f" · {span(age_s)} old" if age_s > OLD_ANSWER_S else "")


def _turn(row: TrajectoryView) -> str:
    return count(None) if row.turn is None else str(row.turn)


class TrajectoriesPage(Page):
    """States and flow on top, the list below."""

    key = "trajectories"
    title = "Trajectories"
    short = "Traj"

    def __init__(self, model: ConsoleModel, look: Look, window: Window) -> None:
        super().__init__(model, look, window)
        self.states = StatesPanel(model, look)
        self.flow = FlowPanel(model, look)
        self.list = TrajectoryTable(model, look, id="trajectories")

    @property
    def table(self) -> TrajectoryTable:
        """The list."""
        return self.list

    def detail(self) -> Detail | None:
        """The trajectory under the cursor."""
        row = self.list.selected
        return None if row is None else TrajectoryDetail(self.model, self.look, row.trajectory_id)

    def compose(self) -> ComposeResult:
        """The panels over the list."""
        with Horizontal(id="states-flow"):
            yield self.states
            yield self.flow
        yield self.list

    def on_mount(self) -> None:
        """Name the panels."""
        self.states.border_title = "live trajectories by state"

    def drawings(self) -> Iterable[Drawing]:
        """All three."""
        return [self.states, self.flow, self.list]


class TrajectoryDetail(Detail):
    """One trajectory."""

    def __init__(self, model: ConsoleModel, look: Look, trajectory_id: str) -> None:
        super().__init__(model, look)
        self.trajectory_id = trajectory_id

    def title(self) -> str:
        """Its id."""
        return f"trajectory {self.trajectory_id}"

    def body(self, width: int) -> Sequence[Line]:
        """What is known of it."""
        row = next((row for row in self.model.trajectories or () if row.trajectory_id == self.trajectory_id), None)
        if row is None:
            text = "It is no longer among the slowest and the stuck: it has ended, or others have been live for longer."
            return self.say(text, width, "muted")
        lines = self.fact("state", row.state, width, state_style(row.state))
        lines += self.fact("in it for", span(row.state_s), width, "critical" if row.stuck else "text")
        if row.stuck:
            lines += self.say("! stuck: others have left this state in a small part of that time", width, "critical")
        lines += self.fact("waits for", row.waits_for or "–", width)
        lines += self.fact("expected", span(row.expected_s), width)
        lines += self.fact("age", span(row.age_s), width)
        lines += self.fact("turn", _turn(row), width)
        lines += self.fact("prompt", f"{count(row.prompt_tokens)} tokens", width)
        lines += self.fact("output so far", f"{count(row.output_tokens)} tokens", width)
        lines += self.fact("as of", f"{span(self._age_s())} ago", width, "muted")
        return lines

    def _age_s(self) -> float | None:
        asked_ns = self.model.trajectories_ns
        return None if asked_ns is None else max(seconds(self.model.now_ns - asked_ns), 0.0)
