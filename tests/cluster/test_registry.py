"""The registry: what is observed, in which order, and what stays unknown."""

from prorsa.clock import NS_PER_S
from prorsa.cluster.registry import Registry
from prorsa.events import AnyEvent, Split, Stamped, WorkerDown, WorkerLoad, WorkerRole, WorkerUp


def feed(registry: Registry, *events: AnyEvent, t_s: float = 0.0) -> None:
    for number, event in enumerate(events, 1):
        registry.observe(Stamped(number, round(t_s * NS_PER_S), "t", number, 0, event))


def up(name: str, role: str = "prefill", epoch: int = 0) -> WorkerUp:
    return WorkerUp(worker_id=name, role=role, epoch=epoch, flippable=True, kv_capacity=1000)


def test_workers_are_in_natural_order_however_they_come() -> None:
    registry = Registry()
    feed(registry, up("w10"), up("w2"), up("w1"))
    assert [worker.worker_id for worker in registry] == ["w1", "w2", "w10"]


def test_a_role_of_a_lower_epoch_is_old_news() -> None:
    registry = Registry()
    feed(registry, up("w0", epoch=4), WorkerRole(worker_id="w0", role="decode", epoch=3))
    worker = registry.get("w0")
    assert worker is not None
    assert worker.role == "prefill"


def test_rates_need_two_reports_and_survive_no_restart() -> None:
    registry = Registry()
    feed(registry, up("w0"))
    worker = registry.get("w0")
    assert worker is not None
    assert worker.age_s(NS_PER_S) is None
    feed(registry, WorkerLoad(worker_id="w0", output_tokens_total=100, busy_us_total=0), t_s=1.0)
    assert worker.rates is None
    feed(registry, WorkerLoad(worker_id="w0", output_tokens_total=300, busy_us_total=1_000_000), t_s=3.0)
    assert worker.rates is not None
    assert worker.rates.output_tokens_per_s == 100.0
    assert worker.rates.busy == 0.5
    assert worker.rates.prefill_tokens_per_s is None
    feed(registry, WorkerLoad(worker_id="w0", output_tokens_total=5, busy_us_total=10), t_s=4.0)
    assert worker.rates.output_tokens_per_s is None
    assert worker.age_s(6 * NS_PER_S) == 2.0


def test_the_dead_are_in_no_column_and_can_come_back() -> None:
    registry = Registry()
    feed(registry, up("w0"), up("w1", "decode"), WorkerDown(worker_id="w1"))
    assert registry.split() == Split(prefill=1, decode=0)
    feed(registry, WorkerLoad(worker_id="w1", running=3))
    worker = registry.get("w1")
    assert worker is not None
    assert worker.load is None
    feed(registry, up("w1", "decode", epoch=1))
    assert registry.split() == Split(prefill=1, decode=1)


def test_events_of_unknown_workers_are_ignored() -> None:
    registry = Registry()
    feed(registry, WorkerRole(worker_id="x", role="decode", epoch=1), WorkerDown(worker_id="x"))
    assert len(registry) == 0
