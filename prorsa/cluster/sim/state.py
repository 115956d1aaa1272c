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

HOLDER_BITS: Final = 32
"""Ranks in a word of `State.holders`."""

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
        # What the router looks at on many ranks comes first, in one cache line.
        ("worker", "i8"),
        ("profile", "i8"),
        ("outstanding", "i8"),  # uncached tokens sent here and not yet computed
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
    entries: NDArray[Any]  # ENTRY[ranks, N + G], at least 2 by 2
    holders: NDArray[np.int64]  # [N + G, ranks / HOLDER_BITS]: a bit a rank; see `prorsa.cluster.sim.holders`
    stems: NDArray[Any]  # STEM[ranks, G]
    groups: NDArray[Any]  # GROUP[G]
    hosts: NDArray[Any]  # HOST[ranks, N + G], at least 2 by 2; no more columns where there is no host tier
    running: NDArray[np.int64]  # [ranks, max_running]
    kicked: NDArray[np.int8]  # [W]: whether the worker has something to look at
    loads: NDArray[np.int64]  # [ranks]: uncached tokens there and in the router for it; scratch of the router
    queues: NDArray[Any]  # QUEUE[1 + 3 ranks]: router; for each rank prefill, join, retracted
    heap: NDArray[Any]  # TIMER[N + 2 W + 2]
    heap_slot: NDArray[np.int64]  # where each timer is in the heap
    faults: NDArray[Any]  # FAULT[F]
    log: NDArray[Any]  # RECORD[...]


SHARED: Final = ("profiles", "experts", "plan", "turns")
"""Fields of `State` that are never written after `prorsa.cluster.sim.allocation.allocate`."""


def duplicate(state: State) -> State:
    """An independent copy. The record buffer is empty between calls of the engine, so a fresh one will do."""
    written = set(State._fields) - set(SHARED) - {"log"}
    copies = {name: getattr(state, name).copy(order="K") for name in written}
    return state._replace(**copies, log=np.empty_like(state.log))
