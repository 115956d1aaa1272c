"""One list of actions: keys, footer, help and documentation agree."""

import re
from pathlib import Path

import pytest

from prorsa.console.actions import ACTIONS, bindings, footer, keys_markdown
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.help import HelpPage
from prorsa.console.look import Look
from tests.console import story
from tests.console.harness import screen_text

DOCS = Path(__file__).parents[2] / "docs" / "console.md"


def test_every_action_can_be_carried_out_and_has_a_key_of_its_own() -> None:
    for kind in ("live", "replay"):
        available = [action for action in ACTIONS if action.available(kind, read_only=False)]
        keys = [key for action in available for key in action.keys.split(",") if key]
        assert len(keys) == len(set(keys))
    assert len({action.id for action in ACTIONS}) == len({action.word for action in ACTIONS}) == len(ACTIONS)
    app = ProrsaConsole(story.StoryFeed(story.live()), None, look=Look())
    assert app._doers.keys() == {action.id for action in ACTIONS}
    assert all(action.help.endswith(".") for action in ACTIONS)


def test_every_binding_has_the_id_of_its_action() -> None:
    assert [binding.id for binding in bindings()] == [action.id for action in ACTIONS if action.keys]


def test_nothing_that_sends_is_offered_where_nothing_may_be_sent() -> None:
    assert any(action.sends for action in footer("live", read_only=False))
    for kind, read_only in (("live", True), ("replay", True), ("replay", False)):
        assert not [action for action in footer(kind, read_only=read_only) if action.sends]


def test_the_documentation_has_the_same_keys() -> None:
    if not DOCS.exists():
        pytest.skip("an installed package has no docs folder")
    assert keys_markdown() in DOCS.read_text()


async def test_the_help_page_names_every_key_that_works_here() -> None:
    app = ProrsaConsole(story.StoryFeed(story.live(), story.stamped(10.0)), None, look=Look())
    async with app.run_test(size=(120, 100)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpPage)
        text = screen_text(app)
        for action in ACTIONS:
            shown = re.search(
                rf"\s{re.escape(action.shown)}\s+:{re.escape(action.word)}\s+{re.escape(action.help)}", text
            )
            assert bool(shown) == action.available("live", read_only=True), action.id
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpPage)
