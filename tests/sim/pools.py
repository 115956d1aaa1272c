"""Small pools, workloads and a minimal executor for the tests of the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from prorsa.cluster.effects import Action, Effect
from prorsa.cluster.profile import Fit, Profile, Range
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation, Timed
from prorsa.cluster.sim.state import (
    DECODE,
    DECODING,
    FETCH,
    HOLDER_BITS,
    JOIN,
    PREFILL,
    QUEUED,
    ROLE_MIXED,
    SWAP_IN,
    TRANSFER,
)
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import EffectResult, Role

ORDER: tuple[Action, ...] = ("fence", "drain", "settle", "switch", "warm", "admit")


@dataclass(frozen=True)
class Turn:
    """One turn of a test trajectory; ``reuse`` None is the whole context before it."""

    prompt: int
    output: int
    gap_s: float = 0.0
    reuse: int | None = None


@dataclass(frozen=True)
class Trip:
    """One test trajectory."""

    turns: tuple[Turn, ...]
    sandbox_s: float = 0.0
    reward_s: float = 0.0
    step: int = 0
    shared: int = 0
    """Leading tokens of its first prompt that its group shares: trips 0 and 1 are a group, 2 and 3, and so on."""


def one(prompt: int, output: int, *, sandbox_s: float = 0.0) -> Trip:
    """A trajectory of one turn."""
    return Trip((Turn(prompt, output),), sandbox_s)


def make_workload(trips: Sequence[Trip]) -> Workload:
    """The workload of these trajectories, in this order."""
    turns = [turn for trip in trips for turn in trip.turns]
    counts = [len(trip.turns) for trip in trips]
    first = [i == 0 for trip in trips for i in range(len(trip.turns))]
    before = [0, *(turn.prompt + turn.output for turn in turns[:-1])]
    reuse = [
        0 if start else min(context, turn.prompt) if turn.reuse is None else min(turn.reuse, context, turn.prompt)
        for start, context, turn in zip(first, before, turns, strict=True)
    ]
    count = len(trips)
    return Workload(
        first_turn=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        group=np.arange(count) // 2,
        step=np.array([trip.step for trip in trips]),
        sandbox_s=np.array([trip.sandbox_s for trip in trips]),
        reward_s=np.array([trip.reward_s for trip in trips]),
        truncated=np.arange(count) % 3 == 2,
        prompt_tokens=np.array([turn.prompt for turn in turns]),
        reuse_tokens=np.array(reuse),
        output_tokens=np.array([turn.output for turn in turns]),
        gap_s=np.array([turn.gap_s for turn in turns]),
        tool=np.array([-1 if start else 0 for start in first]),
        tools=("bash",),
        workload="test",
        shared_tokens=np.array([trip.shared for trip in trips]),
    )


def make_profile(**changes: object) -> Profile:
    """A fast little worker with round figures."""
    values: dict[str, object] = {
        "name": "toy",
        "model": "toy",
        "system": "toy",
        "parallel": "TP1",
        "provenance": "made up",
        "gpus": 1,
        "ranks": 1,
        "kv_tokens": 20_000,
        "kv_bytes_per_token": 100_000,
        "chunk_tokens": 1_000,
        "max_running": 16,
        "model_context": 20_000,
        "flippable": True,
        "kv_transfer_gb_s": 40.0,
        "matched_rows": 0,
        "prefill": Fit(a_ms=5.0, b_ms=0.05, c_ms=2e-6),
        "decode": Fit(a_ms=10.0, b_ms=0.1, c_ms=1e-3),
        "measured": Range(new_tokens=20_000, context_tokens=20_000, batch=16),
    }
    return Profile(**(values | changes))  # type: ignore[arg-type]


def pool(
    trips: Sequence[Trip],
    roles: Sequence[Role] = ("prefill", "decode"),
    *,
    profile: Profile | None = None,
    decode_profile: Profile | None = None,
    emit: bool = True,
    **config: object,
) -> Simulation:
    """A simulation of these trajectories."""
    settings: dict[str, object] = {"concurrency": len(trips)} | config
    return Simulation(
        SimConfig(**settings),  # type: ignore[arg-type]
        profile or make_profile(),
        make_workload(trips),
        roles,
        decode_profile=decode_profile,
        emit=emit,
    )


def run(sim: Simulation, pace_s: float = 1e6, limit: int = 100_000) -> list[Timed]:
    """Advance to the end, ``pace_s`` at a time; all events."""
    events: list[Timed] = []
    for _ in range(limit):
        if sim.done:
            return events
        events += sim.advance(sim.now_s + pace_s)
    raise AssertionError(f"not done after {limit} advances, at {sim.now_s} s")


def of(events: Sequence[Timed], kind: type) -> list[tuple[float, object]]:
    """The events of one kind."""
    return [(t, event) for t, event in events if isinstance(event, kind)]


@dataclass
class Flipper:
    """A minimal executor: takes workers through all states of a flip, asking for the next as each is answered."""

    sim: Simulation
    roles: dict[str, Role]
    stage: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    events: list[Timed] = field(default_factory=list)

    def start(self, worker: str) -> None:
        """Begin to flip a worker that is not under way."""
        if worker not in self.stage:
            self.stage[worker] = 0
            self.epochs[worker] = self.epochs.get(worker, 0) + 1
            self.take(self.sim.perform(self.effect(worker)))

    def effect(self, worker: str) -> Effect:
        """The effect that the worker's flip is at."""
        stage = self.stage[worker]
        before = self.roles[worker]
        after: Role = "decode" if before == "prefill" else "prefill"
        return Effect(
            effect_id=f"{worker}@{self.epochs[worker]}/{ORDER[stage]}",
            worker_id=worker,
            action=ORDER[stage],
            role=after if stage >= 3 else before,
            epoch=self.epochs[worker],
            deadline_s=1000.0,
        )

    def take(self, events: Sequence[Timed]) -> None:
        """Note events and ask for what follows from them."""
        self.events += events
        for _, event in events:
            if not isinstance(event, EffectResult):
                continue
            assert event.ok, event
            worker = event.worker_id
            if self.stage[worker] == len(ORDER) - 1:
                self.roles[worker] = self.effect(worker).role
                del self.stage[worker]
            else:
                self.stage[worker] += 1
                self.take(self.sim.perform(self.effect(worker)))

    def advance(self, until_s: float) -> None:
        """Advance to that time, answering on the way."""
        while self.sim.now_s < until_s:
            self.take(self.sim.advance(until_s))


