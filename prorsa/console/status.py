"""What the console says about where its data comes from and how old it is. Pure."""

from dataclasses import dataclass
from typing import Final, Literal

from prorsa.console.text import span

SILENT_S: Final = 3.0
"""Wall seconds without a view, at two a second, after which the frame counts as old."""

FeedKind = Literal["live", "replay"]
FeedState = Literal["connecting", "live", "stale", "disconnected", "playing", "paused", "ended"]


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The state of a feed at one moment.

    Attributes:
        where: what it reads, as a person would name it.
        now_ns: run time now; None before it is known.
        speed: run seconds in a wall second; None before it is known.
        age_s: wall seconds since anything was heard from the hub.
        view_age_s: wall seconds since the last view of the controller; None before the first, and in replay.
        retries: attempts to connect since the connection was lost.
        gaps, repaired: events missed, and those of them that were asked for again and came.
        from_ns, to_ns: the recording's extent in run time.
    """

    kind: FeedKind
    state: FeedState
    where: str
    now_ns: int | None = None
    speed: float | None = None
    age_s: float | None = None
    view_age_s: float | None = None
    retries: int = 0
    gaps: int = 0
    repaired: int = 0
    from_ns: int | None = None
    to_ns: int | None = None

    @property
    def silent_s(self) -> float | None:
        """Wall seconds for which a running feed has brought nothing new; None while it is fresh, and in replay."""
        if self.kind == "replay":
            return None
        if self.state in ("stale", "disconnected"):
            ages = [age for age in (self.age_s, self.view_age_s) if age is not None]
            return max(ages, default=None)
        old = self.view_age_s is not None and self.view_age_s > SILENT_S
        return self.view_age_s if old else None


@dataclass(frozen=True, slots=True)
class Badge:
    """A word on the state of the feed and its tone: a key of the palette."""

    text: str
    tone: Literal["good", "warning", "critical", "replay", "muted"]


def badges(status: FeedStatus, *, read_only: bool, paused: bool, ended: bool) -> list[Badge]:
    """The badges of the top bar, the most important first. ``ended``: the run has said that it is over."""
    found = [_link_badge(status, ended=ended)]
    if status.kind == "replay" and status.state == "paused":
        found.append(Badge("PAUSED", "warning"))
    if status.kind == "replay" and status.state == "ended":
        found.append(Badge("END", "muted"))
    if paused:
        found.append(Badge("PAUSED", "warning"))
    if read_only and status.kind == "live":
        found.append(Badge("READ-ONLY", "muted"))
    return found


def _link_badge(status: FeedStatus, *, ended: bool) -> Badge:
    if status.kind == "replay":
        return Badge("REPLAY", "replay")
    if status.state == "connecting":
        return Badge("CONNECTING", "warning")
    if status.state == "disconnected":
        return Badge(f"DISCONNECTED (retry {status.retries})", "critical")
    if ended:
        return Badge("ENDED", "muted")
    if status.silent_s is not None or status.state == "stale":
        return Badge(f"STALE {span(status.silent_s)}", "warning")
    return Badge("● LIVE", "good")


def is_old(status: FeedStatus, *, ended: bool) -> bool:
    """Whether the frame shows a past that may no longer hold; it is then dimmed."""
    if status.kind == "replay":
        return False
    if status.state in ("disconnected", "connecting"):
        return True
    return not ended and (status.silent_s is not None or status.state == "stale")


def why_old(status: FeedStatus) -> str:
    """One sentence for the line under an old frame: how old it is, why, and what to do."""
    age = f"last frame {span(status.silent_s)} old"
    if status.state == "disconnected":
        return f"{age}: no answer from the hub; the workers go on without it"
    if status.state == "stale":
        return f"{age}: the hub is silent"
    return f"{age}: the controller sends no view; is it running?"


def waiting_for(status: FeedStatus) -> tuple[str, str]:
    """What to show before the first view: what is waited for, and what to do."""
    if status.kind == "replay":
        if status.state == "ended":
            return (
                f"No view of a controller in {status.where}.",
                "It holds a run that no controller watched: record one with prorsa demo.",
            )
        return (
            f"Reading {status.where} …",
            "The first view of the controller in it will appear here. space plays and pauses.",
        )
    if status.state in ("connecting", "disconnected"):
        return (
            f"Waiting for a hub at {status.where} …",
            "Start one with prorsa demo or prorsa serve, or name another run with --connect.",
        )
    return (
        f"Connected to {status.where}; waiting for the controller's first view …",
        "It comes with the first tick. If it does not, see the controller's log in the run directory.",
    )
