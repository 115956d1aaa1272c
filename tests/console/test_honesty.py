"""What is old is never drawn as current, and what is unknown is never drawn as a number."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.console.actions import PAGES
from prorsa.console.app import ProrsaConsole
from prorsa.console.components.workers import WorkerTable
from prorsa.console.look import ASCII, LIGHT, Look
from prorsa.console.model import ConsoleModel
from prorsa.events import Split, Stamped, View, WorkerView
from tests.console import story
from tests.console.harness import screen_text, shows

KNOWN = {
    "queued": 3,
    "running": 4,
    "kv_used": 500_000,
    "kv_cached": 100_000,
    "kv_capacity": 700_000,
    "prefill_tokens_per_s": 800.0,
    "output_tokens_per_s": 90.0,
    "busy": 0.5,
}
READS = {
    "queued": "QUEUE",
    "running": "RUN",
    "prefill_tokens_per_s": "PRE/S",
    "output_tokens_per_s": "OUT/S",
    "busy": "BUSY",
}


def table_of(worker: WorkerView) -> WorkerTable:
    model = ConsoleModel()
    model.apply(Stamped(1, 0, "t", 1, 0, story.view_at(1.0, workers=(worker,), split=Split(1, 0))))
    return WorkerTable(model, Look(), roomy=True)


@settings(max_examples=60, deadline=None)
@given(unknown=st.sets(st.sampled_from(sorted(KNOWN))), age_s=st.none() | st.floats(0.0, 600.0))
def test_every_cell_of_a_worker_says_its_value_or_a_dash_and_old_ones_are_faint(
    unknown: set[str], age_s: float | None
) -> None:
    fields: dict[str, Any] = {name: None if name in unknown else value for name, value in KNOWN.items()}
    worker = WorkerView("w0", "decode", "serving", 1, age_s=age_s, **fields)
    table = table_of(worker)
    said = {column.title: column.say(worker, column.width) for column in table.columns()}
    for name, title in READS.items():
        text = "".join(text for text, _ in said[title]).strip()
        assert (text == "–") == (name in unknown), (name, text)
        old = age_s is not None and age_s > 5.0
        assert all((style == "faint") == (old or name in unknown) for _, style in said[title])
    kv = "".join(text for text, _ in said["KV"])
    assert ("0%" in kv.split()) is False
    assert ("–" in kv) == bool(unknown & {"kv_used", "kv_capacity"})


def bare_view(t_s: float) -> View:
    """A view that knows nothing but that there are two workers."""
    return View(
        tick_ns=round(t_s * 1e9),
        upto_hub_seq=1,
        mode="auto",
        policy="analytic",
        split=Split(1, 1),
        workers=(WorkerView("w0", "prefill", "serving", 0), WorkerView("w1", "decode", "serving", 0)),
        trajectories={},
    )


@pytest.mark.parametrize(
    "look", [Look(), Look(ASCII, colour=False), Look(palette=LIGHT)], ids=["dark", "ascii", "light"]
)
async def test_no_screen_makes_numbers_of_what_is_not_known(look: Look) -> None:
    app = ProrsaConsole(
        story.StoryFeed(story.live(now_ns=10**9), [Stamped(1, 10**9, "t", 1, 0, bare_view(1.0))]),
        None,
        look=look,
        tick_s=600.0,
    )
    dash = look.glyphs.unknown
    async with app.run_test(size=(140, 45)) as pilot:
        await pilot.pause()
        app.tick()
        for number, page in enumerate(PAGES, 1):
            await pilot.press(str(number))
            app.redraw()
            await pilot.pause()
            lines = screen_text(app).splitlines()
            rates = lines[2]
            assert f"prefill {dash}" in rates, page
            assert f"output {dash}" in rates, page
            assert f"idle {dash}" in rates, page
            assert " 0%" not in "\n".join(lines), page
            await pilot.press("enter")
            await pilot.pause()
            assert " 0%" not in screen_text(app), page
            await pilot.press("escape")


@pytest.mark.parametrize("page", PAGES)
async def test_an_old_frame_is_dimmed_on_every_screen(page: str) -> None:
    app = ProrsaConsole(story.StoryFeed(story.live(), story.stamped(60.0)), None, look=Look(), tick_s=600.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.tick()
        await pilot.press(str(PAGES.index(page) + 1))
        assert app.frame.body.styles.opacity == 1.0
        assert isinstance(app.feed, story.StoryFeed)
        app.feed.status_now = story.live(state="stale", age_s=9.0, view_age_s=9.0)
        app.tick()
        await pilot.pause()
        await shows(pilot, app, "STALE 9.0 s")
        assert app.frame.body.styles.opacity < 1.0
