"""Reports a worker's load: the snapshots that SGLang makes anyway, passed on by a thread of the plugin's own."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from prorsa.cluster.plugin.hooks import Failures, Feature, Hook
from prorsa.cluster.plugin.lifecycle import Lifecycle
from prorsa.events import Event, WorkerLoad

LOAD_S: Final = 0.1
"""A load report at most each so many seconds, and only when SGLang has made a new snapshot."""
PROGRESS_S: Final = 1.0
PAUSED_S: Final = 1.0
"""A paused scheduler makes no snapshots; its last one is repeated so often, marked as paused."""


class LoadReport:
    """Publishes ``worker.load`` and ``llm.progress`` from a daemon thread.

    Args:
        emit: takes an event and neither blocks nor raises.
        lifecycle: knows the role, the epoch and the requests.
    """

    def __init__(self, emit: Callable[[Event], object], lifecycle: Lifecycle, failures: Failures) -> None:
        self._emit = emit
        self._lifecycle = lifecycle
        self._failures = failures
        self._scheduler: Any = None
        self._worker_id = ""
        self._read_all: Callable[[], Sequence[Any]] | None = None
        self._fresh = threading.Event()
        self._last: Any = None

    def snapshot(self, result: Any, *_: Any, **__: Any) -> None:
        """SGLang has made a snapshot of its load, or has decided that it is too early (None)."""
        if result is not None:
            self._last = result
            self._fresh.set()

    def feature(self) -> Feature:
        """The hook that feeds it."""
        return Feature("load", (Hook("after", "managers.scheduler.Scheduler.publish_load_snapshot", self.snapshot),))

    def start(self, scheduler: Any, worker_id: str, read_all: Callable[[], Sequence[Any]] | None) -> None:
        """Begin to report. ``read_all`` gives the snapshots of all data-parallel ranks where there are several."""
        self._scheduler, self._worker_id, self._read_all = scheduler, worker_id, read_all
        threading.Thread(target=self._run, name="prorsa-load", daemon=True).start()

    def _run(self) -> None:
        progress_at = paused_at = time.monotonic() + PROGRESS_S
        while True:
            time.sleep(LOAD_S)
            now = time.monotonic()
            try:
                paused = bool(self._scheduler._engine_paused)  # noqa: SLF001 - SGLang has no other name for it
                if self._fresh.is_set() or (paused and now >= paused_at):
                    self._fresh.clear()
                    self._report(paused)
                    paused_at = now + PAUSED_S
                if now >= progress_at:
                    progress_at = now + PROGRESS_S
                    self._report_progress()
            except Exception as error:  # noqa: BLE001 - a task root: the thread must live as long as the worker
                self._failures.note("the load report", error)

    def _report(self, paused: bool) -> None:
        if self._last is None:
            return
        several = self._read_all is not None
        snapshots = list(self._read_all()) if self._read_all is not None else [self._last]
        self._emit(
            WorkerLoad(
                worker_id=self._worker_id,
                role=self._lifecycle.role,
                epoch=self._lifecycle.epoch,
                queued=sum(s.num_waiting_reqs for s in snapshots),
                queued_tokens=sum(s.num_waiting_uncached_tokens for s in snapshots),
                running=sum(running(s) for s in snapshots),
                kv_used=sum(s.num_used_tokens for s in snapshots),
                # The snapshots of other ranks do not say what follows.
                kv_cached=None if several else int(self._scheduler.tree_cache.evictable_size()),
                output_tokens_total=None if several else self._lifecycle.output_tokens_total,
                kv_capacity=sum(s.max_total_num_tokens for s in snapshots),
                prefill_tokens_total=sum(s.total_prefill_uncached_tokens for s in snapshots),
                # Ranks step together: the worker has been busy for as long as the busiest of them.
                busy_us_total=max(busy_us(s) for s in snapshots),
                paused=paused,
                weight_version=weight_version(),
            )
        )

    def _report_progress(self) -> None:
        progress = self._lifecycle.progress()
        if progress is not None:
            self._emit(progress)


def running(snapshot: Any) -> int:
    """Requests that the rank works on. SGLang counts none as running on prefill: there, those whose KV is sent."""
    if snapshot.disaggregation is not None and snapshot.disaggregation.mode == "prefill":
        return int(snapshot.disaggregation.prefill_inflight_queue_reqs)
    return int(snapshot.num_running_reqs)


def busy_us(snapshot: Any) -> int:
    """Microseconds of prefill and of decode steps since the start."""
    decode_us = int(snapshot.decode_moments[2]) if snapshot.decode_moments else 0
    return int(snapshot.total_prefill_busy_us) + decode_us


def weight_version() -> str | None:
    """The version of the weights that the worker serves."""
    from sglang.srt.runtime_context import get_serving

    version = get_serving().weight_version
    return None if version is None else str(version)
