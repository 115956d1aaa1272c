"""The console on a running embedded cluster: every action to its effect, and what a new operator can find out."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from prorsa.bus.journal import JournalReader
from prorsa.clock import seconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.components.help import HelpPage
from prorsa.console.launch import make_console
from prorsa.console.text import run_time
from prorsa.events import Command, Decision, Flip, Override, View
from tests.console.harness import screen_text, shows, until
from tests.serve.running import RunningDemo

POOL = Path(__file__).parent / "pool.toml"
SIZE = (140, 48)
WITHIN_S = 180.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    """A pool whose split the analytic policy moves, at twenty times real time."""
    with RunningDemo(tmp_path_factory.mktemp("demo"), speed=20.0, scenario=POOL) as running:
        running.wait_for("decision")
        yield running


@pytest.fixture
def slow_demo(tmp_path: Path) -> Iterator[RunningDemo]:
    """At four times real time, so that a plan still waits when somebody has typed an answer to it."""
    with RunningDemo(tmp_path, speed=4.0, scenario=POOL) as running:
        running.wait_for("decision")
        yield running


@asynccontextmanager
async def console(demo: RunningDemo) -> AsyncIterator[tuple[ProrsaConsole, Pilot[None]]]:
    app = make_console(run_dir=demo.run_dir.path, endpoints=None, replay=None, read_only=False, owner="mara")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.model.view is not None, WITHIN_S)
        yield app, pilot


def view(app: ProrsaConsole) -> View:
    assert app.model.view is not None
    return app.model.view


def role(app: ProrsaConsole, worker_id: str) -> str:
    worker = app.model.worker(worker_id)
    assert worker is not None
    return worker.role if worker.state == "serving" else worker.state


async def command(app: ProrsaConsole, pilot: Pilot[None], text: str) -> None:
    """Type a command; where it opens a dialog, wait for the controller's dry run and confirm."""
    await pilot.press("colon")
    app.frame.prompt._field.value = text
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, ActionDialog), WITHIN_S)
    await until(pilot, lambda: "asked for a dry run" in screen_text(app), WITHIN_S)
    app.screen.query_one("#confirm").focus()
    await pilot.press("enter")


async def comes(app: ProrsaConsole, pilot: Pilot[None], verb: str, state: str) -> None:
    """The latest request of a verb enters a state."""

    def there() -> bool:
        lives = [life for life in app.model.requests if life.verb == verb and life.mine]
        return bool(lives) and state in lives[-1].states

    await until(pilot, there, WITHIN_S)


