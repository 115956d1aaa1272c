"""Siblings that begin with one prompt: it is counted once, whatever the order in which they come."""

from prorsa import events as ev
from prorsa.clock import nanoseconds
from prorsa.forecast.columns import Columns
from prorsa.forecast.groups import MAX_GROUPS, Groups
from prorsa.forecast.predictor import Predictor

PROMPT = 40_000


def make(members: int) -> tuple[Columns, Groups]:
    columns = Columns(members)
    groups = Groups(columns)
    for slot in range(members):
        assert groups.dispatched(slot, "g") == (slot > 0)
    return columns, groups


def test_who_is_ready_first_computes_the_prompt():
    columns, groups = make(3)
    groups.ready(1)
    assert columns.sibling[:3].tolist() == [True, False, True]
    groups.ready(0)
    groups.ready(2)
    assert columns.sibling[:3].tolist() == [True, False, True]


def test_the_slot_of_one_that_has_ended_is_left_alone():
    columns, groups = make(2)
    groups.ended(0)
    columns.sibling[0] = False
    groups.dispatched(0, "other")
    groups.ready(1)
    assert columns.sibling[:2].tolist() == [False, False]


def test_groups_are_forgotten_in_time():
    groups = Groups(Columns(1))
    for number in range(MAX_GROUPS + 1):
        groups.dispatched(0, f"g{number}")
    assert not groups.dispatched(0, "g0")
    assert groups.dispatched(0, f"g{MAX_GROUPS}")


def test_a_prompt_that_a_group_waits_with_counts_once():
    """The router's index knows no sibling's prompt while all of them wait; the backlog does."""
    predictor = Predictor()
    events = [
        *(ev.TrajectoryDispatched(trajectory_id=f"t{i}", group_id="g", prompt_tokens=PROMPT) for i in range(8)),
        *(
            ev.TrajectoryReady(trajectory_id=f"t{i}", request_id=f"t{i}-0", prompt_tokens=PROMPT, new_tokens=PROMPT)
            for i in range(8)
        ),
    ]
    for seq, event in enumerate(events):
        predictor.observe(ev.Stamped(seq + 1, nanoseconds(0.5), "s", seq, 0, event))
    frame = predictor.tick(nanoseconds(1.0))
    assert PROMPT <= frame.backlog_tokens < 2.5 * PROMPT


def test_where_the_router_has_sent_a_sibling_its_index_counts():
    predictor = Predictor()
    events = [
        ev.TrajectoryDispatched(trajectory_id="a", group_id="g", prompt_tokens=PROMPT),
        ev.TrajectoryDispatched(trajectory_id="b", group_id="g", prompt_tokens=PROMPT),
        ev.TrajectoryReady(trajectory_id="a", request_id="a-0", prompt_tokens=PROMPT, new_tokens=PROMPT),
        ev.TrajectoryReady(trajectory_id="b", request_id="b-0", prompt_tokens=PROMPT, new_tokens=PROMPT),
        ev.LlmSubmit(
            trajectory_id="b", request_id="b-0", attempt=0, turn=0, prompt_tokens=PROMPT, new_tokens=PROMPT // 2
        ),
    ]
    for seq, event in enumerate(events):
        predictor.observe(ev.Stamped(seq + 1, nanoseconds(0.5), "s", seq, 0, event))
    assert predictor.tick(nanoseconds(1.0)).backlog_tokens == PROMPT * 1.5