def check(sim: Simulation) -> None:
    """Every account of the engine's state closes."""
    s = sim._state
    for rank in range(len(s.ranks)):
        r = s.ranks[rank]
        kv = r["kv_tokens"]
        entries = s.entries["tokens"][rank]
        assert (entries >= 0).all()
        assert entries.sum() == r["cached"]
        assert sorted(_lru(s, rank)) == np.flatnonzero(entries).tolist()
        stems = s.stems[rank]
        assert r["locked"] == _held(s, rank) + stems["tokens"].sum(), rank
        assert (stems["tokens"][stems["users"] == 0] == 0).all()
        assert stems["users"].sum() == _stem_users(s, rank), rank
        _check_host(s, rank)
        _check_holders(s, rank)
        assert 0 <= r["locked"] + r["cached"] <= kv
        running = s.running[rank, : r["running"]]
        assert (s.trajectories["phase"][running] == DECODE).all()
        assert (s.trajectories["slot"][running] == np.arange(len(running))).all()
        sent = np.isin(s.trajectories["phase"], (FETCH, QUEUED, PREFILL)) & (s.trajectories["prefill"] == rank)
        assert r["outstanding"] == s.trajectories["owed"][sent].sum()
    times = s.heap["time_s"][: s.totals["timers"][0]]
    assert (times >= s.totals["now_s"][0]).all()


def _check_host(s: object, rank: int) -> None:
    """The host tier's account closes, and what it may evict is just what HBM has evicted."""
    hosts, r = s.hosts[rank], s.ranks[rank]  # type: ignore[attr-defined]
    assert r["host_used"] == hosts["tokens"].sum() <= r["host_tokens"]  # type: ignore[attr-defined]
    order, i = [], int(r["host_oldest"])
    while i >= 0:
        order.append(i)
        assert hosts["tokens"][i] > s.entries["tokens"][rank, i]  # type: ignore[attr-defined]
        i = int(hosts["newer"][i])
    assert sorted(order) == np.flatnonzero(hosts["listed"]).tolist()


def _check_holders(s: object, rank: int) -> None:
    """The rank is listed as a holder of just what it has anything of."""
    columns = len(s.holders)  # type: ignore[attr-defined]
    held = s.entries["tokens"][rank, :columns].copy()  # type: ignore[attr-defined]
    held[len(s.trajectories) :] += s.stems["tokens"][rank]  # type: ignore[attr-defined]
    if s.ranks["host_tokens"][rank] > 0:  # type: ignore[attr-defined]
        held += s.hosts["tokens"][rank, :columns]  # type: ignore[attr-defined]
    listed = s.holders[:, rank // HOLDER_BITS] >> rank % HOLDER_BITS & 1  # type: ignore[attr-defined]
    assert ((held > 0) == listed).all(), rank


def _stem_users(s: object, rank: int) -> int:
    """Requests on a rank that hold KV there and whose contexts begin with what their group shares."""
    mixed = s.workers[s.ranks["worker"][rank]]["role"] == ROLE_MIXED  # type: ignore[attr-defined]
    users = 0
    for t in s.trajectories[s.trajectories["shared"] > 0]:  # type: ignore[attr-defined]
        phase = t["phase"]
        users += t["prefill"] == rank and phase in (PREFILL, TRANSFER)
        waits = phase in (FETCH, QUEUED, PREFILL, TRANSFER) and not mixed
        users += t["decode"] == rank and (waits or phase in (JOIN, SWAP_IN, DECODE))
    return users


def _lru(s: object, rank: int) -> list[int]:
    order, i = [], int(s.ranks["oldest"][rank])  # type: ignore[attr-defined]
    while i >= 0:
        order.append(i)
        i = int(s.entries["newer"][rank, i])  # type: ignore[attr-defined]
    return order


def _held(s: object, rank: int) -> int:
    """KV that the requests on a rank must hold, from each one's own state."""
    total = 0
    uses = {"prefill": "stem_prefill", "decode": "stem_decode"}
    for leg, use in uses.items():
        total -= int(s.trajectories[use][s.trajectories[leg] == rank].sum())  # type: ignore[attr-defined]
    r = s.ranks[rank]  # type: ignore[attr-defined]
    worker = s.workers[r["worker"]]  # type: ignore[attr-defined]
    mixed = worker["role"] == ROLE_MIXED
    for t in s.trajectories:  # type: ignore[attr-defined]
        phase, prompt, output = t["phase"], t["prompt"], t["output"]
        if t["prefill"] == rank and phase in (PREFILL, TRANSFER):
            total += prompt + mixed
        elif t["decode"] == rank and phase in (FETCH, QUEUED, PREFILL, TRANSFER) and not mixed:
            total += prompt + 1
        elif t["decode"] == rank and phase in (JOIN, SWAP_IN):
            total += prompt + output
        elif t["decode"] == rank and phase == DECODE:
            in_block = worker["booked"] * (worker["doing"] == DECODING)
            total += prompt + output + r["steps"] + in_block + r["decodes"] - t["join_step"]
    return total
