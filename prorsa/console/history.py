"""Bounded series behind the console's charts, cut to what a chart has columns for."""

import re
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, takewhile
from operator import attrgetter

from prorsa.clock import seconds
from prorsa.events import ForecastRow, Settled, Split, View, WorkerView


@dataclass(slots=True)
class DemandPoint:
    """What was forecast at a tick for the horizon from there, and what then happened once that is known. Tokens."""

    t_s: float
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    actual: float | None = None


_t_s = attrgetter("t_s")


class DemandHistory:
    """Forecasts of one target over one horizon by the tick they were made at, beside the actuals. Keeps ``limit``."""

    def __init__(self, limit: int = 7200) -> None:
        self.limit = limit
        self.points: list[DemandPoint] = []

    def forecast(self, tick_ns: int, row: ForecastRow) -> None:
        """Keep the forecast made at a tick; a baseline's row has a mean alone, which stands in for the median."""
        point = self._at(seconds(tick_ns))
        point.p10, point.p90 = row.p10, row.p90
        point.p50 = row.mean if row.p50 is None else row.p50

    def settle(self, settled: Settled) -> None:
        """Keep what happened after a tick, with the forecast made then."""
        point = self._at(seconds(settled.tick_ns))
        point.p10, point.p50, point.p90 = settled.p10, settled.p50, settled.p90
        point.actual = settled.actual

    def window(self, from_s: float, to_s: float) -> Sequence[DemandPoint]:
        """The points with ``from_s <= t_s <= to_s``, in the order of time."""
        start = bisect_left(self.points, from_s, key=_t_s)
        return self.points[start : bisect_right(self.points, to_s, key=_t_s)]

    def last_actual(self) -> DemandPoint | None:
        """The newest point whose actual is known."""
        return next((point for point in reversed(self.points) if point.actual is not None), None)

    def _at(self, t_s: float) -> DemandPoint:
        index = bisect_left(self.points, t_s, key=_t_s)
        if index < len(self.points) and self.points[index].t_s == t_s:
            return self.points[index]
        point = DemandPoint(t_s)
        insort(self.points, point, key=_t_s)
        if len(self.points) > self.limit:
            del self.points[0]
        return point


class SplitHistory:
    """The split as a step function of time: only changes are kept, at most ``limit`` of them."""

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self.times_s: list[float] = []
        self.splits: list[Split] = []
        self.until_s = 0.0

    def add(self, t_s: float, split: Split) -> None:
        """The split at ``t_s``, later than all before."""
        self.until_s = t_s
        if self.splits and self.splits[-1] == split:
            return
        self.times_s.append(t_s)
        self.splits.append(split)
        if len(self.times_s) > self.limit:
            del self.times_s[0], self.splits[0]

    def at(self, t_s: float) -> Split | None:
        """The split that held at ``t_s``; None before the first that is known and after the last."""
        index = bisect_right(self.times_s, t_s) - 1
        return self.splits[index] if index >= 0 and t_s <= self.until_s else None

    def columns(self, from_s: float, to_s: float, columns: int) -> list[Split | None]:
        """The split at the end of each of ``columns`` equal stretches of time."""
        return [self.at(end_s) for _, end_s in stretches(from_s, to_s, columns)]


def stretches(from_s: float, to_s: float, columns: int) -> Iterator[tuple[float, float]]:
    """Start and end of each of ``columns`` equal stretches of ``from_s .. to_s``."""
    step_s = (to_s - from_s) / columns
    for column in range(columns):
        yield from_s + column * step_s, from_s + (column + 1) * step_s


def resample(points: Sequence[DemandPoint], from_s: float, to_s: float, columns: int) -> list[DemandPoint | None]:
    """Means of the points of each of ``columns`` equal stretches; None where there is no point.

    Stretches shorter than the distance between points would leave holes; those between two known columns that are no
    further apart than a few points are filled by the earlier of the two.
    """
    grouped: list[list[DemandPoint]] = [[] for _ in range(columns)]
    step_s = (to_s - from_s) / columns
    for point in points:
        index = int((point.t_s - from_s) / step_s)
        grouped[min(max(index, 0), columns - 1)].append(point)
    merged = [_mean(group) if group else None for group in grouped]
    return _fill(merged, _reach(points, step_s))


def _reach(points: Sequence[DemandPoint], step_s: float) -> int:
    """How many columns a point stands for: twice the usual distance between points."""
    if len(points) < 2:
        return 1
    usual_s = (points[-1].t_s - points[0].t_s) / (len(points) - 1)
    return max(1, round(2 * usual_s / step_s))


def _fill(columns: list[DemandPoint | None], reach: int) -> list[DemandPoint | None]:
    filled: list[DemandPoint | None] = []
    last, age = None, 0
    later = [index for index, point in enumerate(columns) if point is not None]
    end = later[-1] if later else -1
    for index, point in enumerate(columns):
        last, age = (point, 0) if point is not None else (last, age + 1)
        filled.append(last if age <= reach and index <= end else None)
    return filled


