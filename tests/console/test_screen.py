"""What is on the screen in each state, and what the keys do to it."""

import msgspec
import pytest
from textual.widgets import Input

from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.components.table import layout
from prorsa.console.components.workers import WorkerTable
from prorsa.console.forms import Ask
from prorsa.console.launch import look_of_environment
from prorsa.console.look import ASCII, LIGHT, Look
from prorsa.console.model import ConsoleModel
from prorsa.console.status import FeedStatus
from prorsa.errors import ConfigError, JournalError, UnavailableError
from prorsa.events import Command, Split, Stamped, WorkerView
from tests.console import story
from tests.console.harness import screen_text, shows, worker_table


class NoCommander:
    """Where nothing is to be sent."""

    def prepare(self, ask: Ask, *, dry_run: bool = False) -> Command:
        raise UnavailableError(f"nobody is there for {ask.verb}, dry run {dry_run}")

    async def send(self, command: Command) -> Command:
        raise AssertionError(command)


def console(until_s: float = 60.0, *, sends: bool = True, look: Look | None = None, **status: object) -> ProrsaConsole:
    feed = story.StoryFeed(story.live(**status), story.stamped(until_s))
    return ProrsaConsole(feed, NoCommander() if sends else None, look=look or Look(), tick_s=600.0)


def feed_of(app: ProrsaConsole) -> story.StoryFeed:
    assert isinstance(app.feed, story.StoryFeed)
    return app.feed


async def test_unknown_load_is_dashes_and_never_zero() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        (row,) = [line for line in screen_text(app).splitlines() if line.lstrip("│ ▌").startswith("w7")]
        cells = row.split("│")[1].split()
        assert cells[:4] == ["w7", "D", "decode", "serving"]
        assert set("".join(cells[4:])) == {"–"}


@pytest.mark.parametrize(
    ("decided", "by", "shown"),
    [
        ("default", "lookahead", "policy default (lookahead)  "),
        ("default", None, "policy default  "),
        ("static:4:4", "lookahead", "policy default  "),  # of a policy that has been changed since
    ],
)
async def test_the_top_line_says_which_policy_decides_for_another(decided: str, by: str | None, shown: str) -> None:
    app = console()
    last = story.view_at(700.0).last_decision
    assert last is not None
    last = msgspec.structs.replace(last, policy=decided, decided_by=by)
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.pause()
        view = story.view_at(700.0, policy="default", last_decision=last)
        app.model.apply(Stamped(99_999, nanoseconds(700.0), "t", 1, 0, view))
        app.tick()
        await shows(pilot, app, shown)


async def test_on_loss_the_last_frame_stays_dimmed_with_its_age() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        fresh = screen_text(app)
        assert not app.frame.body.has_class("old")
        feed_of(app).status_now = story.live(state="disconnected", age_s=64.0, view_age_s=64.0, retries=7)
        app.tick()
        await pilot.pause()
        text = screen_text(app)
        assert "DISCONNECTED (retry 7)" in text
        assert "last frame 1:04 old" in text
        assert app.frame.body.styles.opacity < 1
        for word in ("P prefill", "4P:4D", "15 s ahead", "w3"):
            assert text.count(word) == fresh.count(word)


