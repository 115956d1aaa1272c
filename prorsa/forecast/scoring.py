"""Past forecasts beside what then happened.

Time is cut into bins by the ticks: bin ``j`` is what happened in ``(tick[j-1], tick[j]]``. A forecast made at tick
``j`` for ``H`` is settled when every request that belongs to bins up to ``tick[j] + H`` has told what it took:

- prefill: at ``llm.prefill_end`` (its true uncached tokens), booked in the bin in which it became ready;
- decode admission: at ``llm.end`` (admitted prompt + actual output), booked in the bin in which it was first admitted;
- KV need: at the end of the window, as the highest resident KV at any tick in it.

Only the first prefill and the first admission of a request count: what a cancelled attempt must do again is no demand
of the rollout (source ``retry``). A request that leaves without telling makes the windows that it belongs to
*unsettled*; windows in which nothing was demanded are *empty*. Both are counted apart and scored nowhere.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from prorsa.clock import NS_PER_S
from prorsa.events import ForecastTarget, Settled
from prorsa.forecast.calibration import Corrected
from prorsa.forecast.requests import Request

GRACE_BINS: Final = 2
"""Closed bins that stay open for events that arrive late."""

TARGETS: Final[tuple[ForecastTarget, ...]] = ("prefill", "decode_admission", "kv_need")


class Made(NamedTuple):
    """One forecast as it was made; see :class:`~prorsa.events.Settled`. ``mean_arrivals`` is what its arrivals add to
    what was known.
    """

    mean: float
    mean_arrivals: float
    corrected: Corrected
    baselines: dict[str, float]


class _Bins:
    """Amounts by bin that become known late; bins are final in order, once nothing in them is pending."""

    def __init__(self) -> None:
        self._first = 0
        self._amount: deque[float] = deque()
        self._pending: deque[int] = deque()
        self._void: deque[int] = deque()
        self.totals: deque[tuple[float, int]] = deque([(0.0, 0)])
        """Running (amount, voids) up to and with each final bin, for bins from ``first_total`` on."""
        self.first_total = -1

    @property
    def final(self) -> int:
        """The last bin that is final."""
        return self._first - 1

    def expect(self, bin_index: int) -> int:
        """Something is to be booked in a bin; returns the bin, which is a later one if that is final."""
        place = max(bin_index, self._first)
        while place - self._first >= len(self._amount):
            self._amount.append(0.0)
            self._pending.append(0)
            self._void.append(0)
        self._pending[place - self._first] += 1
        return place

    def book(self, bin_index: int, amount: float | None) -> None:
        """What was expected has come; None if it never will."""
        at = bin_index - self._first
        self._pending[at] -= 1
        if amount is None:
            self._void[at] += 1
        else:
            self._amount[at] += amount

    def advance(self, closed: int) -> None:
        """Finalise bins up to ``closed`` as far as nothing is pending."""
        while self._first <= closed and (not self._pending or self._pending[0] == 0):
            amount, voids = self.totals[-1]
            if self._pending:
                self._pending.popleft()
                amount += self._amount.popleft()
                voids += self._void.popleft()
            self.totals.append((amount, voids))
            self._first += 1

    def window(self, after: int, upto: int) -> tuple[float, int]:
        """Amount and voids of the bins in ``(after, upto]``, all final."""
        low, high = self.totals[after - self.first_total], self.totals[upto - self.first_total]
        return high[0] - low[0], high[1] - low[1]

    def trim(self, before: int) -> None:
        """Forget running totals that no window from bin ``before`` on needs."""
        while self.first_total < before and len(self.totals) > 1:
            self.totals.popleft()
            self.first_total += 1


class _Running:
    """A running sum over bins whose changes come in any order, asked for bins in ascending order."""

    def __init__(self) -> None:
        self._changes: dict[int, tuple[float, int]] = {}
        self._next = 0
        self._amount = 0.0
        self._voids = 0

    def add(self, bin_index: int, amount: float, voids: int = 0) -> None:
        """The sum changes from this bin on."""
        had = self._changes.get(bin_index, (0.0, 0))
        self._changes[bin_index] = (had[0] + amount, had[1] + voids)

    def upto(self, bin_index: int) -> tuple[float, int]:
        """Amount and voids at a bin, when nothing more will be added at or before it."""
        while self._next <= bin_index:
            amount, voids = self._changes.pop(self._next, (0.0, 0))
            self._amount += amount
            self._voids += voids
            self._next += 1
        return self._amount, self._voids


class ScoreKeeper:
    """Settles the forecasts of one run, O(1) amortised an event and a tick. Ticks are equally spaced.

    Args:
        horizons_s: the horizons that are scored.
        max_pending: ticks whose forecasts are kept; older ones that still wait count as unsettled.
    """

    def __init__(self, horizons_s: tuple[float, ...], *, max_pending: int = 3600) -> None:
        self.horizons_s = horizons_s
        self.unsettled: dict[tuple[str, float], int] = {(t, h): 0 for t in TARGETS for h in horizons_s}
        self._max_pending = max_pending
        self._ready = _Bins()
        self._admitted = _Bins()
        self._tick = -1
        self._ticks_ns: deque[int] = deque()
        self._first_tick = 0
        self._made: deque[dict[tuple[str, float], Made]] = deque()
        self._next = dict.fromkeys(self.unsettled, 0)
        self._computed: deque[float] = deque()
        self._levels: deque[float] = deque()
        self._spacing_s = 1.0
        self._backlog = {h: _Running() for h in horizons_s}
        self._waited = {h: _Running() for h in horizons_s}

    # --- what happens -----------------------------------------------------------------------------------------------

    def ready(self, t_s: float, request: Request) -> None:
        """A request became ready: its first prefill is demand of this bin."""
        request.ready_bin = self._ready.expect(self._bin(t_s))
        request.owes_prefill = True

    def prefilled(self, t_s: float, request: Request) -> None:
        """Its first prefill has ended and ``uncached_tokens`` is known."""
        self._book_prefill(t_s, request, request.uncached_tokens)

    def admitted(self, t_s: float, request: Request) -> None:
        """Decode has admitted it for the first time."""
        request.admitted_bin = self._admitted.expect(self._bin(t_s))
        request.owes_answer = True

    def answered(self, request: Request) -> None:
        """Its answer is complete."""
        if request.owes_answer and request.output_tokens is not None:
            self._book_admission(request, float(request.kv_tokens + request.output_tokens))

    def lost(self, t_s: float, request: Request) -> None:
        """It left; what is still expected of it never comes."""
        self._book_prefill(request.prefilled_s or t_s, request, None)
        if request.owes_answer:
            self._book_admission(request, None)

    def _book_admission(self, request: Request, tokens: float | None) -> None:
        request.owes_answer = False
        self._admitted.book(request.admitted_bin, tokens)
        begin, end = request.ready_bin, request.admitted_bin
        if begin < 0 or end <= begin or tokens is None:
            return
        for horizon_s, waited in self._waited.items():
            # Forecasts from before it was admitted, and late enough to reach that, knew that it waits.
            waited.add(max(begin, end - round(horizon_s / self._spacing_s)), tokens)
            waited.add(end, -tokens)

    def _book_prefill(self, t_s: float, request: Request, tokens: float | None) -> None:
        begin, end = request.ready_bin, self._bin(t_s)
        if not request.owes_prefill:
            return
        request.owes_prefill = False
        self._ready.book(begin, tokens)
        if end > begin:
            amount, void = (0.0, 1) if tokens is None else (float(tokens), 0)
            for backlog in self._backlog.values():
                backlog.add(begin, amount, void)
                backlog.add(end, -amount, -void)

    def _bin(self, t_s: float) -> int:
        """The bin of a time; most events belong to the one that is open."""
        t_ns = round(t_s * NS_PER_S)
        if not self._ticks_ns or t_ns > self._ticks_ns[-1]:
            return self._tick + 1
        return self._first_tick + bisect_left(self._ticks_ns, t_ns)

    # --- ticks ------------------------------------------------------------------------------------------------------

    def tick(self, t_ns: int, *, computed_tokens: float, resident_kv_tokens: float) -> list[tuple[Settled, Made]]:
        """Close a bin and return the forecasts that are settled by now, each with how it was made.

        Args:
            t_ns: time of the tick.
            computed_tokens: chunks already computed of what is in the backlog now.
            resident_kv_tokens: KV that decode holds now.
        """
        self._tick += 1
        if self._ticks_ns and t_ns > self._ticks_ns[-1]:
            self._spacing_s = (t_ns - self._ticks_ns[-1]) / NS_PER_S
        self._ticks_ns.append(t_ns)
        self._computed.append(computed_tokens)
        self._levels.append(resident_kv_tokens)
        self._ready.advance(self._tick - GRACE_BINS)
        self._admitted.advance(self._tick - GRACE_BINS)
        settled = [pair for key in self._next for pair in self._settle(key)]
        self._trim()
        return settled

    def made(self, forecasts: Mapping[tuple[str, float], Made]) -> None:
        """The forecasts of the tick just closed, by (target, horizon)."""
        self._made.append(dict(forecasts))

    def finish(self) -> None:
        """The run is over: forecasts that still wait count as unsettled."""
        for key, following in self._next.items():
            self.unsettled[key] += max(self._first_tick + len(self._made) - following, 0)
            self._next[key] = self._first_tick + len(self._made)

    def _settle(self, key: tuple[str, float]) -> Iterable[tuple[Settled, Made]]:
        target, horizon_s = key
        while (tick := self._next[key]) < self._first_tick + len(self._made):
            last = self._last_bin(tick, horizon_s)
            if last is None or last > self._final(target):
                return
            self._next[key] += 1
            made = self._made[tick - self._first_tick].get(key)
            row = self._compare(key, tick, last, made) if made is not None else None
            if made is None or row is None:
                self.unsettled[key] += 1
            else:
                yield row, made

    def _last_bin(self, tick: int, horizon_s: float) -> int | None:
        """The bin that ends the window of a tick; None if the window has not ended."""
        end_ns = self._ticks_ns[tick - self._first_tick] + round(horizon_s * NS_PER_S)
        if self._ticks_ns[-1] < end_ns:
            return None
        return self._first_tick + bisect_left(self._ticks_ns, end_ns)

    def _final(self, target: str) -> int:
        if target == "kv_need":
            return self._tick
        return self._ready.final if target == "prefill" else self._admitted.final

    def _compare(self, key: tuple[str, float], tick: int, last: int, made: Made) -> Settled | None:
        target, horizon_s = key
        at = tick - self._first_tick
        actual, arrivals, voids = self._actual(key, tick, last)
        if voids:
            return None
        return Settled(
            target=target,  # type: ignore[arg-type]
            horizon_s=horizon_s,
            tick_ns=self._ticks_ns[at],
            actual=actual,
            actual_arrivals=arrivals,
            mean=made.mean,
            p10=made.corrected.p10,
            p50=made.corrected.p50,
            p90=made.corrected.p90,
            p50_arrivals=made.corrected.p50_arrivals,
            baselines=made.baselines,
        )

    def _actual(self, key: tuple[str, float], tick: int, last: int) -> tuple[float, float, int]:
        """Tokens demanded in a window, those of them of requests that were not ready at its tick, and voids."""
        target, horizon_s = key
        at = tick - self._first_tick
        if target == "kv_need":
            peak = max(islice(self._levels, at + 1, last - self._first_tick + 1))
            return peak, peak, 0
        if target == "decode_admission":
            amount, voids = self._admitted.window(tick, last)
            # Rounding must not make less than nothing arrive.
            return amount, max(amount - self._waited[horizon_s].upto(tick)[0], 0.0), voids
        arrivals, voids = self._ready.window(tick, last)
        backlog, void_backlog = self._backlog[horizon_s].upto(tick)
        return max(backlog - self._computed[at], 0.0) + arrivals, arrivals, voids + void_backlog

    def _trim(self) -> None:
        """Forget ticks that nothing waits for any more, or that have waited too long."""
        while self._made and (min(self._next.values()) > self._first_tick or len(self._made) > self._max_pending):
            for key, following in self._next.items():
                if following == self._first_tick:
                    self.unsettled[key] += 1
                    self._next[key] += 1
            for queue in (self._made, self._ticks_ns, self._computed, self._levels):
                queue.popleft()
            self._first_tick += 1
        self._ready.trim(self._first_tick - 1)
        self._admitted.trim(self._first_tick - 1)


@dataclass(slots=True)
class _Cell:
    windows: int = 0
    empty: int = 0
    unsettled: int = 0
    missed: float = 0.0
    actual: float = 0.0
    missed_arrivals: float = 0.0
    actual_arrivals: float = 0.0
    mean_error: float = 0.0
    covered: int = 0
    baseline_missed: dict[str, float] = field(default_factory=dict)

    def add(self, row: Settled) -> None:
        if row.actual <= 0:
            self.empty += 1
            return
        self.windows += 1
        self.missed += abs(row.p50 - row.actual)
        self.actual += row.actual
        if row.actual_arrivals > 0 and row.target != "kv_need":  # a level has no arrivals
            self.missed_arrivals += abs(row.p50_arrivals - row.actual_arrivals)
            self.actual_arrivals += row.actual_arrivals
        self.mean_error += row.mean - row.actual
        self.covered += row.p10 <= row.actual <= row.p90
        for name, value in row.baselines.items():
            self.baseline_missed[name] = self.baseline_missed.get(name, 0.0) + abs(value - row.actual)

    def merge(self, other: "_Cell") -> None:
        for name in ("windows", "empty", "unsettled", "missed", "actual", "missed_arrivals", "actual_arrivals"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.mean_error += other.mean_error
        self.covered += other.covered
        for name, value in other.baseline_missed.items():
            self.baseline_missed[name] = self.baseline_missed.get(name, 0.0) + value

    def summary(self, baselines: Iterable[str]) -> dict[str, float | None]:
        scored = self.windows > 0
        errors = {
            name: self.baseline_missed[name] / self.actual if scored and name in self.baseline_missed else None
            for name in baselines
        }
        return {
            "wape": self.missed / self.actual if scored else None,
            "wape_arrivals": self.missed_arrivals / self.actual_arrivals if self.actual_arrivals > 0 else None,
            "bias": self.mean_error / self.actual if scored else None,
            "coverage_80": self.covered / self.windows if scored else None,
            **errors,
            "windows": self.windows,
            "empty": self.empty,
            "unsettled": self.unsettled,
        }


class Scores:
    """Sums of settled forecasts by target and horizon; sums of several runs can be merged.

    Args:
        horizons_s: horizons that the summary has, whether or not anything settled.
        baselines: names of the baselines that the summary has.
    """

    def __init__(self, horizons_s: Iterable[float], baselines: Iterable[str] = ("last", "ewma", "kalman")) -> None:
        self._baselines = tuple(baselines)
        self._cells = {(target, float(h)): _Cell() for target in TARGETS for h in horizons_s}

    def add(self, row: Settled) -> None:
        """Count one settled forecast; horizons that are not scored are left out."""
        cell = self._cells.get((row.target, row.horizon_s))
        if cell is not None:
            cell.add(row)

    def add_unsettled(self, unsettled: Mapping[tuple[str, float], int]) -> None:
        """Count windows that never settled, by (target, horizon)."""
        for key, count in unsettled.items():
            if key in self._cells:
                self._cells[key].unsettled += count

    def merge(self, other: "Scores") -> None:
        """Add the sums of ``other``, which has the same horizons."""
        for key, cell in self._cells.items():
            cell.merge(other._cells[key])  # noqa: SLF001 - of its own class

    def summary(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """By target and horizon (``"15"``): errors as fractions of the actual, None where nothing settled."""
        out: dict[str, dict[str, dict[str, float | None]]] = {target: {} for target in TARGETS}
        for (target, horizon_s), cell in self._cells.items():
            out[target][f"{horizon_s:g}"] = cell.summary(self._baselines)
        return out
