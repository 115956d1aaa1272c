"""The closed loop: sampler, sandbox, turns, tools, reward, and the steps of a synchronous run."""

from prorsa.cluster.sim import records
from prorsa.cluster.sim.cache import diverge, drop_all, in_store, reusable
from prorsa.cluster.sim.decode_clock import output_so_far, settle_where_cached
from prorsa.cluster.sim.heap import sampler_timer, set_timer
from prorsa.cluster.sim.holders import next_holder
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.queues import ROUTER, push
from prorsa.cluster.sim.records import log
from prorsa.cluster.sim.state import CUT_DUE, DONE, NOT_CUT, READY, REWARD, ROLE_DECODE, SANDBOX, TOOL, State


@kernel
def begin(s: State) -> None:
    """The run starts: the first trajectories are dispatched."""
    totals = s.totals[0]
    totals.began = 1
    totals.step = s.plan[0].step
    if s.params[0].sync != 0:
        totals.step_began_s = totals.now_s
        log(s, records.STEP_BEGIN, -1, totals.step)
    dispatch(s)


@kernel
def may_dispatch(s: State) -> bool:
    """Whether the sampler has a trajectory that it may dispatch now."""
    totals, params = s.totals[0], s.params[0]
    if totals.next_dispatch >= params.trajectories or totals.in_flight >= params.limit or totals.updating != 0:
        return False
    if params.sync != 0:
        return totals.cut_off == NOT_CUT and s.plan[totals.next_dispatch].step == totals.step
    return not _too_stale(s)


@kernel
def _too_stale(s: State) -> bool:
    """AReaL's rule: what is dispatched now would be trained on more than ``staleness`` versions from now."""
    totals, params = s.totals[0], s.params[0]
    if params.staleness < 0:
        return False
    return totals.in_flight + totals.ended >= (params.staleness + totals.version + 1) * params.update_every


@kernel
def dispatch(s: State) -> None:
    """Dispatch up to the limit of trajectories in flight."""
    totals = s.totals[0]
    while may_dispatch(s):
        i = totals.next_dispatch
        totals.next_dispatch += 1
        totals.in_flight += 1
        s.trajectories[i].dispatch_s = totals.now_s
        s.trajectories[i].turn = s.plan[i].first_turn
        log(s, records.DISPATCHED, i)
        _note_dispatch(s)
        if s.plan[i].sandbox_s > 0:
            s.trajectories[i].phase = SANDBOX
            log(s, records.SANDBOX_START, i)
            set_timer(s, i, totals.now_s + s.plan[i].sandbox_s)
        else:
            arrive(s, i)
    if totals.next_dispatch < s.params[0].trajectories and s.params[0].sync == 0 and _too_stale(s):
        _note_limit(s)


@kernel
def _note_dispatch(s: State) -> None:
    """Keep what `steady_output_tokens_per_s` needs."""
    totals, params = s.totals[0], s.params[0]
    totals.last_dispatch_s = totals.now_s
    if totals.next_dispatch == params.trajectories:
        totals.output_at_last_dispatch = output_so_far(s)
    if totals.in_flight == params.limit:
        _note_limit(s)


@kernel
def _note_limit(s: State) -> None:
    """No more trajectories can be in flight: from the first time on, the steady rate counts."""
    totals = s.totals[0]
    if not totals.limit_reached_s >= 0:
        totals.limit_reached_s = totals.now_s
        totals.output_at_limit = output_so_far(s)


@kernel
def sandbox_ready(s: State, i: int) -> None:
    """The sandbox is up; the first request follows at once."""
    log(s, records.SANDBOX_READY, i)
    arrive(s, i)


@kernel
def tool_returned(s: State, i: int) -> None:
    """The gap before a turn is over."""
    if s.turns[s.trajectories[i].turn].tool >= 0:
        log(s, records.TOOL_END, i, s.trajectories[i].turn)
    arrive(s, i)


