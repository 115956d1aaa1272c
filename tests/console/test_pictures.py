"""Pictures of the console at three sizes in every state; ``--snapshot-update`` accepts changed ones."""

from collections.abc import Callable

import msgspec
import pytest
from textual.pilot import Pilot

from prorsa.clock import nanoseconds
from prorsa.console.actions import PAGES
from prorsa.console.app import ProrsaConsole
from prorsa.console.commander import Commander
from prorsa.console.look import ASCII, LIGHT, Look
from prorsa.console.status import FeedStatus
from prorsa.errors import UnavailableError
from prorsa.events import Split, Stamped
from tests.console import story
from tests.console.harness import screen_text, until

Snap = Callable[..., bool]
SIZES = [(80, 24), (120, 40), (180, 50)]

REPLAY = FeedStatus(
    "replay",
    "paused",
    "recordings/night",
    now_ns=nanoseconds(story.END_S),
    speed=20.0,
    from_ns=0,
    to_ns=nanoseconds(2400),
)
NOTHING_YET = story.live(state="connecting", now_ns=None, speed=None, age_s=None, view_age_s=None)
STATES = {
    "live": story.live(),
    "stale": story.live(state="stale", age_s=4.2, view_age_s=4.3, gaps=3, repaired=2),
    "disconnected": story.live(state="disconnected", age_s=64.0, view_age_s=64.2, retries=12),
    "replay": REPLAY,
    "read-only": story.live(),
    "nothing-yet": NOTHING_YET,
}


class NoCommander:
    """Offers the actions, and is never asked for one here."""

    def prepare(self, ask: object, *, dry_run: bool = False) -> object:
        raise UnavailableError("nobody is there")

    async def send(self, command: object) -> object:
        raise AssertionError(command)


def console(state: str, items: list[Stamped], look: Look | None = None) -> ProrsaConsole:
    commander: Commander | None = None if state in ("replay", "read-only") else NoCommander()  # type: ignore[assignment]
    return ProrsaConsole(story.StoryFeed(STATES[state], items), commander, look=look or Look(), tick_s=600.0)


async def settle(pilot: Pilot[None]) -> None:
    await pilot.pause()
    assert isinstance(pilot.app, ProrsaConsole)
    pilot.app.tick()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
def test_states(snap_compare: Snap, state: str, size: tuple[int, int]) -> None:
    items = [] if state == "nothing-yet" else story.stamped()
    assert snap_compare(console(state, items), terminal_size=size, run_before=settle)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_plan_that_waits_and_an_alert(snap_compare: Snap, size: tuple[int, int]) -> None:
    view = story.view_at(story.END_S, mode="approve", proposal=story.proposal(story.END_S), alerts=(story.ALERT,))
    items = story.stamped()
    items.append(Stamped(len(items) + 1, items[-1].t_ns, "story", len(items) + 1, 0, view))
    assert snap_compare(console("live", items), terminal_size=size, run_before=settle)


def test_a_flip_under_way(snap_compare: Snap) -> None:
    assert snap_compare(console("live", story.stamped(352.0)), terminal_size=(120, 40), run_before=settle)


@pytest.mark.parametrize(("key", "size"), [("P", (80, 24)), ("P", (120, 40)), ("A", (120, 40))])
def test_dialogs(snap_compare: Snap, key: str, size: tuple[int, int]) -> None:
    async def open_dialog(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("j", key)
        await until(pilot, lambda: "no dry run" in screen_text(pilot.app))

    view = story.view_at(story.END_S, mode="approve", proposal=story.proposal(story.END_S))
    items = [Stamped(1, nanoseconds(story.END_S), "story", 1, 0, view)]
    assert snap_compare(console("live", items), terminal_size=size, run_before=open_dialog)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("page", PAGES[1:])
def test_pages(snap_compare: Snap, page: str, size: tuple[int, int]) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press(str(PAGES.index(page) + 1))
        await pilot.pause()

    assert snap_compare(console("live", story.stamped()), terminal_size=size, run_before=show)


@pytest.mark.parametrize("page", ["workers", "trajectories", "decisions", "policies", "audit"])
def test_details(snap_compare: Snap, page: str) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press(str(PAGES.index(page) + 1), "j", "j", "enter")
        await pilot.pause()

    assert snap_compare(console("live", story.stamped()), terminal_size=(100, 30), run_before=show)


@pytest.mark.parametrize("workers", [2, 512])
def test_few_and_many_workers(snap_compare: Snap, workers: int) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("2", "s")
        await pilot.pause()

    rows = tuple(
        msgspec.structs.replace(story.workers_at(60.0)[index % 7], worker_id=f"w{index}") for index in range(workers)
    )
    split = Split(sum(row.role == "prefill" for row in rows), sum(row.role == "decode" for row in rows))
    view = story.view_at(60.0, workers=rows, split=split)
    items = [Stamped(1, view.tick_ns, "story", 1, 0, view)]
    assert snap_compare(console("live", items), terminal_size=(120, 40), run_before=show)


def test_a_command_being_typed(snap_compare: Snap) -> None:
    async def show(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("colon", *"pin w3 ")
        await pilot.pause()

    app = console("live", story.stamped(60.0))
    app.frame.prompt._field.cursor_blink = False
    assert snap_compare(app, terminal_size=(100, 30), run_before=show)


def test_keys(snap_compare: Snap) -> None:
    async def open_help(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("question_mark")
        await pilot.pause()

    assert snap_compare(console("live", story.stamped(60.0)), terminal_size=(80, 24), run_before=open_help)


@pytest.mark.parametrize(
    "look", [Look(ASCII, colour=False), Look(colour=False), Look(palette=LIGHT)], ids=["ascii", "no-colour", "light"]
)
def test_looks(snap_compare: Snap, look: Look) -> None:
    assert snap_compare(console("live", story.stamped(), look), terminal_size=(120, 40), run_before=settle)


def test_a_narrow_terminal(snap_compare: Snap) -> None:
    assert snap_compare(console("live", story.stamped()), terminal_size=(60, 20), run_before=settle)
