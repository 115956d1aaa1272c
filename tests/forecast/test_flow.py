"""How requests move through the next seconds, who waits where, and what the run's own plan says is coming."""

import numpy as np
import pytest

from prorsa import events as ev
from prorsa.clock import nanoseconds
from prorsa.forecast.calibration import Corrected
from prorsa.forecast.early import EarlyActuals
from prorsa.forecast.flow import FIRST, GENERATIONS, WAITING, Cycle, Pool, Streams, flow
from prorsa.forecast.learn import Learner
from prorsa.forecast.pace import paced
from prorsa.forecast.plan import RunPlan
from prorsa.forecast.priors import class_priors
from prorsa.forecast.ranks import Ranks, share_out
from prorsa.forecast.scoring import Made, ScoreKeeper
from prorsa.forecast.speed import Line
from prorsa.forecast.waiting import WaitLoss
from prorsa.forecast.waits import WaitKeys

K = 60


def takes(seconds):
    out = np.zeros(K)
    out[seconds] = 1.0
    return out


def every(row):
    """The same for all classes of requests."""
    return np.tile(row, (WAITING + 1, 1))


def cycle(**changes):
    each = np.ones(WAITING + 1)
    made = Cycle(
        output=every(takes(2)),
        answer=every(np.full(K, 50.0)),
        gap=every(takes(3)),
        reward=takes(1),
        start=takes(0),
        lost=every(np.zeros(K)),
        lost_share=every(np.ones(K)),
        growth=np.ones(K),
        appended=100.0 * each,
        end=0.0 * each,
        answers=50.0 * each,
        moved_tokens=0.0,
        answer_tokens=50.0,
        appended_tokens=100.0,
        uncached_output=1.0,
        first_prompt=1000.0,
        first_new=1000.0,
        burst_new=1000.0,
    )
    return made._replace(**changes)


def pool(**changes):
    made = Pool(
        tokens_per_s=1e9,
        waits_s=np.zeros(8),
        pause_s=0.0,
        output_rate=25.0,
        left=0.0,
        replaced=1.0,
        flush_from=K,
        decoding=0.0,
        resident=0.0,
    )
    return made._replace(**changes)


def streams():
    rows = {name: np.zeros((3, K)) for name in ("tool", "box", "second", "sampler", "going", "starts")}
    rows["free"] = np.zeros((2, K))
    columns = {name: np.zeros(K) for name in ("rewarded", "released", "ended", "kv", "batch")}
    return Streams(ending=np.zeros((2, K)), admitted=np.zeros((4, K)), **rows, **columns)


def test_a_trajectory_goes_round_and_round():
    """An answer of 2 s and a tool of 3 s: it is back every five seconds, each time with a longer prompt."""
    s = streams()
    s.tool[:, 0] = 1.0, 100.0, 1000.0
    flow(cycle(), pool(), s)
    back = np.flatnonzero(s.second[0])
    assert back.tolist() == list(range(5, K, 5))
    assert s.second[0, back] == pytest.approx(np.ones(len(back)))
    assert s.second[1, back] == pytest.approx(np.full(len(back), 150.0))
    assert s.second[2, back] == pytest.approx(1000.0 + 150.0 * np.arange(1, len(back) + 1))


def test_what_begins_brings_what_each_of_its_turns_brings():
    """A first request at 0 is back at 5, 10, ...: with what second turns append, then third ones."""
    s = streams()
    s.sampler[:, 0] = 1.0, 1000.0, 1000.0
    appended = np.zeros(WAITING + 1)
    appended[FIRST + 1 : FIRST + 1 + GENERATIONS] = 10.0 * 2.0 ** np.arange(GENERATIONS)
    flow(cycle(appended=appended), pool(), s)
    back = np.arange(5, K, 5)
    expected = [10.0 * 2.0 ** min(turn, GENERATIONS - 1) for turn in range(len(back))]
    assert s.second[1, back] - 50.0 == pytest.approx(expected)


