"""Every action of the console, once: key bindings, footer, help page and command palette are made from this list."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from textual.binding import Binding

Group = Literal["Steer", "Look", "Replay", "Console"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do.

    Attributes:
        id: the name; ``ProrsaConsole.action_<id>`` carries it out.
        keys: Textual key names, comma separated; the first is the one that is shown.
        shown: the key as it is written.
        label: one or two words for the footer.
        help: one sentence for the help page.
        feeds: on which feeds it works.
        sends: whether it sends a command, and so is off in replay and when the console is read-only.
        rank: place in the footer, where there is room; 0 is never in the footer.
    """

    id: str
    keys: str
    shown: str
    label: str
    help: str
    group: Group
    feeds: Literal["live", "replay", "any"] = "any"
    sends: bool = False
    rank: int = 0

    def available(self, kind: Literal["live", "replay"], *, read_only: bool) -> bool:
        """Whether the action does anything on a feed of that kind."""
        return self.feeds in ("any", kind) and not (self.sends and read_only)


def _steer(action_id: str, keys: str, label: str, text: str, rank: int, shown: str | None = None) -> Action:
    return Action(action_id, keys, shown or keys, label, text, "Steer", feeds="live", sends=True, rank=rank)


ACTIONS: Final[tuple[Action, ...]] = (
    _steer("pin", "P", "Pin", "Pin the selected worker to a role until a time.", 3),
    _steer("override", "O", "Split", "Hold the split at P:D until a time.", 4),
    _steer("freeze", "F", "Freeze", "Let no flip start until a time; those under way finish.", 5),
    _steer("release", "U", "Release", "End a pin, the held split or the freeze.", 6),
    _steer("approve", "A", "Approve", "Carry out the plan that waits (mode approve).", 1),
    _steer("reject", "R", "Reject", "Drop the plan that waits (mode approve).", 2),
    _steer("mode", "M", "Mode", "Set the mode: auto, approve or observe.", 7),
    _steer("policy", "Y", "Policy", "Let another policy decide.", 0),
    Action("toggle_play", "space", "space", "Play", "Play or pause the recording.", "Replay", "replay", rank=1),
    Action("seek_back", "left_square_bracket", "[", "−10 s", "Go back by 10 s of the run.", "Replay", "replay", rank=2),
    Action("seek_on", "right_square_bracket", "]", "+10 s", "Go on by 10 s of the run.", "Replay", "replay", rank=3),
    Action("step", "full_stop", ".", "Step", "Go on to the next view and pause.", "Replay", "replay", rank=4),
    Action("slower", "less_than_sign,comma", "<", "Slower", "Halve the speed.", "Replay", "replay", rank=5),
    Action("faster", "greater_than_sign", ">", "Faster", "Double the speed.", "Replay", "replay", rank=6),
    Action("seek", "t", "t", "Go to", "Go to a time of the run.", "Replay", "replay", rank=7),
    Action("pause", "p", "p", "Hold view", "Hold the display still; the run goes on.", "Look", "live", rank=9),
    Action("zoom_in", "plus,equals_sign", "+", "Zoom in", "Show a shorter stretch of time.", "Look"),
    Action("zoom_out", "minus", "-", "Zoom out", "Show a longer stretch of time.", "Look"),
    Action("sort", "s", "s", "Sort", "Sort the workers by the next column: id, role, KV, queue.", "Look", rank=10),
    Action("down", "j,down", "j", "Down", "Select the next worker.", "Look"),
    Action("up", "k,up", "k", "Up", "Select the worker before.", "Look"),
    Action("top", "g,home", "g", "Top", "Select the first worker.", "Look"),
    Action("bottom", "G,end", "G", "Bottom", "Select the last worker.", "Look"),
    Action("help", "question_mark,f1", "?", "Help", "Show all keys.", "Console", rank=8),
    Action("palette", "colon,ctrl+p", ":", "Commands", "Find an action by its name.", "Console"),
    Action("leave", "q,ctrl+q", "q", "Quit", "Close the console; the run goes on.", "Console", rank=11),
)


def bindings(actions: Iterable[Action] = ACTIONS) -> list[Binding]:
    """Textual bindings of the actions, each under its action's id."""
    return [Binding(action.keys, action.id, action.label, show=False, id=action.id) for action in actions]


def by_group(actions: Iterable[Action] = ACTIONS) -> dict[str, list[Action]]:
    """The actions by group, both in the order of the list."""
    groups: dict[str, list[Action]] = {}
    for action in actions:
        groups.setdefault(action.group, []).append(action)
    return groups


def footer(kind: Literal["live", "replay"], *, read_only: bool) -> list[Action]:
    """The actions for the footer of a console, the most wanted first."""
    shown = [action for action in ACTIONS if action.rank and action.available(kind, read_only=read_only)]
    return sorted(shown, key=lambda action: action.rank)


def keys_markdown() -> str:
    """The table of keys for the documentation."""
    lines = ["| key | action | what it does | where |", "|---|---|---|---|"]
    where = {"live": "live", "replay": "replay", "any": "live, replay"}
    rows = [f"| `{action.shown}` | {action.label} | {action.help} | {where[action.feeds]} |" for action in ACTIONS]
    return "\n".join([*lines, *rows])
