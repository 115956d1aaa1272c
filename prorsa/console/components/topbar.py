"""The top of the screen: where the data comes from and how old it is, the run, and the split."""

from collections.abc import Sequence
from typing import Final

from prorsa.clock import seconds
from prorsa.console.components.admission import live_trajectories
from prorsa.console.components.charts import ratio_cells
from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit_words
from prorsa.console.model import ConsoleModel
from prorsa.console.status import Badge, FeedStatus, badges
from prorsa.console.text import count, percent, run_time, speed
from prorsa.events import View

_STATES: Final = ("ready", "prefill", "decode", "tool", "sandbox", "reward")


class TopBar(Drawing):
    """The first line: the state of the feed, the run and its clock, what was missed."""

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

    def lines(self, width: int, height: int) -> Sequence[Line]:  # noqa: ARG002 - one line
        """As much as there is room for, the state first."""
        line = self.line()
        for item in self.badges():
            line.add(f" {item.text} ", f"badge-{item.tone}").gap()
        status = self.status
        right = self._link()
        room = width - right.width - 1
        for text, style in self._run(status):
            if line.width + len(text) + 2 <= room:
                line.add(text, style).gap(2)
        return [line.right(right, width)]

    def _run(self, status: FeedStatus | None) -> list[tuple[str, str]]:
        view, run = self.model.view, self.model.run
        now_ns = status.now_ns if status is not None and status.now_ns is not None else None
        items = [(run_time(now_ns), "strong")]
        if status is not None and status.speed is not None and status.speed != 1:
            items.append((speed(status.speed), "muted"))
        if status is not None and status.kind == "replay":
            items.append((f"of {run_time(status.to_ns)}", "muted"))
        if view is not None:
            items.append((view.mode.upper(), "warning" if view.mode != "auto" else "text"))
            items.append((f"policy {_policy(view)}", "text"))
        scenario = (view.scenario if view is not None else None) or (run.scenario if run is not None else None)
        return [*items, (scenario, "muted")] if scenario else items

    def _link(self) -> Line:
        gaps = 0 if self.status is None else self.status.gaps
        repaired = 0 if self.status is None else self.status.repaired
        line = self.line().add(f"gaps {gaps}", "warning" if gaps > repaired else "muted")
        if gaps:
            line.add(f", {repaired} repaired", "muted")
        return line.gap()


class SplitBar(Drawing):
    """The split as a bar, and from 80 columns on a line with the trajectories and the rates."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="bar")

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """The bar, the rates."""
        return [self._ratio(width), self._rates(width)][:height]

    def _ratio(self, width: int) -> Line:
        view = self.model.view
        line = self.line().gap()
        if view is None:
            return line.add(self.look.glyphs.rule * (width - 2), "faint")
        return line.extend(ratio_cells(view.split, width - 2, self.look))

    def _rates(self, width: int) -> Line:
        view = self.model.view
        line = self.line().gap()
        if view is None:
            return line
        self._trajectories(line, view)
        unit = " tok/s" if width >= 150 else "/s"
        rates = self.line().add("prefill ", "muted").add(count(view.prefill_tokens_per_s) + unit).gap(2)
        rates.add("output ", "muted").add(count(view.output_tokens_per_s) + unit).gap(2)
        rates.add("idle ", "muted").add(percent(view.idle)).gap()
        self._states(line, view.trajectories, width - rates.width - 2)
        return line.right(rates, width)

    def _trajectories(self, line: Line, view: View) -> None:
        live, held = live_trajectories(self.model), self._held(view)
        crowded = held is not None and live is not None and live > held
        line.add(count(live), "strong").add(" live", "muted")
        if held is not None:
            gate = ", gate" if view.admission is not None and view.admission.mode == "gate" else ""
            text = f" ({'! ' if crowded else ''}caches hold {count(held)}{gate})"
            line.add(text, "warning" if crowded else "muted")
        if view.done is not None:
            line.add(" · ", "faint").add(count(view.done))
            line.add(f"/{view.total}" if view.total is not None else "", "muted").add(" done", "muted")

    def _held(self, view: View) -> float | None:
        """What the controller says; of a recording from before it did, contexts of today's length."""
        return self.model.contexts_held() if view.admission is None else view.admission.limit

    def _states(self, line: Line, states: dict[str, int], room: int) -> None:
        """How many trajectories are in which state, as many of the states as there is room for."""
        for state in _STATES:
            text = f"{state} {states[state]}" if states.get(state) else ""
            if text and line.width + len(text) + 3 > room:
                return
            if text:
                line.add(" · ", "faint").add(text, state if state in ("prefill", "decode") else "muted")


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
        line.add(done * passed, "accent").add(mark, "accent")
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
            what = f"plan {plan.decision_id}: {plan.current} → {plan.chosen}, {self._left(plan.expires_ns)}"
            found.append((f"? {what}   A approve   R reject", "strong"))
        alerts = () if self.model.view is None else self.model.view.alerts
        found += [(f"! {alert.code}: {alert.text}", alert.severity) for alert in alerts if alert.severity != "info"]
        return found[:4]

    def content_lines(self) -> int:
        """A line a message."""
        return len(self.messages())

    def _left(self, expires_ns: int | None) -> str:
        now_ns = self.now_ns if self.now_ns is not None else self.model.now_ns
        if expires_ns is None:
            return "waits for approval"
        return f"expires in {max(0, round(seconds(expires_ns - now_ns)))} s"

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """A line a message."""

        shown = self.messages()[:height]
        return [self.line().gap().add(fit_words(text, width - 2, self.look), style) for text, style in shown]


def _policy(view: View) -> str:
    """The policy in charge, and the one that decided last where it let another one."""
    last = view.last_decision
    by = last.decided_by if last is not None and last.policy == view.policy else None
    return view.policy if by is None else f"{view.policy} ({by})"
