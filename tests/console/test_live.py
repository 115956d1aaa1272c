"""The console against a real hub, over real sockets: what an operator does, and what becomes of it."""

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from prorsa.bus.publisher import Publisher
from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.commander import BusCommander
from prorsa.console.components.asking import ConfirmLeave
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.feeds import LiveFeed
from prorsa.console.launch import make_console
from prorsa.console.look import Look
from prorsa.console.requests import RequestLife
from prorsa.errors import InputError, UnavailableError
from tests.console import story
from tests.console.harness import TinyController, running_hub, screen_text, shows, tiny_controller, until, worker_table

SIZE = (120, 40)


def console(endpoints: Endpoints, *, timeout_s: float = 60.0) -> ProrsaConsole:
    return ProrsaConsole(
        LiveFeed(endpoints), BusCommander(endpoints, owner="mara", timeout_s=timeout_s), look=Look(), tick_s=0.05
    )


async def shown(pilot: Pilot[None], app: ProrsaConsole, controller: TinyController) -> None:
    controller.show()
    await until(pilot, lambda: app.model.view is not None and app.frame.body.has_class("shown"))


async def fill(pilot: Pilot[None], app: ProrsaConsole, **answers: str) -> None:
    """Answer a dialog's questions and confirm."""
    await until(pilot, lambda: isinstance(app.screen, ActionDialog))
    for name, text in answers.items():
        app.screen.query_one(f"#{name}", Input).value = text
    app.screen.query_one("#confirm").focus()
    await pilot.press("enter")


def only_request(app: ProrsaConsole) -> RequestLife:
    (life,) = app.model.requests
    return life


async def test_a_pin_is_shown_from_requested_to_expired(tmp_path: Path) -> None:
    with running_hub(tmp_path) as endpoints:
        async with tiny_controller(endpoints) as controller:
            app = console(endpoints)
            async with app.run_test(size=SIZE) as pilot:
                await shown(pilot, app, controller)
                await pilot.press("j", "j", "P")
                await fill(pilot, app, reason="debugging kv growth", **{"for": "10m"})
                await until(pilot, lambda: only_request(app).state == "accepted")
                for state in ("draining", "effective", "expired"):
                    controller.enter(state)
                    await until(pilot, lambda state=state: only_request(app).state == state)
    life = only_request(app)
    assert life.states == ["requested", "accepted", "draining", "effective", "expired"]
    (command,) = controller.seen
    assert (command.verb, command.target, command.value, command.for_s) == ("pin", "w2", "decode", 600.0)
    assert (command.owner, command.reason) == ("mara", "debugging kv growth")


async def test_a_refusal_shows_the_controllers_reason(tmp_path: Path) -> None:
    with running_hub(tmp_path) as endpoints:
        async with tiny_controller(endpoints) as controller:
            app = console(endpoints)
            async with app.run_test(size=SIZE) as pilot:
                await shown(pilot, app, controller)
                await pilot.press("O")
                await fill(pilot, app, split="5:3", reason="please refuse")
                await until(pilot, lambda: only_request(app).state == "rejected")
                assert only_request(app).detail == "the guards forbid it"
                await shows(pilot, app, "the guards forbid it")


@pytest.mark.parametrize(
    ("key", "answers", "expected"),
    [
        ("O", {"split": "5:3"}, ("override", None, "5:3", 1800.0)),
        ("F", {"for": "90s"}, ("freeze", None, None, 90.0)),
        ("U", {}, ("release", "w1", None, None)),
        ("A", {}, ("approve", "120", None, None)),
        ("R", {}, ("reject", "120", None, None)),
        ("M", {}, ("mode", None, "approve", None)),
        ("Y", {"policy": "static:4:4"}, ("policy", None, "static:4:4", None)),
    ],
)
async def test_each_action_sends_its_command(
    tmp_path: Path, key: str, answers: dict[str, str], expected: tuple[object, ...]
) -> None:
    with running_hub(tmp_path) as endpoints:
        async with tiny_controller(endpoints) as controller:
            controller.view = story.view_at(700.0, overrides=(), proposal=story.proposal(700.0))
            app = console(endpoints)
            async with app.run_test(size=SIZE) as pilot:
                await shown(pilot, app, controller)
                await pilot.press(key)
                await fill(pilot, app, reason="because", **answers)
                await until(pilot, lambda: controller.seen and only_request(app).state == "accepted")
    (command,) = controller.seen
    assert (command.verb, command.target, command.value, command.for_s) == expected


