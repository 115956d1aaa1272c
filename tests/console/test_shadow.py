"""What the console says of the policy in shadow, and of the trajectories that the caches hold."""

import msgspec
import pytest

from prorsa.beside import Disagreement
from prorsa.console.commandline import complete
from prorsa.console.components.admission import AdmissionLine
from prorsa.console.components.shadow import ShadowPanel, stretches_of
from prorsa.console.components.trends import Window
from prorsa.console.look import Look
from prorsa.console.model import ConsoleModel
from prorsa.events import Stamped, View
from tests.console import story
from tests.console.test_commandline import LIVE
from tests.console.test_model import told


def model_with(view: View) -> ConsoleModel:
    model = ConsoleModel()
    model.apply(Stamped(1, view.tick_ns, "t", 1, 0, view))
    return model


def text_of(model: ConsoleModel, width: int = 100, height: int = 30) -> str:
    lines = ShadowPanel(model, Look(), Window(index=3)).lines(width, height)
    return "\n".join("".join(segment.text for segment in line.segments) for line in lines)  # type: ignore[union-attr]


def line_of(**changes: object) -> str:
    said = None if changes.pop("unknown", False) else msgspec.structs.replace(story.ADMISSION, **changes)
    model = model_with(story.view_at(60.0, admission=said))
    (line,) = AdmissionLine(model, Look()).lines(200, 1)
    return "".join(segment.text for segment in line.segments)  # type: ignore[union-attr]


def test_the_share_of_disagreement_by_time() -> None:
    record = told().shadow
    assert record.disagreed(95.0, 145.0) == 1.0
    assert record.disagreed(0.0, 90.0) == 0.0
    assert record.disagreed(85.0, 95.0) == 0.5
    assert record.disagreed(5000.0, 6000.0) is None


def test_what_was_seen_already_is_not_counted_again() -> None:
    model = told(200.0)
    before = len(model.shadow.disagreements())
    for stamped in story.stamped(200.0):
        model.apply(stamped)
    assert len(model.shadow.disagreements()) == before == 11


def test_disagreements_alike_in_a_row_are_one_and_others_are_not() -> None:
    record = told().shadow
    found = list(stretches_of(record.disagreements()))
    assert [stretch.times for stretch in found] == [8, 6, 11]
    assert [stretch.begin_ns for stretch in found] == [560 * 10**9, 300 * 10**9, 95 * 10**9]
    apart = [record.disagreements()[0], record.disagreements()[2]]  # the one between them is missing
    assert all(isinstance(one, Disagreement) for one in apart)
    assert [stretch.times for stretch in stretches_of(apart)] == [1, 1]


def test_the_panel_says_how_often_where_and_why() -> None:
    text = text_of(told())
    assert "agrees in 84% of 156 decisions" in text
    assert "×8" in text
    assert "practised in qwen-async: 1 worker(s) to decode" in text
    assert "00:11:40 learned (in shadow), back at 00:12:40: queue: outside the range of its training" in text


def test_a_short_panel_keeps_the_score_and_the_handover() -> None:
    text = text_of(told(720.0), height=7)
    assert "agrees in" in text
    assert "still away" in text


def test_without_a_shadow_it_says_how_to_have_one() -> None:
    assert "none: H lets a second policy decide" in text_of(model_with(story.view_at(60.0, shadow=None)))


def test_names_are_offered() -> None:
    model = model_with(story.view_at(60.0))
    assert "shadow off" in complete("shadow ", LIVE, model)
    assert "shadow learned" in complete("shadow le", LIVE, model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "! 128 live of 118  advice only  the caches of 4 worker(s)"),
        ({"limit": 300, "mode": "gate"}, "128 live of 300  GATE ON"),
        (
            {"limit": None, "reason": "a shared store holds every context"},
            "128 live of any number  advice only  a shared",
        ),
        ({"unknown": True}, "unknown: the controller has not said"),
    ],
    ids=["crowded", "gate", "no limit", "unknown"],
)
def test_live_trajectories_against_what_the_caches_hold(changes: dict[str, object], said: str) -> None:
    line = line_of(**changes)
    assert said in line
    assert ("! " in line) == (said[0] == "!")