def _mean(group: Sequence[DemandPoint]) -> DemandPoint:
    return DemandPoint(
        t_s=group[0].t_s,
        p10=_average([point.p10 for point in group]),
        p50=_average([point.p50 for point in group]),
        p90=_average([point.p90 for point in group]),
        actual=_average([point.actual for point in group]),
    )


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """What the pool did at a view: rates in tokens a second, idle share, trajectories live and ended."""

    t_s: float
    prefill_tokens_per_s: float | None
    output_tokens_per_s: float | None
    idle: float | None
    live: int | None
    done: int | None
    flows: Mapping[str, int]


class PoolHistory:
    """The pool at every view, at most ``limit`` of them."""

    def __init__(self, limit: int = 7200) -> None:
        self.points: deque[PoolPoint] = deque(maxlen=limit)

    def add(self, view: View) -> None:
        """Keep what a view says of the pool as a whole."""
        live = sum(count for state, count in view.trajectories.items() if state != "done")
        self.points.append(
            PoolPoint(
                t_s=seconds(view.tick_ns),
                prefill_tokens_per_s=view.prefill_tokens_per_s,
                output_tokens_per_s=view.output_tokens_per_s,
                idle=view.idle,
                live=live if view.trajectories else None,
                done=view.done,
                flows=view.flows,
            )
        )

    def window(self, from_s: float, to_s: float) -> list[PoolPoint]:
        """The points with ``from_s <= t_s <= to_s``."""
        newest_first = takewhile(lambda point: point.t_s >= from_s, reversed(self.points))
        return [point for point in newest_first if point.t_s <= to_s][::-1]

    def mean(self, name: str, from_s: float, to_s: float) -> float | None:
        """The mean of an attribute over a stretch of time; None where it is never known."""
        return _average([getattr(point, name) for point in self.window(from_s, to_s)])

    def flows_per_minute(self, window_s: float) -> tuple[dict[str, float], float]:
        """Moves between states a minute over the last ``window_s``, and over how many seconds they were counted."""
        if not self.points:
            return {}, 0.0
        last = self.points[-1]
        first = self.window(last.t_s - window_s, last.t_s)[0]
        elapsed_s = last.t_s - first.t_s
        if elapsed_s <= 0.0:
            return {}, 0.0
        counts = {name: count - first.flows.get(name, 0) for name, count in last.flows.items()}
        # A controller that was started again has counted the run anew: what went backwards is not known.
        return {name: 60.0 * count / elapsed_s for name, count in counts.items() if count >= 0}, elapsed_s


class WorkerHistory:
    """The workers at the latest views: every one of about the last minute, then one in a few seconds.

    The views' own tuples are kept, and taken apart for what is on the screen alone: at 512 workers, series of each
    would cost more than all the rest of the console.
    """

    def __init__(self, recent: int = 120, older: int = 360, older_every_s: float = 5.0) -> None:
        self._recent: deque[tuple[float, tuple[WorkerView, ...]]] = deque(maxlen=recent)
        self._older: deque[tuple[float, tuple[WorkerView, ...]]] = deque(maxlen=older)
        self._older_every_s = older_every_s

    def add(self, t_s: float, workers: tuple[WorkerView, ...]) -> None:
        """Keep the workers of a view."""
        if len(self._recent) == self._recent.maxlen:
            leaving = self._recent[0]
            if not self._older or leaving[0] - self._older[-1][0] >= self._older_every_s:
                self._older.append(leaving)
        self._recent.append((t_s, workers))

    def points(self, worker_id: str) -> list[tuple[float, WorkerView]]:
        """A worker at every view that is kept and has it, oldest first."""
        found = ((t_s, _pick(workers, worker_id)) for t_s, workers in (*self._older, *self._recent))
        return [(t_s, worker) for t_s, worker in found if worker is not None]

    def series(self, worker_id: str, read: Callable[[WorkerView], float | None], points: int) -> list[float | None]:
        """Values of a worker at the latest ``points`` views, oldest first; None where it was not there."""
        latest = list(islice(reversed(self._recent), points))
        workers = [_pick(workers, worker_id) for _, workers in reversed(latest)]
        return [None if worker is None else read(worker) for worker in workers]


def _pick(workers: tuple[WorkerView, ...], worker_id: str) -> WorkerView | None:
    """A worker by its id: views list them in the order of their ids, so it is nearly always found by halving."""
    index = bisect_left(workers, natural(worker_id), key=_natural_id)
    if index < len(workers) and workers[index].worker_id == worker_id:
        return workers[index]
    return next((worker for worker in workers if worker.worker_id == worker_id), None)


@cache
def natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """A key under which ``w2`` comes before ``w10``."""
    return tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", text)
    )


def _natural_id(worker: WorkerView) -> tuple[tuple[bool, int, str], ...]:
    return natural(worker.worker_id)
