"""The engine's state: flat arrays of plain records, so that a copy is a handful of memory copies.

A *rank* is one attention data-parallel rank; those of worker ``w`` are ``first_rank`` to ``end_rank - 1``. KV, prefix
cache, queues and running requests belong to ranks; the step clock, the role and effects belong to workers, because the
ranks of a worker step together.

A trajectory has at most one request at a time, so a request *is* its trajectory's record. Counts are tokens unless the
name says otherwise; ``-1`` stands for "none" in index fields.
"""

from typing import Any, Final, NamedTuple

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
from prorsa.cluster.workloads.workload import Workload

# Phases of a trajectory.
UNSTARTED: Final = 0
SANDBOX: Final = 1
READY: Final = 2  # waits in the router
FETCH: Final = 3  # sent to prefill, its prefix is on the way from the shared store
QUEUED: Final = 4  # in the queue of a prefill rank, no chunk launched
PREFILL: Final = 5  # a chunk has been launched
TRANSFER: Final = 6  # KV on the way to decode
JOIN: Final = 7  # KV has arrived, joins the batch at the next step boundary
DECODE: Final = 8
RETRACTED: Final = 9  # KV in host memory
SWAP_IN: Final = 10  # KV on the way back from host memory
CANCELLED: Final = 11  # the router waits for the answer to its abort
TOOL: Final = 12
REWARD: Final = 13
DONE: Final = 14

# Roles, in the order of `prorsa.events.Role`.
ROLE_PREFILL: Final = 0
ROLE_DECODE: Final = 1
ROLE_MIXED: Final = 2
ROLES: Final = ("prefill", "decode", "mixed")

# What a worker is doing.
IDLE: Final = 0
PREFILLING: Final = 1
DECODING: Final = 2

# Effects under way on a worker.
NO_EFFECT: Final = 0
EFFECT_DRAIN: Final = 1
EFFECT_SETTLE: Final = 2
EFFECT_SWITCH: Final = 3
EFFECT_WARM: Final = 4

# Over-sampling of a synchronous step.
NOT_CUT: Final = 0
CUT_DUE: Final = 1  # enough groups are complete
CUT: Final = 2  # the others have been told to stop

# Cache modes.
COLD: Final = 0
RETAINED: Final = 1
L3: Final = 2
CACHE_MODES: Final = ("cold", "retained", "l3")

PARAMS = np.dtype(
    [
        ("request_s", "f8"),  # of a request at its prefill worker, before it can be in a batch
        ("transfer_latency_s", "f8"),
        ("transfer_s_per_token", "f8"),
        ("l3_s_per_token", "f8"),
        ("weight_update_s", "f8"),
        ("to_prefill_s", "f8"),
        ("to_decode_s", "f8"),
        ("warm_s", "f8"),
        ("cancel_s", "f8"),
        ("prefill_interval", "i8"),  # decode steps of a colocated worker between two prefill steps
        ("workers", "i8"),
        ("trajectories", "i8"),
        ("limit", "i8"),
        ("cache", "i8"),
        ("sync", "i8"),
        ("target_groups", "i8"),  # complete groups that end a synchronous step; 0 for all of them
        ("update_every", "i8"),  # trajectories that end between two updates of an asynchronous run; 0 for no updates
        ("staleness", "i8"),  # weight versions by which a trajectory may be behind at its end; -1 for no bound
        ("update_lead_s", "f8"),
        ("cache_flush", "i8"),
        ("emit", "i8"),  # whether lifecycle events are logged
    ]
)
"""Constants of a run."""

PROFILE = np.dtype(
    [
        ("prefill_a_s", "f8"),
        ("prefill_b_s", "f8"),
        ("prefill_c_s", "f8"),
        ("prefill_d_s", "f8"),
        ("decode_a_s", "f8"),
        ("decode_b_s", "f8"),
        ("decode_c_s", "f8"),
        ("host_s_per_token", "f8"),
        ("window_tokens", "i8"),
        ("chunk_tokens", "i8"),
        ("bound_tokens", "i8"),  # of outstanding prefill work a rank, for the router
        ("measured_context", "i8"),
        ("measured_batch", "i8"),
        ("points", "i8", (2,)),  # of the experts' tables: prefill, decode
    ]
)
"""What a kind of worker costs; `prorsa.cluster.profile` says what the coefficients mean."""

POINT = np.dtype([("tokens", "f8"), ("seconds", "f8")])
"""A point of an experts' table."""

