"""Two futures of a run side by side."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prorsa.console.components.charts import sparkline, split_raster
from prorsa.console.components.detail import Detail
from prorsa.console.look import Line, Look, fit
from prorsa.console.model import ConsoleModel
from prorsa.console.text import count, percent, run_time, span
from prorsa.futures import Future, WhatIf


@dataclass(slots=True)
class Supposition:
    """A question to the helper process, and its answer once that is there."""

    policy: str
    at_s: float
    for_s: float
    asked_s: float
    """When it was asked, on the monotonic clock."""
    found: WhatIf | None = None
    failure: str | None = None


class WhatIfDetail(Detail):
    """The question, and the difference that another policy would have made."""

    def __init__(self, model: ConsoleModel, look: Look, supposition: Supposition) -> None:
        super().__init__(model, look)
        self.supposition = supposition

    @property
    def restless(self) -> bool:
        """It counts the time until its answer comes."""
        return self.supposition.found is None and self.supposition.failure is None

    def title(self) -> str:
        """The question."""
        asked = self.supposition
        return f"what if {asked.policy} decided from {run_time(round(asked.at_s * 1e9))} on, for {span(asked.for_s)}"

    def body(self, width: int) -> Sequence[Line]:
        """Progress, or what went wrong, or the comparison."""
        asked = self.supposition
        if asked.failure is not None:
            return self.say(f"! {asked.failure}", width, "critical")
        if asked.found is None:
            waited = f"{time.monotonic() - asked.asked_s:.0f} s so far"
            text = f"The run is simulated again up to that moment, in a process of its own ({waited}); esc closes this."
            return self.say(text, width, "muted")
        return self._comparison(asked.found, width)

    def _comparison(self, found: WhatIf, width: int) -> list[Line]:
        before, after = found.as_it_was, found.supposed
        lines = [self._headline(found), self.line(), self._row("", before.policy, after.policy, "difference", "head")]
        for title, read, write in (
            ("output tokens", lambda future: future.output_tokens, count),
            ("prefill tokens", lambda future: future.prefill_tokens, count),
            ("trajectories ended", lambda future: future.trajectories_ended, count),
            ("GPU idle", lambda future: future.gpu_idle_ratio, percent),
            ("flips", lambda future: future.flips, count),
        ):
            lines.append(self._compared(title, before, after, read, write))
        lines.append(self._row("split at the end", str(before.course[-1].split), str(after.course[-1].split), ""))
        lines += [self._finished(before), self._finished(after)] if before.finished_s or after.finished_s else []
        lines += [self.line(), self.heading("split", width), self._splits(before, width), self._splits(after, width)]
        lines += [self.line(), self.heading("output tokens a second", width)]
        lines += self._rates((before, after), width)
        return lines + self._likeness(found, width)

    def _headline(self, found: WhatIf) -> Line:
        line = self.line().gap()
        if found.gain is None:
            return line.add("nothing was put out in that time: there is nothing to compare", "warning")
        style = "good" if found.gain > 0 else "critical" if found.gain < 0 else "text"
        line.add(f"{found.gain:+.1%} output", self.look.style(style)).add(f" with {found.supposed.policy}", "strong")
        return line.add(f" over {span(found.supposed.over_s)}, on a simulated copy", "muted")

    def _row(self, title: str, before: str, after: str, difference: str, style: str = "text") -> Line:
        line = self.line().gap().add(fit(title, 20, self.look), "muted")
        line.add(fit(before, 14, self.look, align="right"), style).add(fit(after, 18, self.look, align="right"), style)
        return line.add(fit(difference, 14, self.look, align="right"), "strong")

    def _compared(
        self,
        title: str,
        before: Future,
        after: Future,
        read: Callable[[Future], float | None],
        write: Callable[[float | None], str],
    ) -> Line:
        first, second = read(before), read(after)
        change = None if first is None or second is None else second - first
        sign = "+" if change is not None and change > 0 else ""
        return self._row(title, write(first), write(second), sign + write(change))

    def _finished(self, future: Future) -> Line:
        text = "goes on" if future.finished_s is None else f"the rollout ends after {span(future.finished_s)}"
        return self.line().gap().add(fit(future.policy, 20, self.look), "muted").add(text)

    def _splits(self, future: Future, width: int) -> Line:
        line = self.line().gap().add(fit(future.policy, 20, self.look), "muted")
        columns = max(width - 22, 4)
        points = future.course
        last_s = points[-1].t_s or 1.0
        splits = []
        for column in range(columns):
            t_s = last_s * (column + 1) / columns
            splits.append([point for point in points if point.t_s <= t_s][-1].split)
        return line.extend(split_raster(splits, 1, self.look)[0])

    def _rates(self, futures: Sequence[Future], width: int) -> list[Line]:
        """Output rates of both, on one scale."""
        columns = max(width - 30, 4)
        series = [_rates(future, columns) for future in futures]
        top = max((rate for rates in series for rate in rates), default=0.0)
        lines = []
        for future, rates in zip(futures, series, strict=True):
            line = self.line().gap().add(fit(future.policy, 20, self.look), "muted")
            lines.append(
                line.add(sparkline(rates, top, self.look), "decode").gap().add(f"max {count(max(rates, default=None))}")
            )
        return lines

    def _likeness(self, found: WhatIf, width: int) -> list[Line]:
        likeness = found.copy
        lines = [self.line(), self.heading("the copy at that moment, beside the recording", width)]
        ended = f"{likeness.ended} trajectories ended, recorded {count(likeness.ended_recorded)}"
        lines += self.fact("ended", ended, width)
        recorded = "–" if likeness.split_recorded is None else str(likeness.split_recorded)
        return lines + self.fact("split", f"{likeness.split}, recorded {recorded}", width)


def _rates(future: Future, columns: int) -> list[float]:
    """Output tokens a second in equal stretches of a future."""
    points = future.course
    last_s = points[-1].t_s
    if len(points) < 2 or not last_s:
        return []
    rates = []
    for column in range(min(columns, len(points) - 1)):
        begin = points[column * (len(points) - 1) // min(columns, len(points) - 1)]
        end = points[(column + 1) * (len(points) - 1) // min(columns, len(points) - 1)]
        length_s = end.t_s - begin.t_s
        rates.append((end.output_tokens - begin.output_tokens) / length_s if length_s > 0 else 0.0)
    return rates
