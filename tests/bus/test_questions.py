"""Commands that only ask are answered, and then forgotten: asked again, they are answered as things stand then."""

import msgspec

from prorsa.bus.state import MAX_UNANSWERED, CommandTable
from prorsa.events import Command, encode


def question(request_id: str = "q1", **changes: object) -> Command:
    known: dict[str, object] = {"verb": "pin", "state": "requested", "owner": "o", "reason": "", "dry_run": True}
    return Command(client="c", request_id=request_id, **(known | changes))  # type: ignore[arg-type]


def test_a_question_is_new_each_time_and_its_answer_goes_to_who_asked() -> None:
    table = CommandTable()
    for number in range(3):
        assert table.answer(question()) is None
        assert table.is_new(question())
        table.wait(question(), (b"client", number))
        assert table.apply(question(), b"") == []
        answer = msgspec.structs.replace(question(), state="accepted", detail=str(number))
        assert table.apply(answer, encode(answer)) == [(b"client", number)]


def test_a_question_never_takes_the_place_of_the_command_that_it_asks_about() -> None:
    table = CommandTable()
    table.apply(question(), b"")
    accepted = msgspec.structs.replace(question(), state="accepted")
    table.apply(accepted, encode(accepted))
    real = question(dry_run=False, reason="because")
    assert table.answer(real) is None
    assert table.is_new(real)
    table.apply(real, b"")
    assert not table.is_new(real)


def test_what_nobody_answers_is_forgotten_in_the_end() -> None:
    table = CommandTable()
    for number in range(MAX_UNANSWERED + 50):
        table.wait(question(f"q{number}"), (b"client", number))
    late = msgspec.structs.replace(question("q0"), state="accepted")
    assert table.apply(late, b"") == []
    there = msgspec.structs.replace(question(f"q{MAX_UNANSWERED + 49}"), state="accepted")
    assert len(table.apply(there, b"")) == 1