def test_answers_that_end_soon_are_short():
    """Of answers of 1 s and of 9 s, those that are back first bring back the shorter ones."""
    s = streams()
    s.tool[:, 0] = 1.0, 100.0, 1000.0
    answer = 25.0 * np.arange(K)
    flow(cycle(output=every(0.5 * takes(1) + 0.5 * takes(9)), answer=every(answer)), pool(), s)
    assert s.second[1, 4] / s.second[0, 4] == pytest.approx(100.0 + 25.0)
    assert s.second[2, 12] / s.second[0, 12] >= 1000.0 + 100.0 + 9 * 25.0


def test_what_a_tool_appends_grows_with_the_gap():
    s = streams()
    s.going[:, 0] = 1.0, 1000.0, 50.0
    growth = np.ones(K)
    growth[3] = 2.0
    flow(cycle(growth=growth), pool(), s)
    assert s.second[1:, 3].tolist() == [50.0 + 200.0, 1000.0 + 200.0]


def test_an_ended_trajectory_is_replaced_while_the_sampler_has_any():
    s = streams()
    s.tool[:, 0] = 10.0, 1000.0, 10_000.0
    flow(cycle(end=np.ones(WAITING + 1)), pool(left=15.0), s)
    assert s.second[0].sum() == 0.0
    assert s.sampler[0].sum() == pytest.approx(15.0)
    assert s.sampler[0, 3] == pytest.approx(10.0)


def test_requests_are_conserved_behind_a_queue():
    s = streams()
    s.tool[:, 0] = 40.0, 40_000.0, 400_000.0
    flow(cycle(gap=every(np.zeros(K))), pool(tokens_per_s=4000.0, waits_s=np.full(8, 5.0)), s)
    admitted = np.flatnonzero(s.admitted[0])
    assert admitted[0] >= 5
    assert admitted[-1] == pytest.approx(14, abs=2)
    assert s.admitted[0].sum() == pytest.approx(40.0)
    assert s.admitted[1].sum() == pytest.approx(400_000.0)


def test_nothing_is_admitted_while_the_workers_stand_still():
    s = streams()
    s.tool[:, 2] = 4.0, 400.0, 4000.0
    flow(cycle(), pool(pause_s=20.0), s)
    assert s.admitted[0, :20].sum() == 0.0
    assert s.admitted[0, 20] == pytest.approx(4.0)


def test_a_flush_takes_what_was_before_it_and_not_what_comes_after():
    s = streams()
    s.going[:, 0] = 1.0, 1000.0, 50.0
    flow(cycle(), pool(flush_from=2), s)
    assert s.second[1, 3] == pytest.approx(1100.0)
    assert s.second[1, 8] == pytest.approx(150.0)


def test_the_router_shares_out_by_what_is_left_to_compute():
    """Two at a busy home: one that would lose little elsewhere goes, one with a long context waits."""
    tokens, prompt = np.array([5000.0, 100.0, 100.0]), np.array([5000.0, 2000.0, 90_000.0])
    home = np.full((3, 4), -1, np.int32)
    home[:, 0] = 0
    admitted = np.array([True, False, False])
    alone = np.full(3, -1, np.int32)
    costs, ahead, work, sent_to = share_out(
        tokens, prompt, home, np.zeros((3, 4)), alone, admitted, np.array([True, True])
    )
    assert costs.tolist() == [5000.0, 2000.0, 100.0]
    assert ahead.tolist() == [0.0, 0.0, 5000.0]
    assert work.tolist() == [5100.0, 2000.0]
    assert sent_to.tolist() == [0, 1, 0]


def test_new_prompts_fill_the_ranks_evenly():
    n = 64
    tokens = np.full(n, 1000.0)
    nowhere = np.full((n, 4), -1, np.int32)
    serving = np.array([True, False, True, True, True])
    alone = np.full(n, -1, np.int32)
    _, _, work, _ = share_out(tokens, tokens, nowhere, np.zeros((n, 4)), alone, np.zeros(n, np.bool_), serving)
    assert work.tolist() == [16_000.0, 0.0, 16_000.0, 16_000.0, 16_000.0]


