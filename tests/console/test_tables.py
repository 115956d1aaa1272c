"""Filter, order, marks and details: what every list of the console can do."""

import csv
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.components.table import Filter
from prorsa.console.forms import Ask
from prorsa.console.history import PoolHistory
from prorsa.console.keeping import Stretch, export_csv
from prorsa.console.look import Look
from prorsa.console.looking import parse_time_s
from prorsa.errors import InputError, RefusedError, UnavailableError
from prorsa.events import Command, GuardEffect, Move, PredictedEffect, Split, Stamped
from tests.console import story
from tests.console.harness import record, screen_text, shows, until, worker_table


class Answering:
    """Answers every dry run in one way, and keeps what is sent for real."""

    def __init__(self, effect: PredictedEffect | None = None, refusal: str | None = None) -> None:
        self.effect = effect
        self.refusal = refusal
        self.sent: list[Ask] = []
        self.asked: list[Ask] = []

    def prepare(self, ask: Ask, *, dry_run: bool = False) -> Command:
        (self.asked if dry_run else self.sent).append(ask)
        return Command(
            client="c",
            request_id=f"{len(self.asked)}-{len(self.sent)}-{ask.target}",
            verb=ask.verb,
            state="requested",
            owner="mara",
            reason=ask.reason,
            target=ask.target,
            value=ask.value,
            dry_run=dry_run,
        )

    async def send(self, command: Command) -> Command:
        if self.refusal is not None:
            return msgspec.structs.replace(command, state="rejected", detail=self.refusal)
        if command.dry_run and self.effect is None:
            raise UnavailableError("no controller answers within 10 s")
        return msgspec.structs.replace(command, state="accepted", detail="it would be so", effect=self.effect)


def console(commander: Answering | None = None, until_s: float = 500.0) -> ProrsaConsole:
    feed = story.StoryFeed(story.live(), story.stamped(until_s))
    return ProrsaConsole(feed, commander, look=Look(), tick_s=600.0)


def test_all_words_of_a_filter_must_match_and_none_with_a_mark() -> None:
    assert Filter("w1 pre").matches("W1 Prefill serving")
    assert not Filter("w1 decode").matches("w1 prefill")
    assert Filter("!decode").matches("w1 prefill")
    assert not Filter("w !prefill").matches("w1 prefill")
    assert Filter("!").matches("nothing! to leave out")


@given(st.text(max_size=20))
def test_no_filter_shows_everything_and_a_text_matches_itself(content: str) -> None:
    assert Filter().matches(content)
    words = " ".join(word for word in content.split() if not word.startswith("!"))
    assert Filter(words).matches(content)


async def test_a_filter_works_while_it_is_typed_and_escape_takes_it_off() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("2", "slash", *"prefill")
        await pilot.pause()
        table = app.frame.page.table
        assert table is not None
        assert {row.role for row in table.rows()} == {"prefill"}
        await shows(pilot, app, "/prefill: ")
        await pilot.press("enter", "j")
        assert not app.frame.prompt.is_open
        assert table.selected == table.rows()[1]
        await pilot.press("escape")
        await pilot.pause()
        assert len(table.rows()) == 8
        await pilot.press("slash", *"nobody", "enter")
        await pilot.pause()
        await shows(pilot, app, "no row matches /nobody")
        await pilot.press("slash", "escape")
        assert len(table.rows()) == 8


async def test_details_open_with_enter_follow_the_run_and_close_with_q() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("2", "j", "enter")
        await pilot.pause()
        await shows(pilot, app, "worker w1")
        await shows(pilot, app, "pin w1 prefill by mara")
        gone = story.view_at(501.0, workers=story.workers_at(501.0)[2:])
        app.model.apply(Stamped(99_999, nanoseconds(501), "t", 1, 0, gone))
        app.tick()
        await pilot.pause()
        assert "not in the latest view" in screen_text(app)
        await pilot.press("q")
        assert app.frame.detail is None
        assert app.is_running


