"""Sessions and what workers hold of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.router.sessions import Reuse, Session, Sessions, common_prefix, session_key


def answered(sessions: Sessions, session: Session, prompt: list[int], output: list[int], p: str, d: str) -> None:
    context = [*prompt, *output]
    sessions.answered(session, context, tokens=len(context), prompt_units=len(prompt), prefill=p, decode=d)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_text_and_tokens_share_nothing() -> None:
    assert common_prefix("abc", [1, 2, 3]) == 0


def test_the_next_turn_is_warm_where_the_last_one_ran() -> None:
    sessions = Sessions(10)
    session = sessions.get("t")
    answered(sessions, session, [1, 2, 3, 4], [5, 6], "p", "d")
    reuse = Reuse.of(session, sessions.prompt_of([1, 2, 3, 4, 5, 6, 7, 8]))
    assert (reuse.cached("p"), reuse.cached("d"), reuse.cached("other")) == (4, 6, 0)
    assert reuse.least_new_tokens() == 2
    assert session.turn == 1


def test_a_context_that_was_edited_is_warm_up_to_the_edit() -> None:
    sessions = Sessions(10)
    session = sessions.get("t")
    answered(sessions, session, [1, 2, 3, 4], [5], "p", "d")
    answered(sessions, session, [1, 2, 9, 9, 9], [5], "p2", "d")
    reuse = Reuse.of(session, sessions.prompt_of([1, 2, 9, 9, 9, 5, 7]))
    assert (reuse.cached("p"), reuse.cached("p2")) == (2, 5)


def test_a_whole_prompt_is_never_cached() -> None:
    sessions = Sessions(10)
    session = sessions.get("t")
    answered(sessions, session, [1, 2, 3], [4], "p", "d")
    assert Reuse.of(session, sessions.prompt_of([1, 2, 3])).new_tokens("p") == 1


def test_a_lost_worker_holds_nothing_and_is_nobodys_home() -> None:
    sessions = Sessions(10)
    for key in ("a", "b"):
        answered(sessions, sessions.get(key), [1] * 10, [2] * 5, "p", "d")
    assert sessions.home_tokens("p") == 30
    assert sessions.drop_worker("p") == 20
    assert sessions.home_tokens("p") == 0
    assert sessions.drop_worker("p") == 0


def test_the_least_recent_session_goes_first() -> None:
    sessions = Sessions(2)
    answered(sessions, sessions.get("a"), [1, 2], [3], "p", "d")
    sessions.get("b")
    sessions.get("a")
    sessions.get("c")
    assert sessions.get("a").turn == 1
    assert not sessions.finish("b")
    assert sessions.finish("a")
    assert sessions.home_tokens("p") == 0


def test_tokens_of_text_are_estimated_from_answers() -> None:
    sessions = Sessions(2)
    assert sessions.prompt_of("x" * 100).tokens == 25
    for _ in range(100):
        sessions.learn_density(100, 50)
    assert sessions.prompt_of("x" * 100).tokens == pytest.approx(50, abs=1)


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ({"X-SMG-Routing-Key": "a"}, {"session_id": "b"}, "a"),
        ({"X-Prorsa-Trajectory": "t", "X-Session-ID": "s"}, {}, "t"),
        ({"x-dynamo-trajectory-id": "d"}, {}, "d"),
        ({}, {"session_id": "b"}, "b"),
        ({}, {"session_id": 7}, None),
        ({}, {}, None),
    ],
)
def test_where_a_session_key_comes_from(headers: dict[str, str], body: dict[str, object], key: str | None) -> None:
    assert session_key(headers, body) == key