TOTALS = np.dtype(
    [
        ("now_s", "f8"),
        ("last_end_s", "f8"),
        ("limit_reached_s", "f8"),
        ("last_dispatch_s", "f8"),
        ("step_began_s", "f8"),
        ("step_sum_s", "f8"),
        ("steps_done", "i8"),
        ("serial", "i8"),  # of timers, so that ties have an order
        ("timers", "i8"),
        ("logged", "i8"),
        ("began", "i8"),
        ("next_dispatch", "i8"),
        ("in_flight", "i8"),
        ("ended", "i8"),
        ("finished", "i8"),
        ("step", "i8"),
        ("version", "i8"),  # of the weights
        ("updating", "i8"),
        ("training", "i8"),  # an update is announced and not begun
        ("halt", "i8"),  # an update has just begun in the midst of the rollout
        ("groups_done", "i8"),  # complete groups of the synchronous step
        ("cut_off", "i8"),  # NOT_CUT, CUT_DUE, CUT
        ("route", "i8"),  # the router has something to look at
        ("kick", "i8"),  # some worker has something to look at
        ("effects", "i8"),  # workers with an effect under way
        ("answered", "i8"),  # an effect has just been answered
        ("marked", "i8"),  # requests that a drain cancels at the end of their step
        ("gate", "i8"),  # trajectories that may be admitted at a time; 0 for no limit
        ("admitted", "i8"),  # trajectories whose first turn has been let in and that have not ended
        ("turns", "i8"),
        ("prompt", "i8"),
        ("resumed", "i8"),
        ("recomputed", "i8"),
        ("interrupted", "i8"),  # requests cancelled for a weight update or a dead worker
        ("again", "i8"),  # prompt tokens computed that had been computed before for the same context
        ("extrapolated", "i8"),
        ("retractions", "i8"),
        ("output_at_limit", "i8"),
        ("output_at_last_dispatch", "i8"),
    ]
)
"""The run's clock, sampler, and totals."""

PLAN = np.dtype(
    [
        ("first_turn", "i8"),
        ("step", "i8"),
        ("group", "i8"),  # dense, from 0; -1 for none
        ("shared", "i8"),  # leading prompt tokens that its group shares
        ("sandbox_s", "f8"),
        ("reward_s", "f8"),
    ]
)
"""A trajectory as the workload has it; one more row than trajectories, for the last ``first_turn``."""

TURN = np.dtype([("gap_s", "f8"), ("prompt", "i8"), ("reuse", "i8"), ("output", "i8"), ("tool", "i8")])

TRAJECTORY = np.dtype(
    [
        ("dispatch_s", "f8"),
        ("end_s", "f8"),
        ("arrival_s", "f8"),  # of the turn's first attempt at the router
        ("restored_s", "f8"),  # when decode has loaded back what it has of the prompt in its host tier
        ("join_step", "i8"),  # the rank's decode step count when it joined the batch
        ("finish_step", "i8"),
        ("phase", "i8"),
        ("turn", "i8"),  # index into the turn arrays
        ("attempt", "i8"),
        ("next", "i8"),  # in the queue it stands in
        ("prev", "i8"),
        ("prefill", "i8"),  # rank
        ("decode", "i8"),  # rank
        ("home", "i8"),  # prefill rank that it was sent to last
        ("slot", "i8"),  # in the running batch
        ("cancel", "i8"),  # worker at which it is to be cancelled at the end of the step, or is being cancelled
        ("why", "i8"),  # it is cancelled, of `prorsa.cluster.sim.records`
        ("admitted", "i8"),  # its first turn has been let in
        ("held", "i8"),  # its first turn waits at the gate; it is in phase SANDBOX then, without a timer
        ("doomed", "i8"),  # the sampler has cut it off
        ("aborted", "i8"),  # it has ended by that
        ("prompt", "i8"),  # of this attempt: the turn's prompt and what is kept of its output
        ("kept", "i8"),  # output of earlier attempts, part of the prompt now
        ("output", "i8"),  # output of this attempt when it last joined a batch
        ("position", "i8"),  # prompt tokens cached or computed
        ("cached", "i8"),  # of them cached
        ("cached_before", "i8"),  # cached in earlier attempts of the turn
        ("chunk", "i8"),  # computed in the step under way
        ("owed", "i8"),  # uncached tokens still to compute
        ("fetched", "i8"),  # prefix tokens brought from the shared store
        ("decode_cached", "i8"),  # prefix tokens that decode had
        ("stored", "i8"),  # leading tokens of its context in the shared store
        ("known", "i8"),  # leading tokens of its context that were computed before, wherever
        ("shared", "i8"),  # leading tokens of its context that are its group's
        ("stem_prefill", "i8"),  # of its KV at the prefill rank, what its group's stem holds
        ("stem_decode", "i8"),  # the same at the decode rank, and on a colocated one
        ("loaded", "i8"),  # tokens that its last hold on a rank loads back from the host tier
        ("lost", "i8"),  # leading tokens that some worker held when the request was cancelled or the cache dropped
    ]
)

