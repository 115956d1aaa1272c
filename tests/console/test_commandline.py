"""Command mode: what is typed, what completes it, and what is said of nonsense."""

import pytest

from prorsa.console.actions import ACTIONS, Action
from prorsa.console.commandline import complete, parse
from prorsa.console.model import ConsoleModel
from prorsa.errors import InputError
from prorsa.events import Stamped
from tests.console import story

LIVE = [action for action in ACTIONS if action.available("live", read_only=False)]
LOOKING = [action for action in ACTIONS if action.available("live", read_only=True)]


def model(t_s: float = 500.0, **changes: object) -> ConsoleModel:
    found = ConsoleModel()
    found.apply(Stamped(1, 0, "test", 1, 0, story.view_at(t_s, **changes)))
    return found


def test_a_command_has_words_options_and_a_reason_that_is_the_rest_of_the_line() -> None:
    spoken = parse("pin w3 prefill --for 10m --reason long prompts land here", LIVE)
    assert spoken.action.id == "pin"
    assert spoken.words == ("w3", "prefill")
    assert (spoken.for_text, spoken.reason) == ("10m", "long prompts land here")
    assert parse('drain w3 --reason "a; b"', LIVE).reason == "a; b"
    assert spoken.word(5) is None


def test_the_beginning_of_a_command_is_enough_where_it_is_clear() -> None:
    assert parse("quar w1", LIVE).action.id == "quarantine"
    with pytest.raises(InputError, match="did you mean release, reject, readmit"):
        parse("re w1", LIVE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "type a command"),
        ("pni w1", "did you mean pin"),
        ("nonsense", "lists what there is"),
        ("pin w1 prefill decode", "takes 2 words"),
        ("sort KV --reason because", "takes no --reason"),
        ("freeze --for", "takes a value"),
        ('pin "w1', "close the quotation"),
        ("seek 10m", "no command 'seek' here"),
    ],
)
def test_nonsense_is_told_what_would_make_sense(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse(text, LIVE)


def test_what_may_not_be_done_is_no_command() -> None:
    with pytest.raises(InputError, match="no command"):
        parse("drain w1 --reason x", LOOKING)
    assert complete("drai", LOOKING, model()) == []


@pytest.mark.parametrize(
    ("text", "offers"),
    [
        ("qua", ["quarantine"]),
        ("pin w", [f"pin w{index}" for index in range(8)]),
        ("pin w3 ", ["pin w3 prefill", "pin w3 decode"]),
        ("pin w3 p", ["pin w3 prefill"]),
        ("pin w3 prefill -", ["pin w3 prefill --for", "pin w3 prefill --reason"]),
        ("pin w3 prefill --for 10m ", ["pin w3 prefill --for 10m --reason"]),
        ("mode a", ["mode auto", "mode approve"]),
        ("release ", ["release w1"]),
        ("override 7", ["override 7:1"]),
        ("theme l", ["theme light"]),
        ("pin w3 prefill --reason be", []),
        ("nonsense w", []),
    ],
)
def test_tab_offers_what_there_is(text: str, offers: list[str]) -> None:
    assert complete(text, LIVE, model()) == offers


def test_an_approval_offers_the_plan_that_waits() -> None:
    assert complete("approve ", LIVE, model(700.0, proposal=story.proposal(700.0)))[0] == "approve 120"
    assert complete("approve ", LIVE, model()) == ["approve --for", "approve --reason"]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_can_be_typed_and_is_completed_from_its_first_letters(action: Action) -> None:
    kind = "replay" if action.feeds == "replay" else "live"
    available = [item for item in ACTIONS if item.available(kind, read_only=False)]
    assert parse(action.word, available).action == action
    assert action.word in complete(action.word[:2], available, ConsoleModel())
