"""Puts the plugin together in one process of a worker, and announces the worker when its scheduler starts."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from prorsa.bus.publisher import Publisher
from prorsa.cluster.plugin import hooks
from prorsa.cluster.plugin.hooks import Failures, Feature, Hook, Installed
from prorsa.cluster.plugin.lifecycle import Lifecycle
from prorsa.cluster.plugin.load import LoadReport, weight_version
from prorsa.cluster.plugin.peers import PeerWatch
from prorsa.cluster.plugin.settings import CHECKED_VERSIONS, Settings
from prorsa.cluster.plugin.warm import WarmCache
from prorsa.events import Alert, Event, Role, Severity, WorkerRole, WorkerUp

logger = logging.getLogger(__name__)

ALERT: Final = "plugin"
"""Code of the plugin's alerts."""

_SCHEDULER: Final = "managers.scheduler.Scheduler"


def install(settings: Settings) -> None:
    """Register the hooks in this process; SGLang applies them when all plugins have run."""
    import sglang

    WorkerPlugin(settings, str(getattr(sglang, "__version__", "unknown"))).install()


class WorkerPlugin:
    """The plugin in one process. Only the first rank of each attention group speaks; all ranks keep their caches."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._version = version
        self._publisher: Publisher | None = None
        self._worker_id = settings.worker_id or "unknown"
        self._failures = Failures(lambda text: self._alert("warning", text))
        self._lifecycle = Lifecycle(self._emit)
        self._load = LoadReport(self._emit, self._lifecycle, self._failures)
        self._warm = WarmCache(self._failures, retain=self._wanted(settings.retain_cache))
        self._features = tuple(self._choose_features())
        self._installed = Installed((), {})
        self._rank = _Rank()

    def install(self) -> None:
        """Register the hooks of all features that this SGLang has room for; say clearly what is missing."""
        self._installed = hooks.install(self._features, self._failures)
        if self._version not in CHECKED_VERSIONS or self._installed.missing:
            logger.warning(self._summary())

    def starting(self, scheduler: Any) -> None:
        """The scheduler is ready and its loop begins."""
        self._warm.attach(scheduler)
        rank = self._rank = _Rank.current()
        if not rank.speaks:
            return
        self._worker_id = self._settings.worker_id or _address(scheduler)
        self._lifecycle.identify(self._worker_id, rank.dp_rank if rank.dp_size > 1 else None)
        self._lifecycle.role = _role(scheduler)
        name = f"worker:{self._worker_id}" + (f":{rank.dp_rank}" if rank.dp_size > 1 else "")
        self._publisher = Publisher(self._settings.hub, name, run_id=self._settings.run_id, keys=self._settings.keys)
        if rank.dp_rank == 0:
            self._emit(_worker_up(scheduler, self._worker_id, rank))
            self._announce()
            self._load.start(scheduler, self._worker_id, _read_all(scheduler, rank.dp_size))

    def switched(self, result: Any, scheduler: Any, *_: Any) -> None:
        """A role switch has been answered; on a failure or a mere preparation the role is as before."""
        role = _role(scheduler)
        if not result.success or role == self._lifecycle.role:
            return
        self._lifecycle.role = role
        self._lifecycle.epoch += 1
        if self._rank.dp_rank == 0:
            self._emit(WorkerRole(worker_id=self._worker_id, role=role, epoch=self._lifecycle.epoch))

    def _choose_features(self) -> list[Feature]:
        features = [
            Feature("role", (Hook("before", f"{_SCHEDULER}.run_event_loop", self.starting),)),
            Feature("switches", (Hook("after", f"{_SCHEDULER}.handle_pd_role_switch", self.switched),)),
            self._lifecycle.feature(),
            self._load.feature(),
        ]
        # What replaces SGLang's own doing is off where nobody has checked that it still fits.
        if self._version in CHECKED_VERSIONS or self._settings.retain_cache:
            features.append(self._warm.feature())
        if self._wanted(self._settings.watch_peers):
            features.append(PeerWatch().feature())
        return features

    def _wanted(self, setting: bool | None) -> bool:
        return self._version in CHECKED_VERSIONS if setting is None else setting

    def _announce(self) -> None:
        wanted = [hook.target for feature in self._features for hook in feature.hooks]
        taken = hooks.patched(wanted)
        fine = not self._installed.missing and self._version in CHECKED_VERSIONS and taken == tuple(wanted)
        text = self._summary()
        if taken is not None and len(taken) < len(wanted):
            text += f"; SGLang applied {len(taken)} of {len(wanted)} hooks"
        self._alert("info" if fine else "warning", text)

    def _summary(self) -> str:
        text = f"plugin on SGLang {self._version}: {', '.join(self._installed.names) or 'nothing'}"
        if self._version not in CHECKED_VERSIONS:
            text += f"; checked with {', '.join(CHECKED_VERSIONS)} only, so flips are as SGLang does them unless asked"
        for name, target in self._installed.missing.items():
            text += f"; without {name}, because {target} is not there"
        return text

    def _emit(self, event: Event) -> None:
        if self._publisher is not None:
            self._publisher.publish(event)

    def _alert(self, severity: Severity, text: str) -> None:
        self._emit(Alert(code=ALERT, severity=severity, text=text, worker_id=self._worker_id))


@dataclass(frozen=True, slots=True)
class _Rank:
    """Where a scheduler process stands among those of its worker. ``speaks``: the first of its attention group."""

    speaks: bool = False
    dp_rank: int = 0
    dp_size: int = 1

    @classmethod
    def current(cls) -> Self:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        first = parallel.attn_tp_rank == 0 and parallel.pp_rank == 0 and parallel.attn_cp_rank == 0
        return cls(first, int(parallel.dp_rank or 0), int(parallel.num_dp_ranks))


def _read_all(scheduler: Any, dp_size: int) -> Callable[[], Sequence[Any]] | None:
    """Reads the load of all data-parallel ranks, from the memory that they share; None where there is only one."""
    if dp_size == 1:
        return None
    from sglang.srt.managers.load_snapshot import ShmLoadSnapshotReader

    reader = ShmLoadSnapshotReader(scheduler.load_snapshot_writer.path, dp_size)
    read_all: Callable[[], Sequence[Any]] = reader.read_all
    return read_all


def _role(scheduler: Any) -> Role:
    mode = scheduler.disaggregation_mode.value
    return mode if mode in ("prefill", "decode") else "mixed"


def _address(scheduler: Any) -> str:
    arguments = scheduler.server_args
    return f"{arguments.host}:{arguments.port}"


def _worker_up(scheduler: Any, worker_id: str, rank: _Rank) -> WorkerUp:
    arguments = scheduler.server_args
    flippable = bool(arguments.enable_pd_role_switch) and _role(scheduler) != "mixed"
    wildcard = arguments.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return WorkerUp(
        worker_id=worker_id,
        role=_role(scheduler),
        epoch=0,
        flippable=flippable,
        reason_not_flippable=None if flippable else "launched without --enable-pd-role-switch in a PD mode",
        kv_capacity=int(scheduler.max_total_num_tokens) * rank.dp_size,
        max_running=int(scheduler.max_running_requests) * rank.dp_size,
        dp_size=rank.dp_size,
        url=None if wildcard else f"http://{_address(scheduler)}",
        weight_version=weight_version(),
    )