WORKER = np.dtype(
    [
        ("block_start_s", "f8"),
        ("block_base_s", "f8"),  # time of the block's first decode step
        ("block_slope_s", "f8"),  # by which each next step is longer
        ("block_experts_s", "f8"),  # of each of its steps, part of the base
        ("experts_s", "f8"),  # of complete steps
        ("step_s", "f8"),  # of complete steps in all
        ("block_steps", "i8"),
        ("booked", "i8"),  # steps of the block whose KV growth is booked
        ("decode_first", "i8"),  # decode steps still to come before the next prefill step
        ("profile", "i8"),
        ("first_rank", "i8"),
        ("end_rank", "i8"),
        ("link_free_s", "f8"),
        ("effect_deadline_s", "f8"),
        ("fenced_s", "f8"),
        ("out_s", "f8"),  # time out of the pool in completed flips
        ("epoch", "i8"),
        ("role", "i8"),
        ("serving", "i8"),
        ("doing", "i8"),
        ("requests", "i8"),  # that have a leg here
        ("cancels", "i8"),  # aborts of its drain that are still to be answered
        ("kick", "i8"),
        ("effect", "i8"),
        ("effect_role", "i8"),
        ("effect_ok", "i8"),
        ("resumed", "i8"),
        ("role_before", "i8"),
        ("flips", "i8"),
        ("launch_role", "i8"),
        ("down", "i8"),  # faults that it is dead of
        ("slow", "f8"),  # factor by which its steps take longer
        ("slow_next", "f8"),  # the same for the steps after the one under way
    ]
)

RANK = np.dtype(
    [
        # What the router looks at on every rank comes first, in one cache line.
        ("worker", "i8"),
        ("profile", "i8"),
        ("outstanding", "i8"),  # uncached tokens sent here and not yet computed
        ("ahead", "i8"),  # uncached tokens that wait in the router for this rank; scratch of the router
        ("homes", "i8"),  # live trajectories that were sent here last
        ("blocked", "i8"),  # scratch of the router
        ("context", "i8"),  # of the running requests, at the start of the block
        ("locked", "i8"),  # KV of requests
        ("cached", "i8"),  # KV of the prefix cache, evictable
        ("next_finish", "i8"),  # decode step at which the next request is done; -1 where it is to be looked up
        ("computed", "i8"),
        ("output", "i8"),
        ("attention_s", "f8"),  # of complete steps
        ("step_attention_s", "f8"),  # of the prefill step under way
        ("kv_tokens", "i8"),
        ("host_tokens", "i8"),  # host tier of its prefix cache
        ("max_running", "i8"),
        ("steps", "i8"),  # decode steps before the block
        ("decodes", "i8"),  # whether it decodes in the prefill step under way
        ("running", "i8"),
        ("held", "i8"),  # requests with KV reserved for decode, running ones too
        ("batch", "i8"),  # requests in the prefill step under way: so many from the head of the queue
        ("oldest", "i8"),  # cache entries in order of last use
        ("newest", "i8"),
        ("host_used", "i8"),  # of the host tier
        ("host_oldest", "i8"),  # copies in the host tier beyond what HBM holds, in the order of eviction from HBM
        ("host_newest", "i8"),
        ("loading", "i8"),  # tokens that the prefill step under way loads back from the host tier
    ]
)

ENTRY = np.dtype([("tokens", "i8"), ("older", "i8"), ("newer", "i8")])
"""The prefix cache of one rank for one trajectory: its leading context tokens that are evictable there.

After those of the trajectories come those of the groups: the stems that their members' contexts begin with.
"""

