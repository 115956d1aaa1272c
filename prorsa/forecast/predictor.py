"""The predictor: events in, a forecast each tick out. Pure: no I/O, no clock, no randomness."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.clock import NS_PER_S
from prorsa.errors import ConfigError
from prorsa.events import ForecastRow, ForecastTarget, Settled, Stamped
from prorsa.forecast.admission import AdmissionDemand
from prorsa.forecast.averages import held_by_decode
from prorsa.forecast.baselines import BaselineSet
from prorsa.forecast.calibration import MENDED_LEAN, SHARPNESS, Combiners, Kind, Outcome, Raw
from prorsa.forecast.compound import compound_quantiles
from prorsa.forecast.demand import PrefillDemand
from prorsa.forecast.early import EarlyActuals
from prorsa.forecast.frame import Frame, as_seen, with_totals
from prorsa.forecast.horizons import QUANTILES, SIZES, ByHorizon, Sums, by_horizon
from prorsa.forecast.learn import Learner
from prorsa.forecast.phases import TRANSIENT, PhaseTracker
from prorsa.forecast.plan import RunPlan
from prorsa.forecast.scoring import TARGETS, Made, ScoreKeeper, Scores
from prorsa.forecast.sources import Lookout, Outlook
from prorsa.forecast.steps import Steps
from prorsa.forecast.trajectory import TrajectoryTable
from prorsa.forecast.waiting import Queue, Service, ServiceRate, make_queue
from prorsa.forecast.waits import WaitKeys

__all__ = ["ForecastConfig", "Frame", "Predictor", "as_seen", "with_totals"]

Array = NDArray[np.float64]

SECOND_S: Final = 1.0
"""What is learnt by the second (rates, baselines, queues) is closed so often, with the first event after it where there
was no tick: so that rare ticks, as a training's at decisions, forecast what ticks of each second do."""
_CATCH_UP: Final = 60
"""Seconds are closed one by one after at most so many without an event; longer silences in so many pieces."""


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """Settings of a predictor.

    Attributes:
        horizons_s: horizons that are forecast.
        scored_s: those of them whose forecasts are scored.
        stale_s: silence after which a trajectory is given up.
    """

    horizons_s: tuple[float, ...] = (5.0, 15.0, 30.0, 60.0)
    scored_s: tuple[float, ...] = (5.0, 15.0, 30.0)
    stale_s: float = 3600.0

    def __post_init__(self) -> None:
        if not self.horizons_s or not all(1.0 <= h <= 600.0 for h in self.horizons_s):
            raise ConfigError(f"forecast horizons_s {self.horizons_s}: give one or more, each from 1 to 600 s")
        if extra := set(self.scored_s) - set(self.horizons_s):
            raise ConfigError(
                f"forecast scored_s: {sorted(extra)} are not among horizons_s {self.horizons_s}; add them"
            )


