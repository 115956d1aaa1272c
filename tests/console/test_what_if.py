"""What-if: the copy is like the recording, and another policy is shown beside the one that decided."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prorsa.bus.journal import JournalReader, JournalWriter, row_of
from prorsa.cluster.scenario import load_scenario
from prorsa.console.app import ProrsaConsole
from prorsa.console.journal_desk import JournalDesk
from prorsa.console.look import Look
from prorsa.console.pages.what_if import WhatIfDetail
from prorsa.console.playback import JournalFeed
from prorsa.errors import InputError, RefusedError
from prorsa.events import Flip, View
from prorsa.forecast.standing import TRAJECTORIES_SHOWN
from prorsa.run import make_plan
from prorsa.simulate import simulate
from prorsa.whatif import suppose
from tests.console import story
from tests.console.harness import screen_text, until
from tests.serve.running import MINI

POLICY = "dynamo-like"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small scenario under a policy that flips often."""
    journal = tmp_path_factory.mktemp("what-if") / "journal"
    plan = make_plan(load_scenario(str(MINI)), policy=POLICY, run_id="run")
    with JournalWriter(journal, run_id="run", meta=plan.to_meta()) as writer:
        simulate(plan, recorder=lambda rows: writer.append([row_of(row) for row in rows]))
    return journal


def recorded(journal: Path, kind: str) -> list[object]:
    with JournalReader(journal) as reader:
        return [stamped.event for stamped in reader.read(types=(kind,))]


def test_the_copy_stands_where_the_recording_stood_and_goes_on_as_it_did(recording: Path) -> None:
    found = suppose(recording, POLICY, at_s=60.0, for_s=60.0)
    assert found.copy.ended == found.copy.ended_recorded
    assert found.copy.split == found.copy.split_recorded
    assert found.gain == 0.0
    assert found.as_it_was.course == found.supposed.course
    then = next(view for view in recorded(recording, "view") if isinstance(view, View) and view.tick_ns == 120 * 10**9)
    now = next(view for view in recorded(recording, "view") if isinstance(view, View) and view.tick_ns == 60 * 10**9)
    assert found.as_it_was.trajectories_ended == (then.done or 0) - (now.done or 0)


def test_another_split_makes_another_future(recording: Path) -> None:
    flips = [event for event in recorded(recording, "flip") if isinstance(event, Flip)]
    assert flips, "a recording without a flip would test little"
    found = suppose(recording, "static:1:3", at_s=60.0, for_s=60.0)
    assert found.supposed.policy == "static:1:3"
    assert (found.supposed.course[-1].split.prefill, found.supposed.course[-1].split.decode) == (1, 3)
    assert found.supposed.output_tokens != found.as_it_was.output_tokens
    assert found.as_it_was.over_s == pytest.approx(60.0, abs=1.0)


@pytest.mark.parametrize(
    ("policy", "at_s", "for_s", "error", "said"),
    [
        ("nonsense", 60.0, 60.0, InputError, "no policy"),
        ("static:4:4", 60.0, 60.0, InputError, "4 workers"),
        ("analytic", 9e6, 60.0, InputError, "outside the run"),
        ("analytic", 60.0, 0.0, InputError, "above zero"),
        ("colocated", 60.0, 60.0, RefusedError, "launched differently"),
    ],
)
def test_what_cannot_be_supposed_says_why(
    recording: Path, policy: str, at_s: float, for_s: float, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        suppose(recording, policy, at_s=at_s, for_s=for_s)


async def test_the_console_asks_a_helper_process_and_shows_its_answer(recording: Path) -> None:
    answer = suppose(recording, "static:3:1", at_s=60.0, for_s=60.0)
    app = ProrsaConsole(
        story.StoryFeed(story.live(), story.stamped(60.0)), None, journal=recording, look=Look(), tick_s=600.0
    )
    asked: list[tuple[Path, str, float, float]] = []

    def helper(*question: object) -> list[str]:
        asked.append(question)  # type: ignore[arg-type]
        return [sys.executable, "-c", f"print({json.dumps(json.dumps(answer.to_json()))})"]

    app.supposing.helper = helper
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("colon", *"whatif", "space", *"static:3:1", "enter")
        detail = app.frame.detail
        assert isinstance(detail, WhatIfDetail)
        while detail.supposition.found is None:
            await pilot.pause(0.05)
        await pilot.pause()
        text = screen_text(app)
        assert "static:3:1" in text
        assert f"{answer.gain:+.1%} output" in text
        await pilot.press("escape")
        assert app.frame.detail is None
    assert asked == [(recording, "static:3:1", 60.0, 120.0)]


async def test_the_trajectories_of_a_recording_are_followed_to_where_it_stands(recording: Path) -> None:
    feed = JournalFeed(recording, speed=2.0)
    desk = JournalDesk(feed)
    assert await desk.trajectories() is None  # it does not play yet
    app = ProrsaConsole(feed, None, desk=desk, look=Look(), tick_s=0.05)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.model.view is not None and app.model.tick_s is not None)
        feed.pause()
        await pilot.press("t", *"60s", "enter", "3")
        await until(pilot, lambda: stands_at(app, 60.0))
        live = sum(count for state, count in view_of(app).trajectories.items() if state != "done")
        assert len(app.model.trajectories or ()) == min(live, TRAJECTORIES_SHOWN)
        oldest = (app.model.trajectories or ())[0]
        assert oldest.age_s is not None
        assert oldest.age_s <= 61.0
        await pilot.press("t", *"20s", "enter")
        await until(pilot, lambda: stands_at(app, 20.0))
        assert app.model.trajectories
        assert all((row.age_s or 0.0) <= 21.0 for row in app.model.trajectories)


def stands_at(app: ProrsaConsole, at_s: float) -> bool:
    """Whether the trajectories are those of a moment, and the view the last one before it (they come once a second)."""
    of_list_ns, of_view = app.model.trajectories_ns, app.model.view
    if of_list_ns is None or of_view is None:
        return False
    return all(at_s - 1.0 <= at_ns / 1e9 <= at_s for at_ns in (of_list_ns, of_view.tick_ns))


def view_of(app: ProrsaConsole) -> View:
    assert app.model.view is not None
    return app.model.view


@pytest.mark.slow
def test_the_command_line_prints_the_same(recording: Path) -> None:
    asked = ["whatif", "static:1:3", "--journal", str(recording), "--at", "1m", "--for", "30s", "--json"]
    done = subprocess.run([sys.executable, "-m", "prorsa", *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    expected = suppose(recording, "static:1:3", at_s=60.0, for_s=30.0).to_json()
    assert printed == json.loads(json.dumps(expected))
    refused = subprocess.run(
        [sys.executable, "-m", "prorsa", *asked[:2], "--journal", str(recording), "--at", "9h"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "outside the run" in refused.stderr
