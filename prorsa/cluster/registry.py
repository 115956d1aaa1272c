"""The worker registry: which workers there are, what they really do, and how old that knowledge is."""

from collections.abc import Iterator
from dataclasses import dataclass

from prorsa.clock import seconds
from prorsa.events import Role, Split, Stamped, WorkerDown, WorkerLoad, WorkerRole, WorkerState, WorkerUp


@dataclass(slots=True)
class Rates:
    """What a worker did between its last two load reports, in tokens a second and as a busy share; None is unknown."""

    prefill_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    busy: float | None = None


@dataclass(slots=True)
class Worker:
    """One worker. ``state`` is ``serving`` unless a flip, a death or a quarantine says otherwise.

    ``role`` and ``epoch`` are observed, not wished for. ``role_since_ns`` is when it began to serve in this role;
    None until its role has changed once, so that a fresh worker may be flipped at once.
    """

    worker_id: str
    role: Role
    epoch: int
    pool: str
    flippable: bool | None
    why_not_flippable: str | None
    kv_capacity: int | None
    weight_version: str | None
    state: WorkerState = "serving"
    to_role: Role | None = None
    load: WorkerLoad | None = None
    load_ns: int | None = None
    role_since_ns: int | None = None
    rates: Rates | None = None

    @property
    def serving(self) -> bool:
        """Whether it takes requests now."""
        return self.state == "serving"

    @property
    def switching(self) -> bool:
        """Whether it is on its way to another role (neither serving, nor dead, nor quarantined)."""
        return self.state not in ("serving", "dead", "quarantined")

    def age_s(self, t_ns: int) -> float | None:
        """Seconds since its last load report, on the run clock."""
        return None if self.load_ns is None else max(0.0, seconds(t_ns - self.load_ns))


class Registry:
    """All workers of one pool, by id, kept in the order of their ids so that every choice is deterministic."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def get(self, worker_id: str) -> Worker | None:
        """The worker, or None if there is none of that id."""
        return self._workers.get(worker_id)

    def observe(self, stamped: Stamped) -> None:
        """Take note of a ``worker.*`` event; any other event is ignored."""
        event = stamped.event
        match event:
            case WorkerUp():
                self._up(event)
            case WorkerDown():
                self._down(event)
            case WorkerRole():
                self._role(event, stamped.t_ns)
            case WorkerLoad():
                self._load(event, stamped.t_ns)
            case _:
                pass

    def _up(self, event: WorkerUp) -> None:
        before = self._workers.get(event.worker_id)
        worker = Worker(
            worker_id=event.worker_id,
            role=event.role,
            epoch=max(event.epoch, before.epoch if before else 0),
            pool=event.pool,
            flippable=event.flippable,
            why_not_flippable=event.reason_not_flippable,
            kv_capacity=event.kv_capacity,
            weight_version=event.weight_version,
        )
        self._workers[event.worker_id] = worker
        if before is None:
            self._workers = dict(sorted(self._workers.items(), key=lambda item: _natural(item[0])))

    def _down(self, event: WorkerDown) -> None:
        if worker := self._workers.get(event.worker_id):
            worker.state, worker.to_role, worker.load, worker.load_ns = "dead", None, None, None
            worker.rates = None

    def _role(self, event: WorkerRole, t_ns: int) -> None:
        worker = self._workers.get(event.worker_id)
        if worker is None or event.epoch < worker.epoch:
            return
        if worker.role != event.role:
            worker.role_since_ns = t_ns
        worker.role, worker.epoch = event.role, event.epoch

    def _load(self, event: WorkerLoad, t_ns: int) -> None:
        worker = self._workers.get(event.worker_id)
        if worker is None or worker.state == "dead":
            return
        if worker.load is not None and worker.load_ns is not None and t_ns > worker.load_ns:
            worker.rates = _rates(worker.load, event, seconds(t_ns - worker.load_ns))
        worker.load, worker.load_ns = event, t_ns
        worker.kv_capacity = event.kv_capacity if event.kv_capacity is not None else worker.kv_capacity
        worker.weight_version = event.weight_version or worker.weight_version

    def split(self) -> Split:
        """How many workers serve in each role, and how many are on their way; the dead are in no column."""
        serving = [worker.role for worker in self if worker.serving]
        return Split(
            prefill=serving.count("prefill"),
            decode=serving.count("decode"),
            mixed=serving.count("mixed"),
            switching=sum(worker.switching for worker in self),
        )

    def destined(self) -> Split:
        """The split once the flips under way have ended well."""
        roles = [worker.to_role or worker.role for worker in self if worker.serving or worker.switching]
        return Split(
            prefill=roles.count("prefill"), decode=roles.count("decode"), mixed=roles.count("mixed"), switching=0
        )


def _rates(before: WorkerLoad, after: WorkerLoad, elapsed_s: float) -> Rates:
    busy_s = _delta(before.busy_us_total, after.busy_us_total, 1e6)
    prefill = _delta(before.prefill_tokens_total, after.prefill_tokens_total)
    output = _delta(before.output_tokens_total, after.output_tokens_total)
    return Rates(
        prefill_tokens_per_s=None if prefill is None else prefill / elapsed_s,
        output_tokens_per_s=None if output is None else output / elapsed_s,
        busy=None if busy_s is None else min(1.0, busy_s / elapsed_s),
    )


def _delta(before: int | None, after: int | None, scale: float = 1.0) -> float | None:
    # A counter that went back belongs to a worker that has restarted: its rate is unknown until the next report.
    if before is None or after is None or after < before:
        return None
    return (after - before) / scale


def _natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which w2 comes before w10."""
    parts: list[tuple[int, int | str]] = []
    digits = ""
    for char in [*name, ""]:
        if char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        if char:
            parts.append((1, char))
    return tuple(parts)
