"""The top of the screen: where the data comes from and how old it is, the run, and the split."""

from collections.abc import Sequence
from typing import Final

from rich.style import Style

from prorsa.clock import seconds
from prorsa.console.components.charts import ratio_cells
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import (
    BACKGROUND,
    CRITICAL,
    FAINT,
    GOOD,
    MUTED,
    SWITCHING,
    TEXT,
    WARNING,
    Line,
    Look,
    badge,
    cells,
)
from prorsa.console.model import ConsoleModel
from prorsa.console.status import Badge, FeedStatus, badges
from prorsa.console.text import count, percent, run_time, speed

_TONES: Final = {
    "good": badge(GOOD),
    "warning": badge(WARNING),
    "critical": badge(CRITICAL),
    "replay": badge("#B48EF0"),
    "muted": Style(color=TEXT, bgcolor=FAINT, bold=True),
}
_STATES: Final = ("sandbox", "ready", "prefill", "decode", "tool", "reward")


class TopBar(Drawing):
    """Two lines on any screen, a third with the trajectories and the rates from 80 columns on."""

    def __init__(self, model: ConsoleModel, look: Look, *, read_only: bool) -> None:
        super().__init__(model, look, id="top")
        self.read_only = read_only
        self.paused = False
        self.status: FeedStatus | None = None

    def badges(self) -> list[Badge]:
        """What the first words of the bar are."""
        if self.status is None:
            return []
        ended = self.model.ended is not None
        return badges(self.status, read_only=self.read_only, paused=self.paused, ended=ended)

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The state line, the ratio bar, the rates."""
        return [self._state(width), self._ratio(width), self._rates(width)][:height]

    def _state(self, width: int) -> Line:
        line = self.line()
        for item in self.badges():
            line.add(f" {item.text} ", _TONES[item.tone]).gap()
        status = self.status
        right = self._link()
        room = width - right.width - 1
        for text, style in self._run(status):
            if line.width + len(text) + 2 <= room:
                line.add(text, style).gap(2)
        return line.right(right, width)

    def _run(self, status: FeedStatus | None) -> list[tuple[str, str]]:
        view, run = self.model.view, self.model.run
        now_ns = status.now_ns if status is not None and status.now_ns is not None else None
        items = [(run_time(now_ns), "strong")]
        if status is not None and status.speed is not None and status.speed != 1:
            items.append((speed(status.speed), "muted"))
        if status is not None and status.kind == "replay":
            items.append((f"of {run_time(status.to_ns)}", "muted"))
        if view is not None:
            items += [(view.mode.upper(), "warning" if view.mode != "auto" else "text"), (view.policy, "text")]
        scenario = (view.scenario if view is not None else None) or (run.scenario if run is not None else None)
        return [*items, (scenario, "muted")] if scenario else items

    def _link(self) -> Line:
        gaps = 0 if self.status is None else self.status.gaps
        repaired = 0 if self.status is None else self.status.repaired
        line = self.line().add(f"gaps {gaps}", "warning" if gaps > repaired else "muted")
        if gaps:
            line.add(f", {repaired} repaired", "muted")
        return line.gap()

    def _ratio(self, width: int) -> Line:
        view = self.model.view
        line = self.line().gap()
        left = self.line().add("P " + count(None if view is None else view.split.prefill), "prefill").gap()
        right = self.line().gap().add(count(None if view is None else view.split.decode) + " D", "decode").gap()
        line.segments += left.segments
        line.width += left.width
        length = width - line.width - right.width
        if view is None:
            line.add(self.look.glyphs.rule * length, "faint")
        else:
            line.segments += cells(ratio_cells(view.split, length, self.look))
            line.width += length
        return line.right(right, width + 1)

    def _rates(self, width: int) -> Line:
        view = self.model.view
        line = self.line().gap()
        if view is None:
            return line
        self._trajectories(line, view.trajectories, view.done, view.total)
        rates = self.line()
        for name, value in (
            ("prefill", f"{count(view.prefill_tokens_per_s)} tok/s"),
            ("output", f"{count(view.output_tokens_per_s)} tok/s"),
            ("idle", percent(view.idle)),
        ):
            rates.add(f"{name} ", "muted").add(value, "text").gap(2 if name != "idle" else 1)
        self._states(line, view.trajectories, width - rates.width - 2)
        return line.right(rates, width)

    def _trajectories(self, line: Line, states: dict[str, int], done: int | None, total: int | None) -> None:
        live = sum(states.get(state, 0) for state in (*_STATES, "dispatched"))
        line.add(f"{live}", "strong").add(" live", "muted")
        if done is not None:
            line.add(self.look.plain(" · "), "faint").add(count(done), "text")
            line.add(f"/{total}" if total is not None else "", "muted").add(" done", "muted")

    def _states(self, line: Line, states: dict[str, int], room: int) -> None:
        for state in _STATES:
            text = f"{state} {states[state]}" if states.get(state) else ""
            if text and line.width + len(text) + 3 <= room:
                style = state if state in ("prefill", "decode") else "muted"
                line.add(" · ", "faint").add(text, style)


class Timeline(Drawing):
    """In replay, where in the recording the console stands."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="timeline")
        self.status: FeedStatus | None = None

    def lines(self, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002 - one line
        """A bar from the recording's beginning to its end."""
        status = self.status
        line = self.line().gap()
        if status is None or None in (status.from_ns, status.to_ns, status.now_ns):
            return [line]
        assert status.from_ns is not None and status.to_ns is not None and status.now_ns is not None  # noqa: PT018
        length = max(width - 22, 1)
        whole_s = seconds(status.to_ns - status.from_ns)
        at = seconds(status.now_ns - status.from_ns) / whole_s if whole_s else 1.0
        passed = round(min(max(at, 0.0), 1.0) * (length - 1))
        mark = "o" if self.look.glyphs.ascii else "●"
        done, rest = ("=", "-") if self.look.glyphs.ascii else ("━", "─")
        line.add(run_time(status.from_ns), "muted").gap()
        line.add(done * passed, Style(color="#B48EF0")).add(mark, Style(color="#B48EF0", bold=True))
        line.add(rest * (length - 1 - passed), "faint").gap().add(run_time(status.to_ns), "muted")
        return [line]


class Banner(Drawing):
    """Lines that are there only when they have something to say: an old frame, a plan to approve, alerts."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="banner")
        self.old: str | None = None
        self.now_ns: int | None = None

    def messages(self) -> list[tuple[str, str]]:
        """Texts with their style, the most urgent first."""
        found: list[tuple[str, str]] = []
        if self.old is not None:
            found.append((f"! {self.old}", "warning"))
        plan = self.model.proposal
        if plan is not None:
            found.append(
                (
                    f"? plan {plan.decision_id}: {plan.current} → {plan.chosen}, {self._left(plan.expires_ns)}   A approve   R reject",
                    "strong",
                )
            )
        for alert in () if self.model.view is None else self.model.view.alerts:
            if alert.severity != "info":
                found.append((f"! {alert.code}: {alert.text}", alert.severity))
        return found[:4]

    def _left(self, expires_ns: int | None) -> str:
        now_ns = self.now_ns if self.now_ns is not None else self.model.now_ns
        if expires_ns is None:
            return "waits for approval"
        return f"expires in {max(0, round(seconds(expires_ns - now_ns)))} s"

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """A line a message."""
        from prorsa.console.look import fit

        return [
            self.line().gap().add(fit(text, width - 2, self.look), style) for text, style in self.messages()[:height]
        ]


__all__ = ["BACKGROUND", "MUTED", "SWITCHING", "Banner", "Timeline", "TopBar"]
