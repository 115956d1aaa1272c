"""Warm flips: a worker's prefix cache survives a change of its role, and the shared store survives in any case.

A KV value does not depend on the role that computed it, and the KV pool is not allocated again on a flip. SGLang resets
the prefix tree all the same, and wipes the storage backend that all workers share. Here the tree and its host tier
stay, unless that could be wrong: when the weights have changed since something in the pool was computed, or when the
pool's books do not balance. Then they are reset as SGLang does it. The storage backend is never wiped by a flip.

Kept prefixes starve nobody: both roles count what the tree could evict as free when they admit a request.
"""

import logging
from typing import Any, Final

from prorsa.cluster.plugin.hooks import Failures, Feature, Hook

logger = logging.getLogger(__name__)

_RELEASE: Final = "disaggregation.role_switch._release_prefix_cache_for_role_switch"
_UPDATER: Final = "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_UPDATES: Final = (
    "begin_weight_update",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "end_weight_update",
)


class WarmCache:
    """Decides at each flip whether the prefix cache may stay."""

    def __init__(self, failures: Failures, *, retain: bool) -> None:
        self.kept = 0
        """Flips that kept the cache, and ``dropped`` those that did not."""
        self.dropped = 0
        self._failures = failures
        self._retain = retain
        self._scheduler: Any = None
        self._stale = False

    def attach(self, scheduler: Any) -> None:
        """The scheduler whose cache this is."""
        self._scheduler = scheduler

    def release(self, scheduler: Any) -> None:
        """Stands in for SGLang's release of the prefix cache in a role switch; the worker is idle."""
        if scheduler.disable_radix_cache:
            return
        try:
            reason = self._why_drop(scheduler)
        except Exception as error:  # noqa: BLE001 - a task root: a failed check must not fail the flip
            self._failures.note(_RELEASE, error)
            reason = "the check failed"
        if reason is None:
            self.kept += 1
            logger.info("Prorsa kept %d cached tokens over the role switch", scheduler.tree_cache.evictable_size())
        else:
            self.dropped += 1
            logger.info("Prorsa dropped the prefix cache at the role switch: %s", reason)
            _drop(scheduler)
            self._stale = False

    def weights_change(self, *_: Any, **__: Any) -> None:
        """Weights are about to change, or have just changed: what the pool holds by then must not survive a flip."""
        if self._scheduler is not None and not _is_empty(self._scheduler):
            self._stale = True

    def flushed(self, result: Any, *_: Any, **__: Any) -> None:
        """The cache has been flushed, if ``result`` says so."""
        if result:
            self._stale = False

    def feature(self) -> Feature:
        """The hooks that it needs."""
        return Feature(
            "warm flips" if self._retain else "shared store kept",
            (
                Hook("replace", _RELEASE, self.release),
                *(Hook("before", f"{_UPDATER}.{name}", self.weights_change) for name in _UPDATES),
                *(Hook("after", f"{_UPDATER}.{name}", self.weights_change) for name in _UPDATES),
                Hook("after", "managers.scheduler.Scheduler.flush_cache", self.flushed),
            ),
        )

    def _why_drop(self, scheduler: Any) -> str | None:
        """Why the cache must go, or None if it may stay."""
        if not self._retain:
            return "retain_cache is off"
        if self._stale:
            return "the weights have changed since it was computed"
        tree, allocator, rows = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
        locked = tree.protected_size()
        if locked:
            return f"{locked} tokens are locked though nothing runs"
        strays = allocator.size - allocator.available_size() - tree.evictable_size()
        if strays:
            return f"{strays} KV slots belong to nobody"
        if len(rows.free_slots) < rows.size:
            return f"{rows.size - len(rows.free_slots)} request rows belong to nobody"
        return None


def _drop(scheduler: Any) -> None:
    """The part of SGLang's release that concerns this worker alone."""
    scheduler.tree_cache.reset()
    scheduler.req_to_token_pool.clear()
    scheduler.token_to_kv_pool_allocator.clear()


def _is_empty(scheduler: Any) -> bool:
    """Whether neither the pool nor the host tier holds any KV."""
    allocator = scheduler.token_to_kv_pool_allocator
    if allocator.available_size() < allocator.size:
        return False
    controller = getattr(scheduler.tree_cache, "cache_controller", None)
    host = getattr(controller, "mem_pool_host", None)
    return host is None or bool(host.available_size() == host.size)
