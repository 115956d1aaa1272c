"""A recording in the console: play, pause, jump, step, speed."""

from pathlib import Path

import pytest

from prorsa.bus.journal import JournalWriter
from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.launch import make_console
from prorsa.console.look import Look
from prorsa.console.playback import FASTEST, JournalFeed
from prorsa.errors import JournalError
from tests.console.harness import record, screen_text, until


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recording"), 300.0)


def console(journal: Path, speed: float = 100.0) -> ProrsaConsole:
    return ProrsaConsole(JournalFeed(journal, speed=speed), None, look=Look(), tick_s=0.05)


async def test_it_plays_to_the_end_and_stays_there(journal: Path) -> None:
    app = console(journal, speed=600.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.model.tick_s == 300.0)
        await until(pilot, lambda: "END" in screen_text(app))
        text = screen_text(app)
        assert "REPLAY" in text
        assert "00:05:00" in text
        assert app.model.known_s == 300.0


async def test_pause_jump_and_go_on(journal: Path) -> None:
    app = console(journal)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: (app.model.tick_s or 0) > 4)
        await pilot.press("space")
        assert app.feed.status().state == "paused"
        stopped_ns = app.feed.status().now_ns
        await pilot.pause(0.1)
        assert app.feed.status().now_ns == stopped_ns
        await pilot.press("t", *"4m", "enter")
        await until(pilot, lambda: app.model.tick_s is not None and app.model.tick_s >= 238)
        assert app.feed.status().now_ns == nanoseconds(240.0)
        assert app.model.known_s >= 238  # the charts have their past at once
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert app.feed.status().now_ns == nanoseconds(220.0)
        assert app.model.tick_s == 218.0
        await pilot.press("space")
        await until(pilot, lambda: (app.model.tick_s or 0) > 230)


async def test_a_step_goes_to_the_next_view(journal: Path) -> None:
    app = console(journal)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.model.view is not None)
        await pilot.press("space", "t", *"100s", "enter")
        await until(pilot, lambda: app.model.tick_s == 98.0)
        await pilot.press("full_stop")
        await until(pilot, lambda: app.model.tick_s == 100.0)
        await pilot.press("full_stop")
        await until(pilot, lambda: app.model.tick_s == 102.0)
        assert app.feed.status().state == "paused"


async def test_speed_has_its_limits(journal: Path) -> None:
    app = console(journal)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.model.view is not None)
        await pilot.press("less_than_sign")
        assert app.feed.status().speed == 50.0
        for _ in range(8):
            await pilot.press("greater_than_sign")
        assert app.feed.status().speed == FASTEST


async def test_at_the_end_space_plays_it_again(journal: Path) -> None:
    app = console(journal, speed=10.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.model.view is not None)
        await pilot.press("t", *"1h", "enter")
        await until(pilot, lambda: app.model.tick_s == 300.0 and app.feed.status().state == "ended")
        await pilot.press("space")
        await until(pilot, lambda: app.model.tick_s is not None and app.model.tick_s < 100)
        assert app.feed.status().state == "playing"


def test_a_replay_sends_nothing(journal: Path) -> None:
    app = make_console(run_dir=None, endpoints=None, replay=journal, read_only=False, owner="mara")
    assert app.read_only
    app.feed.player.toggle()  # before it runs there is nothing to pause
    assert app.feed.status().state == "connecting"


def test_a_journal_without_events_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "empty", run_id="run", meta={}):
        pass
    with pytest.raises(JournalError, match="holds no events"):
        JournalFeed(tmp_path / "empty")
    with pytest.raises(JournalError):
        JournalFeed(tmp_path / "nowhere")


async def test_jumps_go_to_the_next_decision_that_moves_and_to_the_next_flip_and_pause_there(journal: Path) -> None:
    app = console(journal)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: (app.model.tick_s or 0) > 1)
        await pilot.press("d")
        await until(pilot, lambda: app.feed.status().state == "paused")
        assert app.feed.status().now_ns == nanoseconds(150.0) + 1
        assert app.model.decisions[0].decision.moves
        await pilot.press("colon", *"seek 140s", "enter", "f")
        assert app.feed.status().now_ns == nanoseconds(150.0) + 1  # the flip of that decision
        told: list[str] = []
        app.notify = lambda text, **_: told.append(text)  # type: ignore[method-assign]
        await pilot.press("a")
        assert told == ["No further alert in this recording."]
        await pilot.press("colon", *"seek 2m", "enter", "colon", *"speed 5", "enter")
        assert app.feed.status().now_ns == nanoseconds(120.0)
        assert app.feed.status().speed == 5.0
        await pilot.press("8")
        await until(pilot, lambda: "run begins" in screen_text(app))
        assert app.feed.status().state == "paused"


def test_what_would_act_is_no_command_in_a_recording(journal: Path) -> None:
    words = {action.word for action in console(journal).available()}
    assert not words & {"pin", "drain", "override", "approve", "mark", "pause"}
    assert {"seek", "next-flip", "export", "whatif", "filter"} <= words