@pytest.mark.slow
async def test_every_action_has_its_effect_on_the_pool(slow_demo: RunningDemo) -> None:
    async with console(slow_demo) as (app, pilot):
        await command(app, pilot, "policy static:2:2 --reason a split to begin from")
        await until(pilot, lambda: view(app).policy == "static:2:2" and str(view(app).split) == "2P:2D", WITHIN_S)

        other = "decode" if role(app, "w0") == "prefill" else "prefill"
        await command(app, pilot, f"pin w0 {other} --for 30m --reason look at it there")
        await comes(app, pilot, "pin", "effective")
        await until(pilot, lambda: role(app, "w0") == other, WITHIN_S)
        await command(app, pilot, "release w0 --reason seen enough")
        await comes(app, pilot, "pin", "released")

        await command(app, pilot, "override 3:1 --for 30m --reason deeper")
        await comes(app, pilot, "override", "effective")
        await until(pilot, lambda: str(view(app).split) == "3P:1D", WITHIN_S)
        await command(app, pilot, "release split --reason back")
        await until(pilot, lambda: str(view(app).split) == "2P:2D", WITHIN_S)

        victim = next(worker.worker_id for worker in view(app).workers if worker.role == "decode")
        await command(app, pilot, f"drain {victim} --reason maintenance")
        await comes(app, pilot, "drain", "effective")
        await until(pilot, lambda: role(app, victim) == "quarantined", WITHIN_S)
        await until(pilot, lambda: (app.model.worker(victim).running or 0) == 0, WITHIN_S)
        await command(app, pilot, f"readmit {victim} --reason done")
        await comes(app, pilot, "drain", "released")
        await until(pilot, lambda: role(app, victim) == "decode", WITHIN_S)
        await command(app, pilot, f"quarantine {victim} --for 20s --reason for a moment")
        await comes(app, pilot, "quarantine", "expired")
        await until(pilot, lambda: role(app, victim) == "decode", WITHIN_S)

        await command(app, pilot, "freeze --for 30m --reason hold still")
        await comes(app, pilot, "freeze", "effective")
        await command(app, pilot, "policy static:3:1 --reason while nothing may flip")
        held = app.model.now_ns
        await until(pilot, lambda: seconds(app.model.now_ns - held) > 12, WITHIN_S)
        assert str(view(app).split) == "2P:2D"
        await command(app, pilot, "mode approve --reason I want to see plans first")
        await command(app, pilot, "release freeze --reason go on")
        await until(pilot, lambda: app.model.proposal is not None, WITHIN_S)
        assert str(view(app).split) == "2P:2D"
        await command(app, pilot, "approve --reason good")
        await until(pilot, lambda: str(view(app).split) == "3P:1D", WITHIN_S)
        await command(app, pilot, "policy static:2:2 --reason another plan")
        await until(pilot, lambda: app.model.proposal is not None, WITHIN_S)
        await command(app, pilot, "reject --reason not now")
        await until(pilot, lambda: app.model.proposal is None, WITHIN_S)
        assert str(view(app).split) == "3P:1D"
        await command(app, pilot, "mode auto --reason done")
        await until(pilot, lambda: view(app).mode == "auto", WITHIN_S)

        await command(app, pilot, "shadow static:1:3 --reason would it do better")
        await until(pilot, lambda: view(app).shadow is not None and view(app).shadow.decisions > 1, WITHIN_S)
        await pilot.press("6")
        await until(pilot, lambda: "in shadow: static:1:3" in screen_text(app), WITHIN_S)
        assert app.model.shadow.disagreements()
        await command(app, pilot, "policy static:1:3 --reason it would")
        await until(pilot, lambda: view(app).policy == "static:1:3", WITHIN_S)
        await until(pilot, lambda: (view(app).shadow and view(app).shadow.policy) == "static:2:2", WITHIN_S)
        await command(app, pilot, "shadow off --reason seen enough")
        await until(pilot, lambda: view(app).shadow is None, WITHIN_S)

        verbs = {life.verb: life.state for life in app.model.requests if life.mine}
        assert "unanswered" not in verbs.values()
        commands = [stamped.event for stamped in slow_demo.events("command")]
        asked = [event for event in commands if isinstance(event, Command) and event.dry_run]
        assert {event.verb for event in asked} == set(verbs)


async def test_the_trajectories_come_from_the_controller_when_they_are_looked_at(demo: RunningDemo) -> None:
    async with console(demo) as (app, pilot):
        await pilot.pause(0.6)
        assert app.model.trajectories is None
        await pilot.press("3")
        await until(pilot, lambda: app.model.trajectories, WITHIN_S)
        app.redraw()
        await pilot.pause()
        assert app.model.trajectories is not None
        await shows(pilot, app, app.model.trajectories[0].trajectory_id)
        flows = app.model.pool.points[-1].flows
        assert flows["prefill>decode"] > 0
        await pilot.press("enter")
        await pilot.pause()
        assert app.frame.detail is not None
        await shows(pilot, app, "in it for")