@kernel
def arrive(s: State, i: int) -> None:
    """The request of the trajectory's turn arrives at the router, which may hold the first one."""
    totals, trajectory = s.totals[0], s.trajectories[i]
    if trajectory.admitted == 0:
        trajectory.held = totals.gate > 0 and totals.admitted >= totals.gate
        if trajectory.held != 0:
            trajectory.phase = SANDBOX
            return
        trajectory.admitted = 1
        totals.admitted += 1
    _enter(s, i)


@kernel
def admit_held(s: State) -> None:
    """Let first turns in that wait at the gate, in the order of dispatch: so a group's members follow one another."""
    totals = s.totals[0]
    for i in range(totals.next_dispatch):
        if totals.gate > 0 and totals.admitted >= totals.gate:
            return
        if s.trajectories[i].held != 0:
            arrive(s, i)


@kernel
def _enter(s: State, i: int) -> None:
    trajectory = s.trajectories[i]
    turn = s.turns[trajectory.turn]
    trajectory.phase = READY
    trajectory.attempt = 0
    trajectory.prompt = turn.prompt
    trajectory.kept = 0
    trajectory.output = 0
    trajectory.cached_before = 0
    trajectory.arrival_s = s.totals[0].now_s
    if trajectory.turn > s.plan[i].first_turn:
        settle_where_cached(s, i)
        diverge(s, i, turn.reuse)
    log(s, records.READY, i, trajectory.turn, trajectory.prompt, trajectory.prompt - _best_reusable(s, i))
    push(s, ROUTER, i)
    s.totals[0].route = 1


@kernel
def _best_reusable(s: State, i: int) -> int:
    """The most tokens of the prompt of ``i`` that a rank which takes prefill need not compute."""
    best = 0
    if in_store(s, i) > 0 and _prefill_workers(s) > 0:
        best = min(in_store(s, i), s.trajectories[i].prompt - 1)
    rank = next_holder(s, i, -1)
    while rank >= 0:
        worker = s.workers[s.ranks[rank].worker]
        if worker.serving != 0 and worker.role != ROLE_DECODE:
            best = max(best, reusable(s, rank, i))
        rank = next_holder(s, i, rank)
    return best


@kernel
def _prefill_workers(s: State) -> int:
    count = 0
    for w in range(len(s.workers)):
        count += s.workers[w].serving != 0 and s.workers[w].role != ROLE_DECODE
    return count


@kernel
def answered(s: State, i: int) -> None:
    """The turn of ``i`` is answered and its KV released: a tool runs, or the reward is computed."""
    trajectory, totals = s.trajectories[i], s.totals[0]
    turn = trajectory.turn
    cached = trajectory.cached_before + trajectory.cached
    log(s, records.ANSWERED, i, turn, trajectory.attempt, trajectory.kept + trajectory.output, cached)
    totals.turns += 1
    totals.prompt += s.turns[turn].prompt
    trajectory.cached = 0
    if turn + 1 < s.plan[i + 1].first_turn:
        trajectory.turn += 1
        trajectory.phase = TOOL
        if s.turns[turn + 1].tool >= 0:
            log(s, records.TOOL_START, i, turn + 1)
        set_timer(s, i, totals.now_s + s.turns[turn + 1].gap_s)
    elif s.plan[i].reward_s > 0:
        trajectory.phase = REWARD
        log(s, records.REWARD_START, i)
        set_timer(s, i, totals.now_s + s.plan[i].reward_s)
    else:
        end(s, i, 0)


@kernel
def rewarded(s: State, i: int) -> None:
    """The reward is known; the trajectory is over."""
    log(s, records.REWARD_END, i)
    end(s, i, 0)


