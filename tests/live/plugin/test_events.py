"""What a worker tells the hub, and when."""

import threading
import time

import pytest

from prorsa.cluster.plugin.worker import ALERT
from prorsa.events import (
    Alert,
    Event,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmProgress,
    LlmQueued,
    WorkerLoad,
    WorkerRole,
    WorkerUp,
    make_rid,
)
from testbed.hub import RunningHub
from testbed.pool import KV_TOKENS, Pool
from tests.live.plugin.conftest import Pair, prompt

pytestmark = pytest.mark.live


def of_rid(hub: RunningHub, rid: str, after_seq: int) -> list[Event]:
    return [s.event for s in hub.read(after_seq=after_seq) if getattr(s.event, "rid", None) == rid]


def test_every_hook_takes_on_this_version(pool: Pool, hub: RunningHub) -> None:
    for name in "ABCD":
        alert = hub.wait_for(Alert, lambda e, name=name: e.code == ALERT and e.worker_id == name).event
        assert alert.severity == "info", alert.text
        for feature in ("events", "role", "load", "warm flips", "safe peers"):
            assert feature in alert.text


def test_a_worker_introduces_itself(pool: Pool, hub: RunningHub) -> None:
    up = hub.wait_for(WorkerUp, lambda e: e.worker_id == "B").event
    assert (up.role, up.epoch, up.flippable) == ("decode", 0, True)
    assert (up.kv_capacity, up.max_running, up.dp_size, up.url) == (KV_TOKENS, 16, 1, pool["B"].url)


def test_workers_without_a_hub_say_nothing(stock: Pair, hub: RunningHub) -> None:
    before = hub.head()
    stock.generate(prompt(1, 40))
    time.sleep(0.3)
    assert not [s for s in hub.read(after_seq=before) if s.source.startswith(("worker:E", "worker:F"))]


def test_a_request_shows_its_life_in_legal_order(pair: Pair, hub: RunningHub) -> None:
    before = hub.head()
    ids = prompt(2, 100)
    for attempt, cached in ((0, 0), (1, 96)):
        rid = make_rid("life" * 8, attempt)
        pair.generate(ids, 12, rid=rid)
        # Each worker's events come in order; which of two workers is heard first is chance.
        hub.wait_for(LlmFirstToken, lambda e, rid=rid: e.rid == rid)
        hub.wait_for(LlmPrefillEnd, lambda e, rid=rid: e.rid == rid)
        events = of_rid(hub, rid, before)
        prefill = [e for e in events if getattr(e, "worker_id", None) == pair.prefill.name]
        decode = [e for e in events if getattr(e, "worker_id", None) == pair.decode.name]
        assert [type(e) for e in prefill] == [LlmQueued, LlmPrefillStart, LlmPrefillEnd]
        assert [type(e) for e in decode] == [LlmQueued, LlmAdmitted, LlmFirstToken]
        assert (prefill[2].cached_tokens, prefill[2].computed_tokens) == (cached, 100 - cached)
        assert decode[1].kv_tokens == 100
    ends = hub.read(LlmEnd, before)
    assert not ends, "the router ends the requests that carry its ids"


def test_a_pool_behind_another_router_shows_ends_too(pair: Pair, hub: RunningHub) -> None:
    pair.generate(prompt(3, 50), 9, rid="somebody-elses-request")
    end = hub.wait_for(LlmEnd, lambda e: e.request_id == "somebody-elses-request").event
    assert (end.attempt, end.output_tokens, end.finish_reason) == (0, 9, "length")


def test_an_aborted_request_ends_as_aborted_with_its_tokens(pair: Pair, hub: RunningHub) -> None:
    pair.decode.post("/slow_down", {"forward_sleep_time": 0.05})
    answers = []
    client = threading.Thread(target=lambda: answers.append(pair.generate(prompt(4, 50), 500, rid="to-be-aborted")))
    client.start()
    hub.wait_for(LlmFirstToken, lambda e: e.rid == "to-be-aborted")
    progress = hub.wait_for(LlmProgress, lambda e: any(rid == "to-be-aborted" for rid, _ in e.output)).event
    assert 0 < dict(progress.output)["to-be-aborted"] < 500
    pair.decode.post("/abort_request", {"rid": "to-be-aborted"})
    client.join()
    end = hub.wait_for(LlmEnd, lambda e: e.request_id == "to-be-aborted").event
    assert end.finish_reason == "abort"
    assert end.output_tokens == len(answers[0].output_ids) > 0


def test_role_switches_are_seen_both_ways(pair: Pair, hub: RunningHub) -> None:
    before = hub.head()
    swapped = pair.swap()
    swapped.swap()
    for worker, roles in ((pair.prefill, ["decode", "prefill"]), (pair.decode, ["prefill", "decode"])):
        hub.wait_for(WorkerRole, lambda e, w=worker, r=roles: (e.worker_id, e.role) == (w.name, r[1]), after_seq=before)
        seen = [s.event for s in hub.read(WorkerRole, before) if s.event.worker_id == worker.name]
        assert [e.role for e in seen] == roles
        assert seen[1].epoch == seen[0].epoch + 1


def test_a_refused_switch_is_no_switch(pair: Pair, hub: RunningHub) -> None:
    before = hub.head()
    pair.prefill.post("/pd_role_switch", {"new_role": "decode", "decode_cuda_graph_memory_gb": 0, "prepare_only": True})
    pair.prefill.switch("prefill")
    time.sleep(0.3)
    assert not hub.read(WorkerRole, before)


def test_load_follows_what_the_worker_does(pair: Pair, hub: RunningHub) -> None:
    name = pair.decode.name
    pair.decode.post("/slow_down", {"forward_sleep_time": 0.05})
    before = hub.head()
    client = threading.Thread(target=pair.generate, args=(prompt(5, 320), 40))
    client.start()
    busy = hub.wait_for(WorkerLoad, lambda e: e.worker_id == name and e.running == 1, after_seq=before).event
    assert (busy.role, busy.kv_capacity, busy.paused) == ("decode", KV_TOKENS, False)
    assert busy.kv_used >= 320
    client.join()
    idle = hub.wait_for(
        WorkerLoad, lambda e: e.worker_id == name and e.kv_used == 0 and e.kv_cached > 0, after_seq=before
    ).event
    assert idle.kv_cached >= 320, "a finished request leaves its KV in the cache"
    assert idle.output_tokens_total >= 39
    loads = [s for s in hub.read(WorkerLoad, before) if s.event.worker_id == name]
    elapsed_s = (loads[-1].t_ns - loads[0].t_ns) / 1e9
    assert len(loads) <= 10 * elapsed_s + 2, "at most ten a second"


def test_a_paused_worker_says_so(pair: Pair, hub: RunningHub) -> None:
    pair.decode.post("/pause_generation", {"mode": "in_place"})
    try:
        hub.wait_for(WorkerLoad, lambda e: e.worker_id == pair.decode.name and e.paused is True, after_seq=hub.head())
    finally:
        pair.decode.post("/continue_generation", {})


def test_nothing_failed_inside_the_workers(pool: Pool, hub: RunningHub) -> None:
    assert not [s.event for s in hub.read(Alert) if s.event.code == ALERT and s.event.severity != "info"]
    for worker in pool.workers:
        assert "Prorsa's plugin failed" not in worker.log_text()