async def test_before_the_first_view_there_are_no_zeros_and_a_hint() -> None:
    app = ProrsaConsole(story.StoryFeed(story.live(state="connecting", now_ns=None, speed=None)), None, look=Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "Waiting for a hub" in text
        assert "prorsa demo" in text
        assert "––:––:––" in text


@pytest.mark.parametrize("key", ["P", "O", "F", "U", "A", "R", "M", "Y", "D", "X", "E"])
async def test_a_read_only_console_opens_no_dialog(key: str) -> None:
    app = console(sends=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press(key)
        assert not isinstance(app.screen, ActionDialog)
        await shows(pilot, app, "READ-ONLY")


async def test_the_focus_of_a_dialog_starts_on_cancel_and_enter_sends_nothing() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("P")
        assert isinstance(app.screen, ActionDialog)
        assert app.focused is not None
        assert app.focused.id == "cancel"
        await pilot.press("enter")
        assert not isinstance(app.screen, ActionDialog)
        assert list(app.model.requests) == []


async def test_a_dialog_without_a_reason_stays_and_says_so_until_one_is_given() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("F")
        app.screen.query_one("#confirm").focus()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ActionDialog)
        await shows(pilot, app, "a reason is required")
        app.redraw()  # a tick of the console does not wipe it away
        await pilot.pause()
        assert "a reason is required" in screen_text(app)
        assert app.focused is app.screen.query_one("#reason")
        await pilot.press("x")
        await pilot.pause()
        assert "a reason is required" not in screen_text(app)


async def test_the_last_worker_of_a_role_takes_typing_its_name() -> None:
    app = console()
    app.model = ConsoleModel()
    lone = (WorkerView("only", "prefill", "serving", 1), WorkerView("w2", "decode", "serving", 1))
    feed_of(app).items = [Stamped(1, 0, "test", 1, 0, story.view_at(1.0, workers=lone, split=Split(1, 1)))]
    app = ProrsaConsole(feed_of(app), NoCommander(), look=Look(), tick_s=600.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("P")
        app.screen.query_one("#reason", Input).value = "because"
        app.screen.query_one("#confirm").focus()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ActionDialog)
        await shows(pilot, app, "type only to confirm")


async def test_the_cursor_stays_on_its_worker_when_the_order_changes() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("j", "j", "j", "k")
        assert worker_table(app).selected is not None
        assert worker_table(app).selected.worker_id == "w2"
        await pilot.press("s", "s")
        assert worker_table(app).sort_by == "KV"
        assert worker_table(app).selected.worker_id == "w2"
        assert [row.worker_id for row in worker_table(app).rows()] != [f"w{index}" for index in range(8)]
        assert worker_table(app).rows()[-1].worker_id == "w7"  # unknown is not the fullest
        await pilot.press("G")
        assert worker_table(app).selected.worker_id == "w7"
        await pilot.press("g", "k")
        assert worker_table(app).selected == worker_table(app).rows()[0]


async def test_a_long_table_scrolls_with_its_cursor() -> None:
    workers = tuple(WorkerView(f"w{index}", "decode", "serving", 1) for index in range(64))
    feed = story.StoryFeed(
        story.live(), [Stamped(1, 0, "t", 1, 0, story.view_at(1.0, workers=workers, split=Split(0, 64)))]
    )
    app = ProrsaConsole(feed, None, look=Look(), tick_s=600.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert "w63" not in screen_text(app)
        await pilot.press("G")
        await pilot.pause()
        await shows(pilot, app, "▌w63")
        await shows(pilot, app, "decisions")


async def test_a_click_selects_a_worker_and_presses_a_key_of_the_footer() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        await pilot.click("#workers", offset=(5, 5))
        assert worker_table(app).selected is not None
        assert worker_table(app).selected.worker_id == "w3"
        column = screen_text(app).splitlines()[-1].index("Freeze")
        await pilot.click("#footer", offset=(column, 0))
        await pilot.pause()
        assert isinstance(app.screen, ActionDialog)
        assert "Freeze" in app.screen.form.title


async def test_a_held_display_does_not_move_while_the_clock_does() -> None:
    app = console()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press("p")
        later = msgspec.structs.replace(story.view_at(60.0), policy="static:4:4", split=Split(7, 1))
        app.model.apply(Stamped(9999, nanoseconds(61), "t", 1, 0, later))
        feed_of(app).status_now = story.live(now_ns=nanoseconds(3661))
        app.tick()
        await pilot.pause()
        text = screen_text(app)
        assert "PAUSED" in text
        assert "01:01:01" in text
        assert "7P" not in text
        await pilot.press("p")
        await pilot.pause()
        await shows(pilot, app, "7P")


@pytest.mark.parametrize(("size", "present", "absent"), [
    ((180, 50), ("split over time", "KV TREND", "decisions"), ("prefill need",)),
    ((120, 40), ("split over time", "prefill demand", "requests"), ("prefill need",)),
    ((80, 24), ("prefill need", "decisions", "OUT/S"), ("split over time",)),
    ((60, 20), ("4P prefill", "WORKER"), ("prefill need", "decisions", "split over time")),
    ((39, 24), ("needs 40×12", "39×24"), ("WORKER",)),
    ((80, 11), ("needs 40×12", "80×11"), ("WORKER",)),
])  # fmt: skip
async def test_the_size_decides_what_is_shown(
    size: tuple[int, int], present: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    app = console()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        text = screen_text(app)
        for word in present:
            assert word in " ".join(text.split()), word
        for word in absent:
            assert word not in text, word
        assert all(len(line) == size[0] for line in text.splitlines())


@pytest.mark.parametrize("width", range(40, 200, 7))
@pytest.mark.parametrize("id_cells", [2, 12, 40])
def test_the_columns_of_the_table_fit(width: int, id_cells: int) -> None:
    table = WorkerTable(ConsoleModel(), Look())
    columns = layout(table.columns(), width, {"WORKER": min(id_cells, 22)})
    assert sum(cells for _, cells in columns) + 2 * (len(columns) - 1) <= width - 2
    assert [column.title for column, _ in columns][:2] == ["WORKER", " ROLE"]


async def test_the_ascii_look_draws_nothing_but_ascii() -> None:
    app = console(400.0, look=Look(ASCII, colour=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        text = screen_text(app)
        strange = {char for char in text if not char.isascii()}
        assert strange == set()
        assert "PPPP" in text
        await pilot.press("P")
        await pilot.pause()
        assert {char for char in screen_text(app) if not char.isascii()} == set()


def test_the_look_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PRORSA_ASCII", "1")
    assert look_of_environment() == Look(ASCII, colour=False)
    monkeypatch.delenv("NO_COLOR")
    assert look_of_environment().colour
    monkeypatch.setenv("PRORSA_THEME", "light")
    assert look_of_environment().palette == LIGHT
    monkeypatch.setenv("PRORSA_THEME", "mauve")
    with pytest.raises(ConfigError, match="there are dark and light"):
        look_of_environment()


async def test_what_goes_wrong_in_the_feed_ends_the_console_with_its_error() -> None:
    class Broken(story.StoryFeed):
        async def run(self, sink: object) -> None:
            raise JournalError("journal night: gone")

    app = ProrsaConsole(Broken(FeedStatus("replay", "playing", "night")), None, look=Look())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
    assert isinstance(app.failure, JournalError)


async def test_quitting_with_nothing_pending_asks_nothing() -> None:
    app = console()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("q")
        assert app._exit
