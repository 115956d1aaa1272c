"""What workers and sampler report by themselves: registrations, loads, progress, the sampler's state."""

from collections.abc import Iterator

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.config import ROLES_FIXED, SimConfig
from prorsa.cluster.sim.decode_clock import steps_done
from prorsa.cluster.sim.gauges import read_gauges
from prorsa.cluster.sim.narrate import Narrator, worker_id
from prorsa.cluster.sim.queues import prefill_queue
from prorsa.cluster.sim.state import PREFILL, ROLES, State
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import LlmProgress, SamplerState, WorkerLoad, WorkerUp


def workers_up(state: State, profiles: tuple[Profile, ...]) -> Iterator[WorkerUp]:
    """Every worker that is not dead registers, in the role that it has now."""
    for w in np.flatnonzero(state.workers["down"] == 0).tolist():
        yield worker_up(state, profiles, w)


def worker_up(state: State, profiles: tuple[Profile, ...], w: int) -> WorkerUp:
    """What a worker says of itself when it registers."""
    fixed = ROLES_FIXED if len(profiles) > 1 else None
    worker = state.workers[w]
    profile = profiles[worker["profile"]]
    return WorkerUp(
        worker_id=worker_id(w),
        role=ROLES[worker["role"]],
        epoch=int(worker["epoch"]),
        flippable=profile.flippable and fixed is None,
        reason_not_flippable=fixed or profile.why_not_flippable,
        kv_capacity=profile.kv_capacity,
        max_running=profile.max_running * profile.ranks,
        dp_size=profile.ranks,
        gpus=profile.gpus,
        weight_version=str(state.totals["version"][0]),
    )


def loads(state: State, profiles: tuple[Profile, ...]) -> Iterator[WorkerLoad]:
    """What every worker does now that is not dead; the engine has just brought its KV accounts to now."""
    version = str(state.totals["version"][0])
    paused = bool(state.totals["updating"][0])
    table = read_gauges(state)
    for w in np.flatnonzero(state.workers["down"] == 0).tolist():
        gauges = table[w].tolist()
        role, epoch, queued, queued_tokens, running, kv_used, kv_cached, prefilled, output, busy_us = gauges
        yield WorkerLoad(
            worker_id=worker_id(w),
            role=ROLES[role],
            epoch=epoch,
            queued=queued,
            queued_tokens=queued_tokens,
            running=running,
            kv_used=kv_used,
            kv_cached=kv_cached,
            kv_capacity=profiles[state.workers["profile"][w]].kv_capacity,
            prefill_tokens_total=prefilled,
            output_tokens_total=output,
            busy_us_total=busy_us,
            paused=paused,
            weight_version=version,
        )


def progress(state: State, narrator: Narrator) -> Iterator[LlmProgress]:
    """Output so far of all that decodes, and prompt tokens computed of all that prefills, worker by worker."""
    for w in range(len(state.workers)):
        output = _decoding(state, w, narrator)
        prefilled: list[tuple[str, int]] = []
        for rank in range(state.workers["first_rank"][w], state.workers["end_rank"][w]):
            prefilled += _prefilling(state, rank, narrator)
        if output or prefilled:
            yield LlmProgress(worker_id=worker_id(w), output=output, prefilled=tuple(prefilled))


def _decoding(state: State, w: int, narrator: Narrator) -> tuple[tuple[str, int], ...]:
    """Of all ranks of a worker, rank by rank."""
    ranks = state.ranks[state.workers["first_rank"][w] : state.workers["end_rank"][w]]
    slots = state.running[state.workers["first_rank"][w] : state.workers["end_rank"][w]]
    counts = ranks["running"]
    running = slots[np.arange(slots.shape[1]) < counts[:, None]]
    if not len(running):
        return ()
    table = state.trajectories
    steps = np.repeat(ranks["steps"] + steps_done(state, w), counts)
    tokens = table["output"][running] + steps - table["join_step"][running]
    columns = (running, table["turn"][running], table["attempt"][running])
    rids = map(narrator.rid, *(column.tolist() for column in columns))
    return tuple(zip(rids, tokens.tolist(), strict=True))


def _prefilling(state: State, rank: int, narrator: Narrator) -> Iterator[tuple[str, int]]:
    i = int(state.queues["head"][prefill_queue(rank)])
    while i >= 0 and state.trajectories["phase"][i] == PREFILL:
        row = state.trajectories[i]
        yield narrator.rid(i, int(row["turn"]), int(row["attempt"])), int(row["position"] - row["cached"])
        i = int(row["next"])


class Sampler:
    """The data sampler's own report, made when something has changed."""

    def __init__(self, config: SimConfig, workload: Workload, last: SamplerState | None) -> None:
        self._config = config
        self._steps = workload.step
        self._total = workload.trajectories
        self._expected = float(workload.prompt_tokens[workload.first_turn[:-1]].mean())
        self.last = last

    def copy(self) -> "Sampler":
        """An independent copy."""
        copied = object.__new__(Sampler)
        copied.__dict__.update(self.__dict__)
        return copied

    def state(self, state: State) -> list[SamplerState]:
        """The sampler's state now."""
        totals = state.totals[0]
        batch = (self._config.groups_per_step or 0) * (self._config.group_size or 0)
        return [
            SamplerState(
                mode=self._config.mode,
                queued=self._total - int(totals["next_dispatch"]),
                in_flight=int(totals["in_flight"]),
                limit=self._limit(totals),
                batch_size=batch or None,
                expected_prompt_tokens=self._expected,
                until_update=self._until_update(totals),
            )
        ]

    def _limit(self, totals: np.void) -> int:
        """Trajectories that may be in flight now: by concurrency, and by the bound on staleness."""
        every, staleness = self._config.update_every, self._config.staleness
        if every is None or staleness is None:
            return self._config.concurrency
        fresh = (staleness + int(totals["version"]) + 1) * every - int(totals["ended"])
        return min(self._config.concurrency, fresh)

    def _until_update(self, totals: np.void) -> int | None:
        """Trajectories that have still to end before the next weight update is due, where that is known."""
        if self._config.update_every is not None:
            return max((int(totals["version"]) + 1) * self._config.update_every - int(totals["ended"]), 0)
        if self._config.mode == "async" or self._config.oversample > 1:
            return None
        return int(np.searchsorted(self._steps, totals["step"], side="right")) - int(totals["ended"])

    def changes(self, state: State) -> list[SamplerState]:
        """The sampler's state, where it is another than it last said."""
        now = self.state(state)
        if now == [self.last]:
            return []
        self.last = now[0]
        return now
