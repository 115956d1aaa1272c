"""Siblings that begin with one prompt: it is counted once, whatever the order in which they come."""

from prorsa import events as ev
from prorsa.clock import nanoseconds
from prorsa.forecast.columns import HOMES, Columns
from prorsa.forecast.groups import MAX_GROUPS, Groups
from prorsa.forecast.predictor import Predictor
from prorsa.forecast.stems import Stems

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


def backlog_of_a_group(prompt_tokens: int) -> float:
    """Tokens that are expected to be computed of eight siblings that wait for the only rank, which is busy."""
    predictor = Predictor()
    prompts = {f"t{i}": prompt_tokens for i in range(8)}
    dispatched = [
        ev.TrajectoryDispatched(trajectory_id=name, group_id="g", prompt_tokens=prompt)
        for name, prompt in prompts.items()
    ]
    ready = [
        ev.TrajectoryReady(trajectory_id=name, request_id=f"{name}-0", prompt_tokens=prompt, new_tokens=prompt)
        for name, prompt in (*prompts.items(), ("other", 8000))
    ]
    events = [
        ev.WorkerUp(worker_id="p0", role="prefill", epoch=0, pool="default", flippable=True, dp_size=1),
        *dispatched,
        ev.TrajectoryDispatched(trajectory_id="other", prompt_tokens=8000),
        *ready,
        ev.LlmAdmitted(rid="other-0.00", worker_id="d0", kv_tokens=8000),
    ]
    for seq, event in enumerate(events):
        predictor.observe(ev.Stamped(seq + 1, nanoseconds(0.5), "s", seq, 0, event))
    return predictor.tick(nanoseconds(1.0)).backlog_tokens - 8000.0


def test_siblings_follow_the_first_of_their_group_to_its_rank_if_the_prompt_is_long():
    assert PROMPT + 7.0 <= backlog_of_a_group(PROMPT) < 1.2 * PROMPT
    assert backlog_of_a_group(1000) > 1500.0  # sooner computed again than waited for


def test_groups_are_numbered_and_numbers_are_given_again():
    columns = Columns(3)
    slots = [columns.take() for _ in range(3)]
    stems = Stems(columns)
    for slot, group in zip(slots, ("a", "b", "b"), strict=True):
        stems.dispatched(slot, group)
    a, b, other = columns.group[slots].tolist()
    assert b == other != a
    stems.ended(slots[0])
    stems.dispatched(slots[0], "c")
    assert columns.group[slots[0]] == a


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


def test_siblings_find_their_prompt_where_one_of_them_was():
    columns = Columns(4)
    slots = [columns.take() for _ in range(4)]
    stems = Stems(columns)
    for slot in slots[:2]:
        stems.dispatched(slot, "g")
    stems.dispatched(slots[2], "other")
    columns.first_tokens[slots[0]] = PROMPT
    columns.prompt_tokens[slots[0]] = PROMPT + 500.0
    columns.prefilled_at(slots[0], 7)
    stems.prefilled(slots[0], 7)
    stems.dispatched(slots[3], "g")
    for slot in (slots[1], slots[3]):
        assert columns.home[slot, 0] == 7
        assert columns.held_tokens[slot, 0] == PROMPT
    assert columns.home[slots[2], 0] == -1
    assert columns.held_tokens[slots[0], 0] == PROMPT + 500.0


def test_where_a_trajectory_was_itself_comes_before_where_its_siblings_were():
    columns = Columns(1)
    slot = columns.take()
    columns.prompt_tokens[slot] = 100.0
    assert columns.prefilled_at(slot, 3) == -1
    for rank in range(10, 10 + HOMES):
        columns.found_at(slot, rank, 50.0)
    assert columns.prefilled_at(slot, 3) == 0
    assert columns.home[slot, 0] == 3
    assert columns.prefilled_at(slot, 10) > 0
    assert columns.home[slot, :2].tolist() == [10, 3]


def _one_of_two_prefilled() -> tuple[Columns, Stems, list[int]]:
    """Two slots; the first one's trajectory, of group ``g``, was prefilled on rank 7."""
    columns = Columns(2)
    slots = [columns.take() for _ in range(2)]
    stems = Stems(columns)
    stems.dispatched(slots[0], "g")
    columns.first_tokens[slots[0]] = PROMPT
    stems.prefilled(slots[0], 7)
    return columns, stems, slots


def test_a_group_is_forgotten_with_its_last_member():
    columns, stems, slots = _one_of_two_prefilled()
    stems.ended(slots[0])
    stems.dispatched(slots[1], "g")
    assert columns.home[slots[1], 0] == -1


def test_a_flush_leaves_no_rank_with_the_prompt():
    columns, stems, slots = _one_of_two_prefilled()
    stems.flush()
    stems.dispatched(slots[1], "g")
    assert columns.home[slots[1], 0] == -1
