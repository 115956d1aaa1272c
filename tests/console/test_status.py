"""What the console says about its feed."""

import pytest

from prorsa.console.status import FeedStatus, badges, is_old, waiting_for, why_old
from tests.console import story

REPLAY = FeedStatus("replay", "playing", "night", now_ns=0, from_ns=0, to_ns=10)


def texts(status: FeedStatus, *, read_only: bool = False, paused: bool = False, ended: bool = False) -> list[str]:
    return [badge.text for badge in badges(status, read_only=read_only, paused=paused, ended=ended)]


@pytest.mark.parametrize(
    ("status", "expected", "old"),
    [
        (story.live(), "● LIVE", False),
        (story.live(state="connecting", age_s=None, view_age_s=None), "CONNECTING", True),
        (story.live(state="stale", age_s=4.2, view_age_s=1.0), "STALE 4.2 s", True),
        (story.live(view_age_s=4.2), "STALE 4.2 s", True),
        (story.live(state="disconnected", age_s=70.0, retries=12), "DISCONNECTED (retry 12)", True),
        (REPLAY, "REPLAY", False),
    ],
)
def test_the_first_badge_and_whether_the_frame_is_old(status: FeedStatus, expected: str, old: bool) -> None:
    assert texts(status)[0] == expected
    assert is_old(status, ended=False) is old


def test_a_run_that_is_over_is_not_stale() -> None:
    silent = story.live(view_age_s=100.0)
    assert texts(silent, ended=True) == ["ENDED"]
    assert not is_old(silent, ended=True)
    assert is_old(story.live(state="disconnected"), ended=True)


def test_further_badges() -> None:
    assert texts(story.live(), read_only=True, paused=True) == ["● LIVE", "PAUSED", "READ-ONLY"]
    paused = FeedStatus("replay", "paused", "night")
    assert texts(paused, read_only=True) == ["REPLAY", "PAUSED"]
    assert texts(FeedStatus("replay", "ended", "night")) == ["REPLAY", "END"]


def test_an_old_frame_says_its_age_and_whose_silence_it_is() -> None:
    assert why_old(story.live(state="disconnected", age_s=64.0)) == (
        "last frame 1:04 old: no answer from the hub; the workers go on without it"
    )
    assert "the hub is silent" in why_old(story.live(state="stale", age_s=2.0))
    assert "the controller sends no view" in why_old(story.live(view_age_s=5.0))


@pytest.mark.parametrize(
    "status",
    [
        story.live(),
        story.live(state="connecting"),
        REPLAY,
        FeedStatus("replay", "ended", "night"),
    ],
)
def test_before_the_first_view_it_says_what_it_waits_for_and_what_to_do(status: FeedStatus) -> None:
    what, then = waiting_for(status)
    assert status.where in what
    assert len(then) > 20