STEM = np.dtype([("tokens", "i8"), ("users", "i8"), ("used", "i8")])
"""A group's stem on one rank while requests use it: its tokens are locked, its entry is empty. ``used`` is scratch."""

GROUP = np.dtype([("stored", "i8"), ("rank", "i8"), ("open", "i8")])
"""Leading tokens of the group's stem in the shared store; the prefill rank that a first turn was sent to last; members
that have not ended."""

HOST = np.dtype([("tokens", "i8"), ("older", "i8"), ("newer", "i8"), ("listed", "i8")])
"""The copy of an entry in the host tier of one rank; see `prorsa.cluster.sim.host`."""

QUEUE = np.dtype([("head", "i8"), ("tail", "i8"), ("size", "i8")])

TIMER = np.dtype([("time_s", "f8"), ("serial", "i8"), ("timer", "i8")])

FAULT = np.dtype(
    [("at_s", "f8"), ("for_s", "f8"), ("factor", "f8"), ("worker", "i8"), ("dies", "i8"), ("active", "i8")]
)

RECORD = np.dtype([("time_s", "f8"), *((name, "i8") for name in ("kind", "trajectory", "a", "b", "c", "d", "e", "f"))])
"""What happened, in compact form; `prorsa.cluster.sim.records` says what the fields mean."""


class State(NamedTuple):
    """Everything the engine knows. Fields of `SHARED` are never written; copies share them."""

    params: NDArray[Any]  # PARAMS[1]
    profiles: NDArray[Any]  # PROFILE[1 or 2]: of all workers, or of prefill and of decode workers
    experts: NDArray[Any]  # POINT[profiles, prefill or decode, K]
    totals: NDArray[Any]  # TOTALS[1]
    plan: NDArray[Any]  # PLAN[N + 1]
    turns: NDArray[Any]  # TURN[T]
    trajectories: NDArray[Any]  # TRAJECTORY[N]
    workers: NDArray[Any]  # WORKER[W]
    ranks: NDArray[Any]  # RANK[W * R]
    entries: NDArray[Any]  # ENTRY[ranks, N + G]
    stems: NDArray[Any]  # STEM[ranks, G]
    groups: NDArray[Any]  # GROUP[G]
    hosts: NDArray[Any]  # HOST[ranks, N + G]; no columns where there is no host tier
    running: NDArray[np.int64]  # [ranks, max_running]
    queues: NDArray[Any]  # QUEUE[1 + 3 ranks]: router; for each rank prefill, join, retracted
    heap: NDArray[Any]  # TIMER[N + 2 W + 2]
    heap_slot: NDArray[np.int64]  # where each timer is in the heap
    faults: NDArray[Any]  # FAULT[F]
    log: NDArray[Any]  # RECORD[...]


SHARED: Final = ("profiles", "experts", "plan", "turns")
"""Fields of `State` that are never written after `allocate`."""


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
        entries=np.zeros((ranks, count + groups), ENTRY, order="F"),
        stems=np.zeros((ranks, groups), STEM),
        groups=np.zeros(groups, GROUP),
        hosts=np.zeros((ranks, count + groups if config.host_kv_tokens else 0), HOST, order="F"),
        running=np.full((ranks, max_running), -1, np.int64),
        queues=np.zeros(1 + 3 * ranks, QUEUE),
        heap=np.zeros(timers, TIMER),
        heap_slot=np.full(timers, -1, np.int64),
        faults=_faults(config),
        log=new_log(config.concurrency, count, ranks, max_running),
    )
    _mark_empty(state, roles)
    _place_ranks(state, kinds, config.host_kv_tokens)
    return state


def new_log(concurrency: int, trajectories: int, ranks: int, max_running: int) -> NDArray[Any]:
    """A record buffer with room for the largest burst of one event, twice (see `burst_records`)."""
    live = min(concurrency, trajectories)
    return np.empty(4096 + 2 * burst_records(live, ranks, max_running), RECORD)


def burst_records(live: int, ranks: int, max_running: int) -> int:
    """The most records that one event can make: each live trajectory moves on by a few phases at the same time."""
    return 64 + 12 * live + 4 * ranks * min(live, max_running)


def duplicate(state: State) -> State:
    """An independent copy. The record buffer is empty between calls of the engine, so a fresh one will do."""
    written = set(State._fields) - set(SHARED) - {"log"}
    copies = {name: getattr(state, name).copy(order="K") for name in written}
    return state._replace(**copies, log=np.empty_like(state.log))


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