def test_a_group_follows_its_first_until_another_rank_would_have_computed_the_prompt_sooner():
    """The first of a group is behind much else on rank 0: the second computes all again on rank 1, and leads the third
    there; of another group, one after the other finds the prompt on the rank of its first.
    """
    tokens = np.array([50_000.0, 20_000.0, 20_000.0, 20_000.0, 90_000.0, 90_000.0])
    home = np.full((6, 4), -1, np.int32)
    home[:2, 0] = 0
    group = np.array([-1, 0, 0, 0, 3, 3], np.int32)
    sent = np.array([True, True, False, False, False, False])
    costs, ahead, work, sent_to = share_out(tokens, tokens, home, np.zeros((6, 4)), group, sent, np.array([True, True]))
    assert costs.tolist() == [50_000.0, 20_000.0, 20_000.0, 1.0, 90_000.0, 1.0]
    assert ahead.tolist() == [0.0, 50_000.0, 0.0, 20_000.0, 20_001.0, 110_001.0]
    assert work.tolist() == [70_000.0, 110_002.0]
    assert sent_to.tolist() == [0, 0, 1, 1, 1, 1]


def test_a_rank_is_as_fast_as_it_was_while_requests_waited():
    ranks = Ranks()
    rank = ranks.index("p0", 3)
    for k in range(400):
        ranks.prefilled(rank, 0.0, admitted_s=0.0, t_s=2.0 * (k + 1), tokens=1000.0)
    assert ranks.tokens_per_s == pytest.approx(500.0, rel=0.02)
    ranks.saturated = False
    ranks.prefilled(rank, 900.0, admitted_s=900.0, t_s=1000.0, tokens=1.0)
    assert ranks.tokens_per_s == pytest.approx(500.0, rel=0.02)


def busy(ranks, tokens, context, serving):
    """A second in which both ranks compute, at contexts of so many tokens."""
    ranks.computed(tokens, np.array([0, 1], np.int32), context, serving, 1.0)


def test_ranks_that_all_compute_are_as_fast_as_they_were_this_moment():
    """Long before a large prompt is through."""
    ranks, serving = Ranks(), np.array([True, True])
    ranks.add_worker("p", 2)
    for _ in range(40):
        busy(ranks, 5000.0, 1000.0, serving)
    assert ranks.tokens_per_s == pytest.approx(2500.0, rel=0.02)
    ranks.computed(0.0, np.array([0], np.int32), 0.0, serving, 1.0)
    assert ranks.tokens_per_s == pytest.approx(2500.0, rel=0.02)


def test_ranks_become_slower_as_a_large_prompt_grows():
    """A token takes 0.2 ms and 0.2 ms more after 100,000 others: what is still to come of the prompt is slower."""
    ranks, serving, done = Ranks(), np.array([True, True]), 0.0
    ranks.add_worker("p", 2)
    while done < 60_000.0:
        tokens = 1.0 / (0.0002 + 0.0002 * done / 100_000.0)
        busy(ranks, 2.0 * tokens, done, serving)
        done += tokens
    left = np.array([140_000.0 - done])
    sent_to = np.array([0])
    work = np.array([left[0], 0.0])
    of = (np.array([140_000.0]), left, np.zeros(1), sent_to, work, ranks.workers, serving)
    pace = paced(*of, ranks.line)
    assert pace.context == pytest.approx(done, rel=0.02)
    # The integral of 0.2 ms (1 + context / 100,000) over what is left.
    takes_s = 2e-4 * (left[0] + (140_000.0**2 - done**2) / 2e5)
    assert pace.ends_s[0] == pytest.approx(takes_s, rel=0.05)
    assert pace.idle_s[0] == pytest.approx(pace.ends_s[0])


def line(now_s=2e-4, slope_s=2e-9, load=0.0, usual=0.0):
    return Line(now_s, slope_s, load, usual, 10.0)


def test_a_long_context_holds_up_the_ranks_of_its_worker_and_no_others():
    """Three ranks, two of one worker, with as much to do each: one is at a context of 100,000."""
    costs, prompt = np.full(3, 4096.0), np.array([104_096.0, 4096.0, 4096.0])
    worker, serving = np.array([0, 0, 1], np.int32), np.ones(3, np.bool_)
    pace = paced(prompt, costs, np.zeros(3), np.arange(3), costs, worker, serving, line())
    assert pace.ends_s[0] == pytest.approx(4096.0 * 4e-4, rel=0.03)
    assert pace.ends_s[1] == pace.ends_s[0]
    assert pace.ends_s[2] == pytest.approx(4096.0 * 2e-4, rel=0.03)