@pytest.mark.slow
async def test_a_new_operator_finds_out_why_pins_sees_it_end_and_finds_the_moment_again(demo: RunningDemo) -> None:
    """With nothing but the footer and the page of keys."""
    async with console(demo) as (app, pilot):
        assert "?  Help" in screen_text(app).splitlines()[-1]
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpPage)
        keys = " ".join(screen_text(app).split())
        for shown in (r"5 :decisions", r"enter :details", r"P :pin", r"7 :audit", r"8 :log", r"/ :filter"):
            assert shown in keys
        await pilot.press("escape")
        # Make sure that there is a last flip to ask about.
        await command(app, pilot, "policy analytic --reason let it move")
        await command(app, pilot, "override 1:3 --for 20s --reason move something")
        flips = app.model.flips
        await until(pilot, lambda: any(e.changes_role and not e.under_way for e in flips.values()), WITHIN_S)
        await pilot.press("5", "slash", *"applied", "enter", "g", "enter")
        await pilot.pause()
        why = screen_text(app)
        (decided,) = [
            stamped.event
            for stamped in demo.events("decision")
            if isinstance(stamped.event, Decision) and f"decision {stamped.event.decision_id} " in why.replace("─", " ")
        ]
        assert decided.moves
        for word in ("moves", "what followed", *decided.reason.split()[:4]):
            assert word in why
        await pilot.press("escape", "escape")

        # From an even split the pin takes a flip, and leaves nobody alone in a role.
        await command(app, pilot, "policy static:2:2 --reason hold still")
        await until(pilot, lambda: view(app).policy == "static:2:2" and str(view(app).split) == "2P:2D", WITHIN_S)
        await until(pilot, lambda: all(not e.under_way for e in app.model.flips.values()), WITHIN_S)
        await pilot.press("2", "G", "P")
        await until(pilot, lambda: isinstance(app.screen, ActionDialog), WITHIN_S)
        app.screen.query_one("#for", Input).value = "10m"
        await pilot.press("tab", "tab", "tab", "tab", *"kv", "enter")
        await confirm(app, pilot)
        await comes(app, pilot, "pin", "effective")
        await pilot.press("7")
        await pilot.pause()
        await until(pilot, lambda: re.search(r"pin w3 \w+\s+effective\s+\d:\d\d", screen_text(app)), WITHIN_S)
        await comes(app, pilot, "pin", "expired")
        app.redraw()
        await pilot.pause()
        await until(pilot, lambda: re.search(r"pin w3 \w+\s+expired", screen_text(app)), WITHIN_S)
        life = [life for life in app.model.requests if life.verb == "pin" and life.mine][-1]
        effective_ns = life.entered_ns[life.states.index("effective")]
        assert effective_ns is not None
        await shows(pilot, app, run_time(effective_ns))  # in the pane beside the table

    await find_in_the_recording(demo, effective_ns)


async def confirm(app: ProrsaConsole, pilot: Pilot[None]) -> None:
    """Confirm as asked: where the worker is the last of its role at the time, its name is to be typed first."""
    dialog = app.screen
    button, typed = dialog.query_one("#confirm"), dialog.query_one("#typed", Input)
    assert app.focused in (button, typed)
    for _ in range(5):  # the pool goes on meanwhile: what is asked may change between two keys
        typed.value = typed.placeholder
        button.focus()
        await pilot.press("enter")
        await pilot.pause()
        if app.screen is not dialog:
            return
        await until(pilot, lambda: not button.has_class("-active"))
    raise AssertionError(screen_text(app))


async def find_in_the_recording(demo: RunningDemo, effective_ns: int) -> None:
    """Go to the time that the audit page has shown, in the journal of the run."""
    app = make_console(run_dir=None, endpoints=None, replay=demo.run_dir.journal, read_only=True, owner="mara")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.model.view is not None, WITHIN_S)
        await pilot.press("space")
        await until(pilot, lambda: app.feed.status().state == "paused", WITHIN_S)
        wanted_ns = effective_ns + 20 * 10**9
        await pilot.press("t", *run_time(wanted_ns), "enter")
        # Views come twice a second: at this speed, and on a busy machine, some seconds of the run lie between two.
        await until(pilot, lambda: -20.0 < seconds(view(app).tick_ns - wanted_ns) <= 0.0, WITHIN_S)
        worker = app.model.worker("w3")
        assert worker is not None
        assert worker.pinned == worker.role
        await pilot.press("2")
        await pilot.pause()
        await shows(pilot, app, f"pinned {worker.pinned}")


def test_what_the_console_asked_for_is_in_the_journal_with_who_and_why(demo: RunningDemo) -> None:
    with JournalReader(demo.run_dir.journal) as reader:
        events = [stamped.event for stamped in reader.read(types=("override", "flip"))]
    overrides = [event for event in events if isinstance(event, Override)]
    if not overrides:
        pytest.skip("the tests that act were left out")
    assert {event.owner for event in overrides} == {"mara"}
    assert all(event.reason for event in overrides)
    pinned = [event for event in events if isinstance(event, Flip) and "pinned by mara" in event.reason]
    assert pinned