async def test_a_decision_says_what_a_guard_changed_and_what_followed() -> None:
    app = console()
    app.model.apply(story.stamped(0.0)[0])
    async with app.run_test(size=(140, 48)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("5", "slash", *"applied", "enter")
        await pilot.pause()
        text = screen_text(app)
        assert "4P:4D → 3P:5D" in text
        assert "moves" in text
        await pilot.press("slash", *"dwell", "enter")
        await pilot.pause()
        assert "w4 changed its role less than 30 s ago" in " ".join(screen_text(app).split())


async def test_marked_workers_are_acted_on_together_after_typing_how_many() -> None:
    commander = Answering(PredictedEffect(current=Split(4, 4), leads_to=Split(4, 4)))
    app = console(commander)
    async with app.run_test(size=(120, 44)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("2", "space", "j", "space", "D")
        await until(pilot, lambda: len(commander.asked) == 2)
        assert [ask.target for ask in commander.asked] == ["w0", "w2"]
        await pilot.pause()
        assert "Drain 2 workers" in app.screen.form.title  # type: ignore[attr-defined]
        app.screen.query_one("#reason").value = "rack maintenance"  # type: ignore[attr-defined]
        app.screen.query_one("#confirm").focus()
        await pilot.press("enter")
        await pilot.pause()
        await shows(pilot, app, "type 2 workers to confirm")
        app.screen.query_one("#typed").value = "2 workers"  # type: ignore[attr-defined]
        confirm = app.screen.query_one("#confirm")
        # A button that has just been pressed takes no second press while it shows the first.
        await until(pilot, lambda: not confirm.has_class("-active"))
        confirm.focus()
        await pilot.press("enter")
        await until(pilot, lambda: len(commander.sent) == 2)
        assert {(ask.verb, ask.target, ask.for_s) for ask in commander.sent} == {
            ("drain", "w0", None),
            ("drain", "w2", None),
        }
        assert worker_table(app).marks == set()


async def test_a_dialog_shows_the_controllers_dry_run_with_moves_and_guards() -> None:
    effect = PredictedEffect(
        current=Split(4, 4),
        leads_to=Split(3, 5),
        moves=(Move("w0", "prefill", "decode", "pinned by mara"),),
        guards=(GuardEffect("pin", "w0 is pinned"),),
        requests=17,
    )
    commander = Answering(effect)
    app = console(commander)
    async with app.run_test(size=(120, 44)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("P")
        await until(pilot, lambda: "17" in screen_text(app))
        text = screen_text(app)
        assert "split 4P:4D now, 3P:5D after the next decision" in text
        assert "guard pin: w0 is pinned" in text
        assert commander.sent == []
        commander.refusal = "w0 may not go"
        await pilot.press("down", "down", "right")
        await until(pilot, lambda: "the controller would refuse: w0 may not go" in screen_text(app))


async def test_a_dialog_without_an_answer_says_so_and_still_lets_an_operator_act() -> None:
    commander = Answering()
    app = console(commander)
    async with app.run_test(size=(120, 44)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("colon", *"freeze --for 5m --reason the hub is slow", "enter")
        await until(pilot, lambda: "no dry run" in screen_text(app))
        assert isinstance(app.screen, ActionDialog)
        app.screen.query_one("#confirm").focus()
        await pilot.press("enter")
        await until(pilot, lambda: commander.sent)
        assert commander.sent == [Ask("freeze", "the hub is slow", None, None, 300.0)]


async def test_nonsense_in_command_mode_is_explained_and_changes_nothing() -> None:
    app = console(Answering())
    told: list[str] = []
    app.notify = lambda text, **_: told.append(text)  # type: ignore[method-assign]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        for text in ("pni w1", "pin w99 prefill", "pin w1 mixed", "approve 7", "theme mauve", "export 1s"):
            await pilot.press("colon")
            app.frame.prompt._field.value = text
            await pilot.press("enter")
            await pilot.pause()
            assert not isinstance(app.screen, ActionDialog), text
        assert len(told) == 6
        assert "did you mean pin" in told[0]
        await pilot.press("colon", *"pin w3 pre", "tab")
        assert app.frame.prompt._field.value == "pin w3 prefill "


async def test_the_theme_changes_what_is_drawn() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        dark = app.export_screenshot()
        await pilot.press("T")
        await pilot.pause()
        light = app.export_screenshot()
        assert app.theme == "prorsa-light"
        assert dark != light
        assert "#0072b2" in light.lower()
        await pilot.press("colon", *"theme dark", "enter")
        assert app.theme == "prorsa-dark"


async def test_the_screen_is_kept_as_a_picture(tmp_path: Path) -> None:
    app = console()
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("colon")
        app.frame.prompt._field.value = f"picture {tmp_path / 'now.svg'}"
        await pilot.press("enter")
        await pilot.pause()
    assert (tmp_path / "now.svg").read_text().startswith("<svg")


def test_a_stretch_of_a_recording_becomes_a_table_in_which_unknown_is_empty(tmp_path: Path) -> None:
    journal = record(tmp_path, 200.0)
    rows = export_csv(journal, Stretch(50.0, 100.0, tmp_path / "out.csv"))
    with (tmp_path / "out.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == rows == 26
    assert (float(table[0]["t_s"]), float(table[-1]["t_s"])) == (50.0, 100.0)
    assert {row["prefill"] for row in table} == {"4"}
    assert table[0]["kv_need_15s_p50"] == ""
    assert float(table[0]["prefill_15s_p50"]) > 0
    with pytest.raises(InputError, match="no stretch of time"):
        export_csv(journal, Stretch(100.0, 50.0, tmp_path / "out.csv"))
    with pytest.raises(InputError, match="can be written"):
        export_csv(journal, Stretch(50.0, 100.0, tmp_path / "nowhere" / "out.csv"))


@pytest.mark.parametrize(("text", "expected"), [("00:12:30", 750.0), ("12:30", 750.0), ("90s", 90.0), ("0", 0.0)])
def test_a_time_is_typed_as_the_console_writes_it(text: str, expected: float) -> None:
    assert parse_time_s(text) == expected


def test_flows_are_counted_over_the_last_minute_and_unknown_after_a_restart() -> None:
    pool = PoolHistory()
    assert pool.flows_per_minute(60.0) == ({}, 0.0)
    for t_s in range(0, 121, 2):
        pool.add(story.view_at(float(t_s), flows={"decode>tool": 3 * t_s}))
    assert pool.flows_per_minute(60.0) == ({"decode>tool": 180.0}, 60.0)
    pool.add(story.view_at(122.0, flows={"decode>tool": 1}))
    assert pool.flows_per_minute(60.0)[0] == {}


async def test_a_refusal_of_the_bus_is_told() -> None:
    class Refusing(Answering):
        async def send(self, command: Command) -> Command:
            raise RefusedError("this key may look and not act")

    app = console(Refusing())
    async with app.run_test(size=(120, 44)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("colon", *"freeze --reason x", "enter")
        await until(pilot, lambda: "may look and not act" in screen_text(app))
        app.screen.query_one("#confirm").focus()
        await pilot.press("enter")
        await until(pilot, lambda: any(life.state == "rejected" and life.mine for life in app.model.requests))
