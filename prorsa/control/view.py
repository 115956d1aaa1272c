"""The console's aggregate: everything that it needs to draw a screen, from the controller's state alone."""

from collections.abc import Iterable

from prorsa.cluster.registry import Worker
from prorsa.control.controller import Controller
from prorsa.events import View, WorkerView


def make_view(controller: Controller, t_ns: int, upto_hub_seq: int, *, gaps: int = 0) -> View:
    """The aggregate at run time ``t_ns``; ``gaps`` is what the subscriber of this controller has missed for good."""
    workers = tuple(_worker(worker, controller, t_ns) for worker in controller.registry)
    predictor, run, frame = controller.predictor, controller.run, controller.frame
    counts = predictor.table.counts() if predictor else {}
    flows = predictor.table.flows() if predictor else {}
    return View(
        tick_ns=t_ns,
        upto_hub_seq=upto_hub_seq,
        mode=controller.mode,
        policy=controller.policy.name,
        split=controller.registry.split(),
        workers=workers,
        trajectories=counts,
        flows=flows,
        overrides=controller.overrides.views(t_ns),
        forecast=frame.rows if frame else (),
        scores=predictor.scores.summary() if predictor else {},
        last_decision=controller.last_decision,
        proposal=controller.proposal,
        shadow=controller.shadow.score() if controller.shadow else None,
        last_shadow=controller.shadow.last if controller.shadow else None,
        admission=controller.admission,
        alerts=controller.alerts.active(),
        output_tokens_per_s=_total(worker.output_tokens_per_s for worker in workers),
        prefill_tokens_per_s=_total(worker.prefill_tokens_per_s for worker in workers),
        idle=_idle(workers),
        mean_context_tokens=frame.mean_context_tokens if frame else None,
        gaps=gaps,
        repaired=predictor.table.repaired_total if predictor else 0,
        scenario=run.scenario if run else None,
        done=counts.get("done") if predictor else None,
        total=run.trajectories if run else None,
    )


def _worker(worker: Worker, controller: Controller, t_ns: int) -> WorkerView:
    load, rates = worker.load, worker.rates
    return WorkerView(
        worker_id=worker.worker_id,
        role=worker.role,
        state=worker.state,
        epoch=worker.epoch,
        pinned=controller.overrides.pinned(worker.worker_id),
        flippable=worker.flippable,
        to_role=worker.to_role,
        queued=load.queued if load else None,
        running=load.running if load else None,
        kv_used=load.kv_used if load else None,
        kv_cached=load.kv_cached if load else None,
        kv_capacity=worker.kv_capacity,
        prefill_tokens_per_s=rates.prefill_tokens_per_s if rates else None,
        output_tokens_per_s=rates.output_tokens_per_s if rates else None,
        busy=rates.busy if rates else None,
        age_s=worker.age_s(t_ns),
    )


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _idle(workers: tuple[WorkerView, ...]) -> float | None:
    busy = [worker.busy for worker in workers if worker.busy is not None]
    return 1.0 - sum(busy) / len(busy) if busy else None