class Predictor:
    """Forecasts the demand of a run from its events.

    Attributes:
        table: where each live trajectory stands.
        scores: how the forecasts so far turned out.
        demand: by target what the baselines are fed: tokens that came in the last second that was closed; of KV need
            the level at its end.
    """

    def __init__(self, config: ForecastConfig | None = None) -> None:
        self.config = config or ForecastConfig()
        horizons_s = self.config.horizons_s
        keys = WaitKeys()
        self.scores = Scores(self.config.scored_s)
        self._keeper = ScoreKeeper(self.config.scored_s)
        self._learner = Learner(keys, self._keeper)
        self.table = TrajectoryTable(self._learner, keys, stale_s=self.config.stale_s)
        self._plan = RunPlan(self._learner)
        self._steps = Steps(horizons_s)
        self._lookout = Lookout(self._steps, self._learner, self._plan, self.table.ranks)
        self._service = ServiceRate()
        self._baselines = {target: BaselineSet(target, max(horizons_s)) for target in TARGETS}
        self._keys = tuple((target, horizon_s) for target in TARGETS for horizon_s in horizons_s)
        kinds = [
            Kind(h, target == "prefill", SHARPNESS[target], MENDED_LEAN[target], whole=target == "decode_admission")
            for target, h in self._keys
        ]
        self._combiners = Combiners(kinds, len(BaselineSet.NAMES))
        self._outcomes: list[Outcome] = []
        self._combiner_of = {key: which for which, key in enumerate(self._keys)}
        self._phases = PhaseTracker()
        self._transient = True
        self._share_corrections()
        self._early = EarlyActuals(horizons_s)
        self._closed_s: float | None = None
        self._batch = 0.0
        self._serving = np.zeros(0, np.bool_)
        self._computed_tokens = self._prefilled_tokens = self._prefilling_s = 0.0
        self._reports = 0
        self.demand: dict[ForecastTarget, float] = dict.fromkeys(TARGETS, 0.0)

    def observe(self, stamped: Stamped) -> None:
        """Take one event of the run; O(1) but for the queues, never fails on one that does not fit."""
        t_s = stamped.t_ns / NS_PER_S
        if self._closed_s is not None and t_s > self._closed_s + SECOND_S:
            self._catch_up(t_s)
        if self.table.observe(stamped):
            self._plan.observe(stamped)
            self._phases.observe(stamped)

    def tick(self, t_ns: int) -> Frame:
        """The forecast at run time ``t_ns``, from the events so far; settles earlier ones."""
        t_s = t_ns / NS_PER_S
        if self._closed_s is not None:
            self._catch_up(t_s)
        self._move_on(t_s)
        slots = self._lookout.refresh(self.table.columns, t_s)
        queue, resident = self._queue(t_s), self._held()
        outlook = self._lookout.look(slots, queue, t_s, resident)
        computed = queue.computed_tokens
        settled = self._keeper.tick(t_ns, computed_tokens=computed, resident_kv_tokens=resident)
        self._settle(t_s, settled)
        self._learner.mean_output_tokens = outlook.cycle.answer_tokens
        # Live ticks are no whole seconds apart: what is left of a second is closed with the next one.
        if self._closed_s is None or t_s > self._closed_s + SECOND_S / 2:
            self._close(t_s, queue, resident)
        return self._forecast(t_ns, outlook, tuple(row for row, _ in settled))

    def finish(self) -> None:
        """The run is over: forecasts that still wait to be settled count as unsettled in the scores."""
        self._keeper.finish()
        self.scores.add_unsettled(self._keeper.unsettled)

    def _share_corrections(self) -> None:
        """Let horizons that are not scored, so never settle, be corrected as the nearest one that is."""
        scored = self.config.scored_s
        for horizon_s in set(self.config.horizons_s) - set(scored) if scored else ():
            nearest = min(scored, key=lambda other: abs(other - horizon_s))
            for target in ("prefill", "kv_need"):  # decode admissions are learnt from early, at every horizon
                self._combiner_of[target, horizon_s] = self._combiner_of[target, nearest]

    # --- state ------------------------------------------------------------------------------------------------------

    def _catch_up(self, t_s: float) -> None:
        """Close the seconds that have ended before ``t_s``."""
        assert self._closed_s is not None
        step_s = max(SECOND_S, (t_s - self._closed_s) / _CATCH_UP)
        while t_s > self._closed_s + step_s:
            second_s = self._closed_s + step_s
            self._move_on(second_s)
            self._close(second_s, self._queue(second_s), self._held())

    def _move_on(self, t_s: float) -> None:
        """Let pass what passes without an event."""
        self.table.purge(t_s)
        self._plan.advance(t_s)
        phase = self._phases.at(t_s, self.table.live)
        self._transient = phase in TRANSIENT or self._plan.eventful

    def _held(self) -> float:
        """KV tokens that decode holds now."""
        of = self.table.columns
        self._batch, tokens = held_by_decode(of.state, of.admitted, of.prompt_tokens, of.output_tokens)
        return tokens

    def _queue(self, t_s: float) -> Queue:
        """What waits now; what is learnt from events until the next look goes by it."""
        learner, ranks = self._learner, self.table.ranks
        typical = float(learner.appended.means.sum()) / len(learner.appended.means)
        serving = ranks.serving(self._plan.serves_prefill)
        latency_s = learner.prefill_latency_s.value
        service = Service(
            serving,
            ranks.workers,
            ranks.tokens_per_s,
            ranks.line,
            ranks.slack_s,
            self._service.tokens_per_s,
            latency_s,
        )
        starts = learner.first_share.starting(learner.computed_s)
        queue = make_queue(self.table.columns, t_s, typical, service, learner.wait_losses, learner.first_share, starts)
        ranks.note_work(queue.rank_work, service.serving, queue.rank_tokens_per_s)
        self._serving = serving
        ranks.saturated = queue.waiting > 0
        learner.new_wait_s = queue.new_wait_s
        return queue

    def _close(self, t_s: float, queue: Queue, resident: float) -> None:
        """Take what has come since the last time into the baselines and rates."""
        elapsed_s = 0.0 if self._closed_s is None else t_s - self._closed_s
        self._closed_s = t_s
        learner = self._learner
        self._learn_early(t_s)
        came: dict[ForecastTarget, float] = {
            "prefill": learner.ready_tokens,
            "decode_admission": learner.admitted_tokens,
            "kv_need": resident * elapsed_s,
        }
        self.demand = {**came, "kv_need": resident}
        for target, baselines in self._baselines.items():
            baselines.update(came[target], elapsed_s)
        waiting, workers = queue.waiting, self._plan.prefill_workers
        self._service.close_tick(learner.admitted_uncached, waiting, workers, elapsed_s)
        self._learn_prefill(queue, elapsed_s)
        learner.close_tick(elapsed_s, self._batch)

    def _learn_prefill(self, queue: Queue, elapsed_s: float) -> None:
        """How much the ranks have computed since they last told how far they are."""
        ranks, table, before = self.table.ranks, self.table, self._computed_tokens
        self._prefilled_tokens += self._learner.prefilled_tokens
        self._prefilling_s += elapsed_s
        if ranks.saturated and table.progress_reports == self._reports:
            return
        self._reports, self._computed_tokens = table.progress_reports, queue.computed_tokens
        done, since_s = self._prefilled_tokens + self._computed_tokens - before, self._prefilling_s
        self._prefilled_tokens = self._prefilling_s = 0.0
        if not ranks.saturated:
            ranks.idled()
            return
        sent = table.columns.home[queue.slot[queue.admitted], 0]
        ranks.computed(done, sent, queue.context, self._serving, since_s)

    def _settle(self, t_s: float, settled: list[tuple[Settled, Made]]) -> None:
        for row, made in settled:
            self.scores.add(row)
            # Admissions were learnt from when their window ended: they settle with the last answer.
            if row.actual > 0 and row.target != "decode_admission":
                which, after_s = self._combiner_of[row.target, row.horizon_s], t_s - row.tick_ns / NS_PER_S
                self._outcomes.append(Outcome(which, made.corrected, row.actual, after_s))

    def _learn_early(self, t_s: float) -> None:
        self._outcomes += [
            Outcome(self._combiner_of["decode_admission", h], made.corrected, actual, h)
            for h, made, actual in self._early.tick(t_s, self._learner.admitted_tokens)
            if actual > 0
        ]

    # --- forecast ---------------------------------------------------------------------------------------------------

    def _forecast(self, t_ns: int, outlook: Outlook, settled: tuple[Settled, ...]) -> Frame:
        learner, steps, queue = self._learner, self._steps, outlook.queue
        streams, burst = outlook.streams, outlook.burst
        come = by_horizon(
            streams.tool, streams.box, streams.second, streams.sampler, burst.second, burst.sampler, steps.bin_at
        )
        prefill = PrefillDemand(learner, outlook, come)
        admission = AdmissionDemand(steps, learner, outlook, come)
        spread = compound_quantiles(np.concatenate([prefill.counts, admission.counts]), SIZES, QUANTILES)
        horizons, backlog, kv_need = len(steps.at), queue.backlog_tokens, admission.kv_need()
        sums: tuple[tuple[ForecastTarget, list[float], Sums, Sums], ...] = (
            ("prefill", [backlog] * horizons, *prefill.quantiles(spread[:horizons], backlog)),
            ("decode_admission", admission.queue.tolist(), *admission.quantiles(spread[horizons:])),
            ("kv_need", [0.0] * horizons, kv_need, kv_need),
        )
        out, made = self._by_source(prefill, admission, backlog, queue.retry_tokens), self._combine(sums)
        for (target, horizon_s), one in made.items():
            out += _rows(target, horizon_s, one)
        for horizon_s in self.config.horizons_s:
            self._early.made(t_ns / NS_PER_S, horizon_s, made["decode_admission", horizon_s])
        self._keeper.made({key: value for key, value in made.items() if key[1] in self.config.scored_s})
        return self._frame(t_ns, tuple(out), settled, outlook, come)

    def _by_source(
        self, prefill: PrefillDemand, admission: AdmissionDemand, backlog: float, retries: float
    ) -> list[ForecastRow]:
        """What is expected from where: prefill and admission, by horizon."""
        horizons_s = self.config.horizons_s
        sources = {name: values.tolist() for name, values in prefill.by_source.items()}
        sources |= {"ready": [backlog] * len(horizons_s), "retry": [retries] * len(horizons_s)}
        rows = [
            ForecastRow("prefill", horizon_s, name, means[h])
            for h, horizon_s in enumerate(horizons_s)
            for name, means in sources.items()
        ]
        ready = zip(horizons_s, admission.queue.tolist(), strict=True)
        return rows + [ForecastRow("decode_admission", horizon_s, "ready", mean) for horizon_s, mean in ready]

    def _combine(
        self, sums: Iterable[tuple[ForecastTarget, list[float], Sums, Sums]]
    ) -> dict[tuple[ForecastTarget, float], Made]:
        """The forecasts of each target and horizon, from its known part, its arrivals and its total."""
        means: list[float] = []
        series: list[dict[str, float]] = []
        raws: list[Raw] = []
        for target, known, arrivals, total in sums:
            medians, quantiles = arrivals.quantiles[:, 1].tolist(), total.quantiles.tolist()
            means += arrivals.mean.tolist()
            for h, horizon_s in enumerate(self.config.horizons_s):
                values = self._baselines[target].over(horizon_s, known[h] if target == "prefill" else 0.0)
                if target == "kv_need":
                    values = {name: value / horizon_s for name, value in values.items()}
                low, middle, high = quantiles[h]
                series.append(values)
                raws.append(
                    Raw(known[h], medians[h], middle - low, high - middle, tuple(values.values()), self._transient)
                )
        self._combiners.learn(self._outcomes)
        self._outcomes.clear()
        said = self._combiners.correct([self._combiner_of[key] for key in self._keys], raws)
        made = zip(means, raws, said, series, strict=True)
        return {
            key: Made(raw.known + mean, mean, now, values)
            for key, (mean, raw, now, values) in zip(self._keys, made, strict=True)
        }

    def _frame(
        self,
        t_ns: int,
        out: tuple[ForecastRow, ...],
        settled: tuple[Settled, ...],
        outlook: Outlook,
        come: ByHorizon,
    ) -> Frame:
        queue, context = outlook.queue, outlook.mean_context_tokens
        decoding, kv_tokens = outlook.expected.totals[1:3]
        return Frame(
            t_ns=t_ns,
            live_trajectories=self.table.live,
            rows=out,
            settled=settled,
            backlog_tokens=queue.backlog_tokens,
            retry_backlog_tokens=queue.retry_tokens,
            waiting_requests=queue.waiting,
            resident_kv_tokens=outlook.resident,
            decode_batch=int(decoding),
            mean_context_tokens=float(kv_tokens / decoding) if decoding else None,
            mean_new_tokens=outlook.mean_new_tokens,
            mean_prefix_tokens=max(context - outlook.mean_new_tokens, 0.0),
            mean_output_tokens=outlook.cycle.answer_tokens,
            request_output_tokens_per_s=self._learner.output_rate.value,
            requests_per_s=float(come.requests.sum()) / len(come.requests),
            arrivals_per_s=tuple(come.tokens.tolist()),
        )


def _rows(target: ForecastTarget, horizon_s: float, made: Made) -> list[ForecastRow]:
    """The rows of baselines, total and arrivals."""
    now = made.corrected
    rows = [ForecastRow(target, horizon_s, name, value) for name, value in made.baselines.items()]
    rows.append(ForecastRow(target, horizon_s, "total", made.mean, now.p10, now.p50, now.p90))
    if target != "kv_need":
        rows.append(ForecastRow(target, horizon_s, "arrivals", made.mean_arrivals, p50=now.p50_arrivals))
    return rows