async def test_without_a_controller_a_request_stays_unanswered_and_says_so(tmp_path: Path) -> None:
    with running_hub(tmp_path) as endpoints, Publisher(endpoints.ingest, "views") as publisher:
        app = console(endpoints, timeout_s=0.3)
        async with app.run_test(size=SIZE) as pilot:
            publisher.publish(story.view_at(10.0))
            await until(pilot, lambda: app.model.view is not None)
            await pilot.press("F")
            await fill(pilot, app, reason="nobody is there")
            await until(pilot, lambda: only_request(app).state == "unanswered")


async def test_a_console_that_attaches_late_has_the_past(tmp_path: Path) -> None:
    with running_hub(tmp_path) as endpoints, Publisher(endpoints.ingest, "story") as publisher:
        publisher.publish_all([event for _, event in story.events(120.0)])
        assert publisher.flush(5.0)
        app = console(endpoints)
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: app.model.view is not None and app.model.tick_s == 120.0)
            assert app.model.known_s == 120.0
            assert app.model.demand["prefill"].last_actual().t_s == 104.0


async def test_the_frame_survives_the_hub_and_ages_until_it_is_back(tmp_path: Path) -> None:
    app = None
    with running_hub(tmp_path) as endpoints:
        async with tiny_controller(endpoints) as controller:
            app = console(endpoints)
            context = app.run_test(size=SIZE)
            pilot = await context.__aenter__()
            await shown(pilot, app, controller)
    try:
        top = app.frame.top
        await until(pilot, lambda: "STALE" in top.badges()[0].text or "DISCONNECTED" in top.badges()[0].text)
        await until(pilot, lambda: app.frame.body.has_class("old"))
        assert worker_table(app).rows()
        await shows(pilot, app, "last frame")
        with running_hub(tmp_path) as endpoints:
            async with tiny_controller(endpoints) as controller:
                controller.show(policy="static:4:4", tick_ns=nanoseconds(9.0))
                await until(pilot, lambda: top.badges()[0].text == "● LIVE" and "static:4:4" in screen_text(app))
                assert not app.frame.body.has_class("old")
    finally:
        await context.__aexit__(None, None, None)


async def test_a_silent_controller_makes_the_frame_old_though_the_hub_lives(tmp_path: Path) -> None:
    clock = [0.0]
    with running_hub(tmp_path) as endpoints, Publisher(endpoints.ingest, "views") as publisher:
        feed = LiveFeed(endpoints, monotonic_s=lambda: clock[0])
        app = ProrsaConsole(feed, None, look=Look(), tick_s=0.05)
        async with app.run_test(size=SIZE) as pilot:
            publisher.publish(story.view_at(10.0))
            await until(pilot, lambda: app.model.view is not None)
            clock[0] = 4.2
            await until(pilot, lambda: app.frame.top.badges()[0].text == "STALE 4.2 s")
            await shows(pilot, app, "the controller sends no view")


async def test_it_waits_for_a_hub_that_comes_later(tmp_path: Path) -> None:
    app = console(Endpoints.ipc(tmp_path))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "Waiting for a hub" in screen_text(app))
        with running_hub(tmp_path) as endpoints:
            async with tiny_controller(endpoints) as controller:
                await shown(pilot, app, controller)


async def test_quitting_asks_only_while_something_is_pending(tmp_path: Path) -> None:
    with running_hub(tmp_path) as endpoints:
        async with tiny_controller(endpoints) as controller:
            app = console(endpoints)
            async with app.run_test(size=SIZE) as pilot:
                await shown(pilot, app, controller)
                await pilot.press("F")
                await fill(pilot, app, reason="look closer")
                await until(pilot, lambda: only_request(app).state == "accepted")
                await pilot.press("q")
                assert isinstance(app.screen, ConfirmLeave)
                await pilot.press("n")
                controller.enter("effective")
                await until(pilot, lambda: only_request(app).state == "effective")
                await pilot.press("q")
                assert not app.is_running or app._exit


def test_it_says_what_is_missing_to_begin(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to show"):
        make_console(run_dir=None, endpoints=None, replay=None, read_only=False, owner="mara")
    with pytest.raises(UnavailableError, match="no hub in"):
        make_console(run_dir=tmp_path, endpoints=None, replay=None, read_only=False, owner="mara")
