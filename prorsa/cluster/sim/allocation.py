"""The engine's state before the first event, from pool, profiles and workload; sizes of its record buffer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.config import (
    HOST_COPY_GB_S,
    L3_FETCH_GB_S,
    PREFILL_BOUND_CHUNKS,
    TRANSFER_LATENCY_S,
    SimConfig,
)
from prorsa.cluster.sim.state import (
    CACHE_MODES,
    ENTRY,
    FAULT,
    GROUP,
    HOLDER_BITS,
    HOST,
    PARAMS,
    PLAN,
    POINT,
    PROFILE,
    QUEUE,
    RANK,
    RECORD,
    ROLE_DECODE,
    STEM,
    TIMER,
    TOTALS,
    TRAJECTORY,
    TURN,
    WORKER,
    State,
)
from prorsa.cluster.workloads.workload import Workload


def allocate(
    config: SimConfig, profiles: tuple[Profile, ...], workload: Workload, roles: tuple[int, ...], emit: bool
) -> State:
    """The state before the first event: nothing dispatched, every worker serving in its role, caches empty.

    ``profiles``: of all workers, or of prefill workers and of decode workers.
    """
    count, workers = workload.trajectories, len(roles)
    kinds = [profiles[-1] if role == ROLE_DECODE else profiles[0] for role in roles]
    ranks, max_running = sum(kind.ranks for kind in kinds), max(profile.max_running for profile in profiles)
    timers = count + 2 * workers + 2 + len(config.faults)
    plan = _plan(workload, all_groups=config.oversample > 1)
    groups = int(plan["group"].max(initial=-1)) + 1
    state = State(
        params=_params(config, profiles[0], workload, workers, emit),
        profiles=np.array([_profile(profile) for profile in profiles], PROFILE),
        experts=_experts(profiles),
        totals=np.zeros(1, TOTALS),
        plan=plan,
        turns=_turns(workload),
        trajectories=np.zeros(count, TRAJECTORY),
        workers=np.zeros(workers, WORKER),
        ranks=np.zeros(ranks, RANK),
        entries=_by_rank(ranks, count + groups, ENTRY),
        holders=np.zeros((count + groups, -(-ranks // HOLDER_BITS)), np.int64),
        stems=np.zeros((ranks, groups), STEM),
        groups=np.zeros(groups, GROUP),
        hosts=_by_rank(ranks, count + groups if config.host_kv_tokens else 0, HOST),
        running=np.full((ranks, max_running), -1, np.int64),
        kicked=np.zeros(workers, np.int8),
        loads=np.zeros(ranks, np.int64),
        queues=np.zeros(1 + 3 * ranks, QUEUE),
        heap=np.zeros(timers, TIMER),
        heap_slot=np.full(timers, -1, np.int64),
        faults=_faults(config),
        log=new_log(config.concurrency, count, ranks, max_running),
    )
    _mark_empty(state, roles)
    _place_ranks(state, kinds, config.host_kv_tokens)
    return state


def _by_rank(ranks: int, columns: int, dtype: np.dtype[np.void]) -> NDArray[Any]:
    """Zeros [ranks, columns], column by column, since what is asked is who holds the KV of one trajectory.

    With fewer than two rows or columns, both layouts are the same, and numba would compile the engine for each.
    """
    return np.zeros((max(ranks, 2), max(columns, 2)), dtype, order="F")


def new_log(concurrency: int, trajectories: int, ranks: int, max_running: int) -> NDArray[Any]:
    """A record buffer with room for the largest burst of one event, twice (see `burst_records`)."""
    live = min(concurrency, trajectories)
    return np.empty(4096 + 2 * burst_records(live, ranks, max_running), RECORD)


def burst_records(live: int, ranks: int, max_running: int) -> int:
    """The most records that one event can make: each live trajectory moves on by a few phases at the same time."""
    return 64 + 12 * live + 4 * ranks * min(live, max_running)


def replan(state: State, workload: Workload) -> State:
    """The state with the plan and turns of ``workload``; everything else is shared."""
    plan = _plan(workload, all_groups=bool(state.params["target_groups"][0]))
    return state._replace(plan=plan, turns=_turns(workload))


def _params(config: SimConfig, profile: Profile, workload: Workload, workers: int, emit: bool) -> NDArray[Any]:
    gigabytes = profile.kv_bytes_per_token / 1e9
    values: dict[str, float] = {
        "request_s": profile.request_ms / 1e3,
        "transfer_latency_s": TRANSFER_LATENCY_S,
        "transfer_s_per_token": gigabytes / profile.kv_transfer_gb_s,
        "l3_s_per_token": gigabytes / L3_FETCH_GB_S,
        "weight_update_s": config.weight_update_s,
        "to_prefill_s": config.flip.to_prefill_s,
        "to_decode_s": config.flip.to_decode_s,
        "warm_s": config.flip.warm_s,
        "cancel_s": config.flip.cancel_s,
        "prefill_interval": config.prefill_interval,
        "workers": workers,
        "trajectories": workload.trajectories,
        "limit": config.concurrency,
        "cache": CACHE_MODES.index(config.cache),
        "sync": config.mode == "sync",
        "target_groups": (config.groups_per_step or 0) if config.oversample > 1 else 0,
        "update_every": config.update_every or 0,
        "staleness": -1 if config.staleness is None else config.staleness,
        "update_lead_s": config.update_lead_s,
        "cache_flush": config.cache_flush,
        "emit": emit,
    }
    params = np.zeros(1, PARAMS)
    for name in PARAMS.fields or ():
        params[name] = values[name]
    return params


def _profile(profile: Profile) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        **{f"prefill_{part}_s": getattr(profile.prefill, f"{part}_ms") / 1e3 for part in "abcd"},
        **{f"decode_{part}_s": getattr(profile.decode, f"{part}_ms") / 1e3 for part in "abc"},
        "host_s_per_token": profile.kv_bytes_per_token / 1e9 / HOST_COPY_GB_S,
        "window_tokens": profile.prefill.window_tokens,
        "chunk_tokens": profile.chunk_tokens,
        "bound_tokens": PREFILL_BOUND_CHUNKS * profile.chunk_tokens,
        "measured_context": profile.measured.context_tokens,
        "measured_batch": profile.measured.batch,
        "points": [len(profile.experts.prefill), len(profile.experts.decode)],
    }
    return tuple(values[name] for name in PROFILE.names or ())


def _experts(profiles: tuple[Profile, ...]) -> NDArray[Any]:
    tables = [(profile.experts.prefill, profile.experts.decode) for profile in profiles]
    most = max(1, *(len(table) for pair in tables for table in pair))
    experts = np.zeros((len(profiles), 2, most), POINT)
    for k, pair in enumerate(tables):
        for kind, table in enumerate(pair):
            for at, (tokens, ms) in enumerate(table):
                experts[k, kind, at] = (tokens, ms / 1e3)
    return experts


def _plan(workload: Workload, *, all_groups: bool) -> NDArray[Any]:
    plan = np.zeros(workload.trajectories + 1, PLAN)
    plan["first_turn"] = workload.first_turn
    for name in ("step", "sandbox_s", "reward_s"):
        plan[name][:-1] = getattr(workload, name)
    plan["group"] = -1
    shares = (workload.group >= 0) & (workload.shared_tokens > 0)
    # Only groups that share something, or are counted, matter; they are numbered anew, without holes.
    numbered = workload.group >= 0 if all_groups else shares
    plan["group"][:-1][numbered] = np.unique(workload.group[numbered], return_inverse=True)[1]
    plan["shared"][:-1][shares] = workload.shared_tokens[shares]
    return plan


def _turns(workload: Workload) -> NDArray[Any]:
    turns = np.zeros(workload.turns, TURN)
    turns["gap_s"], turns["tool"] = workload.gap_s, workload.tool
    turns["prompt"], turns["output"] = workload.prompt_tokens, workload.output_tokens
    turns["reuse"] = workload.reuse_tokens
    return turns


def _faults(config: SimConfig) -> NDArray[Any]:
    faults = np.zeros(len(config.faults), FAULT)
    for row, fault in zip(faults, config.faults, strict=True):
        row["at_s"], row["for_s"], row["factor"] = fault.at_s, fault.for_s, fault.factor
        row["worker"], row["dies"] = fault.worker, fault.kind == "dies"
    return faults


def _place_ranks(state: State, kinds: list[Profile], host_kv_tokens: int) -> None:
    """Give each worker its ranks, one worker after the other."""
    counts = np.array([kind.ranks for kind in kinds])
    state.workers["end_rank"] = np.cumsum(counts)
    state.workers["first_rank"] = state.workers["end_rank"] - counts
    if len(state.profiles) > 1:
        state.workers["profile"] = state.workers["role"] == ROLE_DECODE
    state.ranks["worker"] = np.repeat(np.arange(len(kinds)), counts)
    state.ranks["profile"] = state.workers["profile"][state.ranks["worker"]]
    state.ranks["host_tokens"] = np.repeat([host_kv_tokens // kind.ranks for kind in kinds], counts)
    for name in ("kv_tokens", "max_running"):
        state.ranks[name] = np.repeat([getattr(kind, name) for kind in kinds], counts)


def _mark_empty(state: State, roles: tuple[int, ...]) -> None:
    for name in ("next", "prev", "prefill", "decode", "home", "slot", "cancel"):
        state.trajectories[name] = -1
    state.trajectories["end_s"] = np.nan
    state.trajectories["dispatch_s"] = np.nan
    state.totals["limit_reached_s"] = np.nan
    for name in ("head", "tail"):
        state.queues[name] = -1
    for name in ("oldest", "newest", "host_oldest", "host_newest", "next_finish"):
        state.ranks[name] = -1
    for name in ("older", "newer"):
        state.entries[name] = -1
        state.hosts[name] = -1
    state.groups["rank"] = -1
    state.groups["open"] = np.bincount(
        state.plan["group"][:-1][state.plan["group"][:-1] >= 0], minlength=len(state.groups)
    )
    state.trajectories["shared"] = state.plan["shared"][:-1]
    state.workers["role"] = roles
    state.workers["role_before"] = roles
    state.workers["launch_role"] = roles
    state.workers["slow"] = state.workers["slow_next"] = 1.0
    state.workers["serving"] = 1