@kernel
def end(s: State, i: int, aborted: int) -> None:
    """A trajectory is over; its KV is released."""
    trajectory, totals = s.trajectories[i], s.totals[0]
    trajectory.phase = DONE
    trajectory.aborted = aborted
    trajectory.end_s = totals.now_s
    totals.last_end_s = totals.now_s
    if trajectory.home >= 0:
        s.ranks[trajectory.home].homes -= 1
    totals.in_flight -= 1
    totals.ended += 1
    totals.admitted -= trajectory.admitted
    trajectory.held = 0
    log(s, records.ENDED, i, aborted)
    if totals.gate > 0:
        admit_held(s)
    if aborted == 0:
        _count_group(s, i)
    after_ends(s)


@kernel
def _count_group(s: State, i: int) -> None:
    """Over-sampling: once enough groups of the step are complete, the others are cut off."""
    totals, target = s.totals[0], s.params[0].target_groups
    if target == 0 or s.plan[i].group < 0:
        return
    group = s.groups[s.plan[i].group]
    group.open -= 1
    totals.groups_done += group.open == 0
    if group.open == 0 and totals.groups_done == target and totals.cut_off == NOT_CUT:
        totals.cut_off = CUT_DUE


@kernel
def after_ends(s: State) -> None:
    """What follows when trajectories have ended: the end of the step, a weight update, the next dispatch, the end."""
    totals, params = s.totals[0], s.params[0]
    if params.sync == 0:
        _update_when_due(s)
    elif totals.in_flight == 0 and totals.cut_off != CUT_DUE and not may_dispatch(s):
        _end_step(s)
    dispatch(s)
    if totals.ended == params.trajectories:
        log(s, records.RUN_END, -1)


@kernel
def _end_step(s: State) -> None:
    """A synchronous step is over: pause for the weight update, unless it was the last."""
    totals = s.totals[0]
    log(s, records.STEP_END, -1, totals.step)
    totals.steps_done += 1
    totals.step_sum_s += totals.now_s - totals.step_began_s
    totals.cut_off = NOT_CUT
    totals.groups_done = 0
    if totals.ended != s.params[0].trajectories:
        begin_update(s)


@kernel
def _update_when_due(s: State) -> None:
    """An asynchronous run has the trajectories for its next weight update: train on them, then update."""
    totals, params = s.totals[0], s.params[0]
    if params.update_every == 0 or totals.training != 0 or totals.updating != 0:
        return
    if totals.ended < (totals.version + 1) * params.update_every or totals.ended == params.trajectories:
        return
    if params.update_lead_s == 0:
        begin_update(s)
        return
    totals.training = 1
    log(s, records.UPDATE_BEGIN, -1, totals.version + 1, 1)
    set_timer(s, sampler_timer(s), totals.now_s + params.update_lead_s)


@kernel
def begin_update(s: State) -> None:
    """The pause for a weight update begins; in the midst of a rollout the engine is to halt what runs."""
    totals = s.totals[0]
    totals.training = 0
    totals.updating = 1
    totals.halt = totals.in_flight > 0
    log(s, records.UPDATE_BEGIN, -1, totals.version + 1, 0)
    set_timer(s, sampler_timer(s), totals.now_s + s.params[0].weight_update_s)


@kernel
def update_weights(s: State) -> None:
    """The weight update is done: caches of the old weights go, the rollout goes on or the next step begins."""
    totals = s.totals[0]
    totals.updating = 0
    totals.version += 1
    if s.params[0].cache_flush != 0:
        _flush(s)
    log(s, records.UPDATE_END, -1, totals.version)
    if s.params[0].sync != 0:
        totals.step = s.plan[totals.next_dispatch].step
        totals.step_began_s = totals.now_s
        log(s, records.STEP_BEGIN, -1, totals.step)
    totals.route = 1
    totals.kick = 1
    for w in range(len(s.kicked)):
        s.kicked[w] = 1
    _update_when_due(s)
    dispatch(s)


@kernel
def _flush(s: State) -> None:
    """Drop all prefix caches, the shared store's contents too: their KV is of the old weights."""
    for rank in range(len(s.ranks)):
        drop_all(s, rank)
    for i in range(s.params[0].trajectories):
        s.trajectories[i].stored = 0
    for group in range(len(s.groups)):
        s.groups[group].stored = 0
