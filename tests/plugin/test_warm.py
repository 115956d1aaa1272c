from types import SimpleNamespace
from typing import Any

import pytest

from prorsa.cluster.plugin.hooks import Failures
from prorsa.cluster.plugin.warm import WarmCache
from tests.plugin.scheduling import SLOTS, Scheduler


def flip(scheduler: Scheduler, *, retain: bool = True) -> WarmCache:
    cache = WarmCache(Failures(), retain=retain)
    cache.attach(scheduler)
    cache.release(scheduler)
    return cache


def test_a_cache_whose_books_balance_is_kept() -> None:
    scheduler = Scheduler()
    cache = flip(scheduler)
    assert scheduler.kept
    assert (cache.kept, cache.dropped) == (1, 0)


def test_a_cold_flip_drops_it_but_not_the_shared_store() -> None:
    scheduler = Scheduler()
    cache = flip(scheduler, retain=False)
    assert not scheduler.kept
    assert cache.dropped == 1


def locked(scheduler: Scheduler) -> None:
    scheduler.tree_cache.evictable, scheduler.tree_cache.protected = 500, 100


def leaked(scheduler: Scheduler) -> None:
    scheduler.free -= 16


def row_taken(scheduler: Scheduler) -> None:
    scheduler.req_to_token_pool.free_slots.pop()


def unreadable(scheduler: Scheduler) -> None:
    scheduler.tree_cache.protected_size = None


@pytest.mark.parametrize("fault", [locked, leaked, row_taken, unreadable])
def test_a_cache_that_cannot_be_trusted_is_dropped(fault: Any) -> None:
    scheduler = Scheduler()
    fault(scheduler)
    flip(scheduler)
    assert not scheduler.kept


def test_a_disabled_cache_is_left_alone() -> None:
    scheduler = Scheduler()
    scheduler.disable_radix_cache, scheduler.tree_cache = True, None
    flip(scheduler)
    assert not scheduler.cleared


@pytest.mark.parametrize("flushed", [True, False])
def test_new_weights_drop_what_the_old_ones_computed(flushed: bool) -> None:
    scheduler = Scheduler()
    cache = WarmCache(Failures(), retain=True)
    cache.attach(scheduler)
    cache.weights_change()
    cache.flushed(flushed)
    cache.release(scheduler)
    assert scheduler.kept == flushed
    scheduler.cleared.clear()
    cache.release(scheduler)
    assert scheduler.kept, "what was computed since is kept"


def test_weights_that_change_while_the_pool_is_empty_cost_nothing() -> None:
    scheduler = Scheduler()
    scheduler.free, scheduler.tree_cache.evictable = SLOTS, 0
    cache = WarmCache(Failures(), retain=True)
    cache.attach(scheduler)
    cache.weights_change()
    scheduler.free, scheduler.tree_cache.evictable = SLOTS - 600, 600
    cache.release(scheduler)
    assert scheduler.kept


def test_the_host_tier_counts_as_holding_something() -> None:
    scheduler = Scheduler()
    scheduler.free, scheduler.tree_cache.evictable = SLOTS, 0
    host = SimpleNamespace(size=50, available_size=lambda: 49)
    scheduler.tree_cache.cache_controller = SimpleNamespace(mem_pool_host=host)
    cache = WarmCache(Failures(), retain=True)
    cache.attach(scheduler)
    cache.weights_change()
    cache.release(scheduler)
    assert not scheduler.kept


def test_a_weight_update_before_the_scheduler_runs_is_harmless() -> None:
    WarmCache(Failures(), retain=True).weights_change()