def test_work_in_turn_takes_as_long_as_its_parts():
    """Whatever the lengths: a request begins when what is before it has ended, and nothing is sooner than with no
    context."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        n = int(rng.integers(1, 30))
        costs, at = rng.uniform(1.0, 50_000.0, n), rng.integers(0, 4, n)
        ahead, work = np.zeros(n), np.zeros(4)
        for i in range(n):
            ahead[i] = work[at[i]]
            work[at[i]] += costs[i]
        prompt = costs + rng.uniform(0.0, 80_000.0, n)
        pace = paced(prompt, costs, ahead, at, work, np.array([0, 0, 1, 1], np.int32), np.ones(4, np.bool_), line())
        assert (pace.begins_s >= 2e-4 * ahead * (1 - 1e-9)).all()
        assert (pace.ends_s >= pace.begins_s + 2e-4 * costs * (1 - 1e-9)).all()
        for rank in range(4):
            mine = np.flatnonzero(at == rank)
            assert pace.begins_s[mine[1:]] == pytest.approx(pace.ends_s[mine[:-1]])
            if len(mine):
                assert pace.idle_s[rank] == pytest.approx(pace.ends_s[mine[-1]])
        assert 0.0 < pace.tokens_per_s <= 5000.0 * (1 + 1e-9)


def test_where_queues_have_ended_ranks_are_as_fast_as_usual():
    nothing = np.zeros(0)
    of = (nothing, nothing, nothing, np.zeros(0, np.int64), np.zeros(2), np.zeros(2, np.int32), np.ones(2, np.bool_))
    assert paced(*of, line(usual=100_000.0)).tokens_per_s == pytest.approx(2500.0)


def test_how_much_a_rank_has_to_do_when_it_is_sent_more_is_learnt_from_what_waited():
    """Each is sent there three seconds before its turn; one that found nobody before it says nothing of that."""
    ranks = Ranks()
    rank = ranks.index("p0", 0)
    ranks.prefilled(rank, 0.0, admitted_s=0.0, t_s=10.0, tokens=1000.0)
    for k in range(1, 400):
        ranks.prefilled(rank, 0.0, admitted_s=10.0 * k - 3.0, t_s=10.0 * (k + 1), tokens=1000.0)
    assert ranks.slack_s == pytest.approx(3.0, rel=0.02)
    ranks.prefilled(rank, 5000.0, admitted_s=5000.0, t_s=5001.0, tokens=1000.0)
    assert ranks.slack_s == pytest.approx(3.0, rel=0.02)


def test_a_wait_costs_what_waits_have_cost_at_home():
    """Where nothing was seen to be lost a wait is free; where long waits lose half of what is held, those alone do."""
    losses = WaitLoss()
    assert losses.after(np.array([0.0, 100.0])).tolist() == [0.0, 0.0]
    for _ in range(200):
        losses.add(0.5, 50_000.0, 0.0, at_home=True)
        losses.add(100.0, 50_000.0, 25_000.0, at_home=True)
    losses.refresh()
    assert losses.after(np.array([0.5])) == pytest.approx([0.0], abs=0.02)
    assert losses.after(np.array([96.0])) == pytest.approx([0.5], abs=0.03)


@pytest.mark.parametrize(("lost_at_home", "lost_by_all"), [(0.0, 0.0), (5_000.0, 0.55)])
def test_turns_that_left_home_count_where_homes_lose_contexts(lost_at_home, lost_by_all):
    """Half of the turns go where nobody has their context: home lost it, or its queue was long and it lost nothing."""
    losses = WaitLoss()
    for _ in range(200):
        losses.add(100.0, 50_000.0, lost_at_home, at_home=True)
        losses.add(100.0, 50_000.0, 50_000.0, at_home=False)
    losses.refresh()
    assert losses.after(np.array([96.0])) == pytest.approx([lost_by_all], abs=0.03)


def test_what_comes_to_idle_ranks_makes_no_queue():
    """One of eight queues is eight seconds long, and the pool is half busy: the others' work is done as it comes."""
    s = streams()
    s.tool[:, :] = np.array([[4.0], [500.0], [4000.0]])
    flow(cycle(gap=every(np.zeros(K))), pool(tokens_per_s=1000.0, waits_s=np.array([0.0] * 7 + [8.0])), s)
    waiting = np.cumsum(s.tool[0]) - np.cumsum(s.admitted[0])
    assert waiting[20] < 1.5 * 4.0
    assert waiting[-1] <= waiting[20]


