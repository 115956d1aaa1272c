"""The state machine: legal streams, broken streams, and what it tells its sink."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa import events as ev
from prorsa.forecast.columns import State
from prorsa.forecast.trajectory import SCORED_S, TrajectoryTable
from prorsa.forecast.waits import Wait, WaitKeys
from tests.forecast.streams import Rollout, stamp


class Facts:
    """A sink that counts, and keeps requests."""

    def __init__(self):
        self.count = Counter()
        self.waits = []
        self.prefills = {}
        self.answers = {}
        self.lost_ids = []

    def dispatched(self, workload, *, sibling):
        self.count["dispatched"] += 1

    def waited(self, key, duration_s, expected_s, slower=1.0):
        self.waits.append((key, duration_s, expected_s))

    def turn_over(self, workload, turn, context_tokens, *, ended, truncated=False):
        self.count["ended" if ended else "went_on"] += 1
        return 0.0

    def ready(self, t_s, request):
        self.count["ready"] += 1

    def admitted(self, t_s, request):
        self.count["admitted"] += 1

    def prefilled(self, t_s, request):
        self.prefills[request.request_id] = request.uncached_tokens

    def progressed(self, tokens, duration_s):
        assert tokens >= 0
        assert duration_s >= 0

    def answered(self, request):
        self.answers[request.request_id] = request.output_tokens

    def lost(self, t_s, request):
        self.lost_ids.append(request.request_id)

    def ended(self):
        self.count["trajectories"] += 1


def table():
    facts = Facts()
    return TrajectoryTable(facts, WaitKeys()), facts


def feed(rows):
    states, facts = table()
    for row in rows:
        states.observe(row)
    return states, facts


STREAM = Rollout(trajectories=6, limit=4, turns=3, seed=3).run()
MIDDLE = STREAM[: len(STREAM) * 2 // 3]


def snapshot(states):
    """What must not depend on the order in which a stream was heard."""
    return states.live, states.counts(), {f"t{i:03d}": states.state_of(f"t{i:03d}") for i in range(6)}


def test_a_whole_run_leaves_nothing_live_and_repairs_nothing():
    states, facts = feed(STREAM)
    assert states.live == 0
    assert states.repaired_total == 0
    assert states.counts()["done"] == 6
    assert facts.count["ready"] == facts.count["admitted"] == len(facts.prefills) == len(facts.answers) == 18
    assert facts.count["went_on"] == 12
    assert facts.count["ended"] == 6
    assert not facts.lost_ids


def test_states_follow_the_lifecycle():
    rid = ev.make_rid("r", 0)
    steps = [
        (ev.TrajectoryDispatched(trajectory_id="t"), State.DISPATCHED),
        (ev.SandboxStart(trajectory_id="t"), State.SANDBOX),
        (ev.SandboxReady(trajectory_id="t"), State.SANDBOX),
        (ev.TrajectoryReady(trajectory_id="t", prompt_tokens=9, request_id="r"), State.READY),
        (ev.LlmSubmit(trajectory_id="t", request_id="r", attempt=0, turn=0, prompt_tokens=9), State.READY),
        (ev.LlmAdmitted(rid=rid, worker_id="d", kv_tokens=9), State.READY),
        (ev.LlmPrefillStart(rid=rid, worker_id="p"), State.PREFILL),
        (ev.LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=4), State.DECODE),
        (ev.LlmEnd(request_id="r", attempt=0, output_tokens=5, finish_reason="stop"), State.TOOL),
        (ev.RewardStart(trajectory_id="t"), State.REWARD),
        (ev.TrajectoryEnd(trajectory_id="t", status="completed"), None),
    ]
    states, facts = table()
    for row, (_, expected) in zip(stamp([(i, e) for i, (e, _) in enumerate(steps)]), steps, strict=True):
        states.observe(row)
        assert states.state_of("t") == expected, row.event
    assert facts.prefills == {"r": 5}
    assert states.repaired_total == 0


@given(st.lists(st.integers(0, len(MIDDLE) - 1), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_repeats_change_nothing(again, random):
    rows = list(MIDDLE)
    for at in again:
        rows.insert(random.randint(at, len(rows)), MIDDLE[at])
    states, facts = feed(rows)
    clean, clean_facts = feed(MIDDLE)
    assert snapshot(states) == snapshot(clean)
    assert facts.prefills == clean_facts.prefills
    assert facts.count == clean_facts.count
    assert states.repaired["duplicate"] == len(again)


@given(st.lists(st.integers(0, len(MIDDLE) - 1), max_size=40))
@settings(max_examples=40, deadline=None)
def test_repeats_from_another_source_fold_on_the_request(again):
    """A router and a plugin may both tell of one thing: the request id, attempt and event tell that it is one."""
    requests = (ev.TrajectoryReady, ev.LlmSubmit, ev.LlmAdmitted, ev.LlmPrefillEnd, ev.LlmFirstToken, ev.LlmEnd)
    rows = list(MIDDLE)
    extra = [MIDDLE[at] for at in again if isinstance(MIDDLE[at].event, requests)]
    for seq, row in enumerate(extra):
        rows.insert(rows.index(row) + 1, ev.Stamped(row.hub_seq, row.t_ns, "second", seq, 0, row.event))
    assert snapshot(feed(rows)[0]) == snapshot(feed(MIDDLE)[0])


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_sources_may_overtake_each_other_by_a_little(data):
    """Within a source order holds; between sources an event may be heard a few places early or late."""
    rows = list(STREAM)
    for _ in range(data.draw(st.integers(1, 40))):
        at = data.draw(st.integers(0, len(rows) - 2))
        if rows[at].source != rows[at + 1].source:
            rows[at], rows[at + 1] = rows[at + 1], rows[at]
    states, facts = feed(rows)
    _, clean = feed(STREAM)
    assert states.live == 0
    assert states.counts()["done"] == 6
    assert facts.prefills == clean.prefills
    assert facts.answers == clean.answers
    assert facts.count["ready"] == clean.count["ready"]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_any_loss_repeat_and_reorder_is_survived(data):
    rows = [row for row in STREAM if data.draw(st.integers(0, 9)) > 0]
    for _ in range(data.draw(st.integers(0, 30))):
        if len(rows) > 1:
            a = data.draw(st.integers(0, len(rows) - 1))
            b = min(a + data.draw(st.integers(0, 20)), len(rows) - 1)
            rows.insert(b, rows.pop(a) if data.draw(st.booleans()) else rows[a])
    states, _ = feed(rows)
    ended = {row.event.trajectory_id for row in rows if isinstance(row.event, ev.TrajectoryEnd)}
    heard = {row.event.trajectory_id for row in rows} - {None}
    # Whatever was lost: what was heard to end is not live, and what is live was heard of and not heard to end.
    assert states.live == len(heard - ended)
    assert sum(value for name, value in states.counts().items() if name != "done") == states.live
    assert all(value >= 0 for value in states.counts().values())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_losing_request_events_keeps_the_live_count(data):
    kept = [
        row
        for row in STREAM
        if isinstance(row.event, ev.TrajectoryEnd | ev.TrajectoryDispatched) or data.draw(st.booleans())
    ]
    states, _ = feed(kept)
    assert states.live == 0
    assert states.counts()["done"] == 6


def test_plugin_events_before_their_submit_are_kept_and_taken():
    rid = ev.make_rid("r", 0)
    rows = stamp(
        [
            (0.0, ev.LlmPrefillStart(rid=rid, worker_id="p")),
            (0.1, ev.LlmPrefillEnd(rid=rid, worker_id="p", cached_tokens=30)),
            (0.2, ev.LlmSubmit(trajectory_id="t", request_id="r", attempt=0, turn=0, prompt_tokens=100)),
        ]
    )
    states, facts = table()
    for row in rows[:2]:
        states.observe(row)
    assert states.unknown_requests == 1
    states.observe(rows[2])
    assert states.unknown_requests == 0
    assert states.state_of("t") == State.DECODE
    assert facts.prefills == {"r": 70}


def test_unknown_rids_are_counted_and_forgotten():
    states, facts = table()
    for i in range(3000):
        states.observe(ev.Stamped(i, 0, "p", i, 0, ev.LlmPrefillEnd(rid=f"x{i}.00", worker_id="p", cached_tokens=1)))
    assert states.unknown_requests <= 1024
    assert states.repaired["unknown_request"] == 3000
    states.purge(100.0)
    assert states.unknown_requests == 0
    assert not facts.prefills


def test_a_router_alone_still_gives_states_and_gaps():
    """No SDK and no plugin: the gap between answer and next request is the tool, and cached_tokens settle prefill."""
    rows = stamp(
        [
            (0.0, ev.TrajectoryReady(trajectory_id="s", prompt_tokens=100, request_id="a")),
            (0.1, ev.LlmSubmit(trajectory_id="s", request_id="a", attempt=0, turn=0, prompt_tokens=100)),
            (2.0, ev.LlmEnd(request_id="a", attempt=0, output_tokens=7, finish_reason="stop", cached_tokens=40)),
            (9.0, ev.TrajectoryReady(trajectory_id="s", prompt_tokens=150, request_id="b")),
        ]
    )
    states, facts = feed(rows[:3])
    assert states.state_of("s") == State.TOOL
    states, facts = feed(rows)
    assert states.state_of("s") == State.READY
    assert facts.prefills == {"a": 60}
    assert [(key, wait) for key, wait, _ in facts.waits] == [(Wait.UNKNOWN_TOOL, pytest.approx(7.0))]


def test_a_cancelled_request_is_prefilled_again_as_retry_and_counts_once():
    first, second = ev.make_rid("r", 0), ev.make_rid("r", 1)
    submit = {"trajectory_id": "t", "request_id": "r", "turn": 0, "prompt_tokens": 100}
    rows = stamp(
        [
            (0.0, ev.TrajectoryReady(trajectory_id="t", prompt_tokens=100, request_id="r", new_tokens=100)),
            (0.1, ev.LlmSubmit(attempt=0, **submit)),
            (0.2, ev.LlmAdmitted(rid=first, worker_id="d", kv_tokens=100)),
            (0.3, ev.LlmPrefillEnd(rid=first, worker_id="p", cached_tokens=0)),
            (1.0, ev.LlmProgress(worker_id="d", output=((first, 20),))),
            (1.1, ev.LlmRetry(request_id="r", attempt=1, reason="drain", tokens_kept=20)),
            (1.2, ev.LlmSubmit(attempt=1, new_tokens=120, **submit)),
            (1.3, ev.LlmAdmitted(rid=second, worker_id="e", kv_tokens=120)),
            (1.5, ev.LlmPrefillEnd(rid=second, worker_id="p", cached_tokens=0)),
            (1.6, ev.LlmProgress(worker_id="d", output=((first, 21),))),
            (2.0, ev.LlmEnd(request_id="r", attempt=1, output_tokens=50, finish_reason="stop")),
        ]
    )
    states, facts = feed(rows[:7])
    slot = 0 if states.columns.state[0] >= 0 else int((states.columns.state >= 0).argmax())
    assert states.state_of("t") == State.READY
    assert states.columns.retried[slot]
    states, facts = feed(rows)
    assert states.state_of("t") == State.TOOL
    assert facts.prefills == {"r": 100}
    assert facts.count["admitted"] == 1
    assert facts.answers == {"r": 50}


def test_a_flush_marks_every_live_context_until_its_next_prefill():
    states, _ = feed(MIDDLE)
    live = states.columns.state >= 0
    states.observe(ev.Stamped(0, MIDDLE[-1].t_ns, "hub", 0, 0, ev.WeightsUpdateEnd(version="2", cache_flushed=True)))
    assert (states.columns.flushed == live).all()
    for row in STREAM[len(MIDDLE) :]:
        states.observe(row)
        decoding = states.columns.state == State.DECODE
        entered = isinstance(row.event, ev.LlmPrefillEnd)
        assert not entered or not states.columns.flushed[decoding].all() or not decoding.any()
    assert states.live == 0


def test_silent_trajectories_are_given_up():
    facts = Facts()
    states = TrajectoryTable(facts, WaitKeys(), stale_s=60.0)
    rows = stamp([(t, ev.TrajectoryDispatched(trajectory_id=f"t{t}")) for t in (0, 50)])
    for row in rows:
        states.observe(row)
    states.purge(59.0)
    assert states.live == 2
    states.purge(61.0)
    assert states.live == 1
    assert states.repaired["stale"] == 1
    assert states.state_of("t50") == State.DISPATCHED


def test_a_trajectory_whose_end_was_lost_ends_with_its_reward():
    rows = stamp(
        [
            (0.0, ev.TrajectoryDispatched(trajectory_id="over")),
            (0.0, ev.TrajectoryDispatched(trajectory_id="goes-on")),
            (1.0, ev.RewardStart(trajectory_id="over")),
            (1.0, ev.RewardStart(trajectory_id="goes-on")),
            (2.0, ev.RewardEnd(trajectory_id="over")),
            (2.0, ev.RewardEnd(trajectory_id="goes-on")),
            (3.0, ev.TrajectoryReady(trajectory_id="goes-on", prompt_tokens=5, request_id="r")),
        ]
    )
    states, _ = feed(rows)
    states.purge(2.0 + SCORED_S - 0.1)
    assert states.live == 2
    states.purge(2.0 + SCORED_S)
    assert states.state_of("over") is None
    assert states.state_of("goes-on") == State.READY
    assert states.repaired["end_inferred"] == 1


def test_late_events_do_not_bring_an_ended_trajectory_back():
    rows = stamp(
        [
            (0.0, ev.TrajectoryDispatched(trajectory_id="t")),
            (1.0, ev.TrajectoryEnd(trajectory_id="t", status="aborted")),
            (1.1, ev.ToolEnd(trajectory_id="t")),
            (1.2, ev.TrajectoryReady(trajectory_id="t", prompt_tokens=5, request_id="r")),
        ]
    )
    states, _ = feed(rows)
    assert states.live == 0
    assert states.repaired["late"] == 2


def test_an_answer_that_comes_after_the_end_is_still_counted():
    rows = [row for row in STREAM if row.event.trajectory_id == "t000" or row.event.trajectory_id is None]
    last = max(i for i, row in enumerate(rows) if isinstance(row.event, ev.LlmEnd))
    moved = [*rows[:last], *rows[last + 1 :], rows[last]]
    states, facts = feed(moved)
    assert states.live == 0
    assert facts.answers[rows[last].event.request_id] == rows[last].event.output_tokens