def test_windows_of_admissions_are_known_when_they_end():
    early = EarlyActuals((5.0,))
    made = Made(0.0, 0.0, Corrected(0.0, 0.0, 0.0, 0.0, np.zeros(0)), {})
    assert early.tick(0.0, 70.0) == []
    early.made(0.0, 5.0, made)
    seen = [early.tick(float(second), 10.0) for second in range(1, 6)]
    assert seen[:4] == [[], [], [], []]
    assert seen[4] == [(5.0, made, 50.0)]


def stamped(at_s, event):
    return ev.Stamped(1, nanoseconds(at_s), "sdk", 0, 0, event)


def test_a_sampler_that_a_bound_holds_back_goes_on_after_the_update():
    """It has room for 12 and dispatches none: what is due is due when the weights are new."""
    keys = WaitKeys()
    plan = RunPlan(Learner(keys, ScoreKeeper((5.0,))))
    plan.observe(stamped(0.0, ev.SamplerState(mode="async", queued=100, in_flight=20, limit=32)))
    plan.advance(0.0)
    assert plan.due_now() == 12.0
    for second in range(1, 5):
        plan.advance(float(second))
    assert plan.held_back
    assert plan.due_now() == 0.0
    assert plan.next_burst() == 12.0
    plan.observe(stamped(5.0, ev.WeightsUpdateBegin(version="1", cache_flushed=True)))
    plan.observe(stamped(25.0, ev.WeightsUpdateEnd(version="1", cache_flushed=True)))
    plan.advance(25.0)
    assert plan.due_now() == 12.0
    plan.observe(stamped(25.1, ev.TrajectoryDispatched(trajectory_id="t")))
    assert not plan.held_back


def test_a_known_class_begins_with_what_is_typical_of_it_and_others_with_nothing():
    learner = Learner(WaitKeys(), ScoreKeeper((5.0,)))
    known, other = (learner.keys.workload(name) for name in ("general", "never heard of"))
    learner.meet_classes()
    learner.refresh(np.zeros((len(learner.keys), learner.waits.grid.bins)))
    tools = class_priors()["general"].tools
    assert set(learner.keys.tools_of(known)) == set(tools)
    assert learner.keys.tools_of(other) == {}
    assert learner.first_prompts.means[known] == pytest.approx(1560.0, rel=0.1)
    user = learner.keys.tools_of(known)["user"]
    assert learner.transitions.chance[learner.keys.beginning[known], user] > 0.8


def test_a_dispatch_that_was_not_heard_of_leaves_the_next_step_whole():
    """Nothing is due in a step whose dispatches are over, and the next one begins with all of its own."""
    plan = RunPlan(Learner(WaitKeys(), ScoreKeeper((5.0,))))
    plan.observe(stamped(0.0, ev.SamplerState(mode="sync", queued=24, in_flight=0, limit=8, batch_size=8)))
    plan.observe(stamped(0.0, ev.StepBegin(step=0)))
    for number in range(7):  # of eight
        plan.observe(stamped(0.0, ev.TrajectoryDispatched(trajectory_id=f"t{number}")))
    plan.observe(stamped(1.0, ev.SamplerState(mode="sync", queued=16, in_flight=0, limit=8, batch_size=8)))
    for second in range(1, 6):
        plan.advance(float(second))
    assert plan.due_now() == 0.0
    plan.observe(stamped(6.0, ev.StepEnd(step=0)))
    for second in range(6, 12):
        plan.advance(float(second))
    assert plan.next_burst() == 8.0
