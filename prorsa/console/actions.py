"""Every action of the console, once: keys, footer, help page, palette, command mode and docs come from this list."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from textual.binding import Binding

Group = Literal["Screens", "Steer", "Look", "Replay", "Console"]
FeedKindName = Literal["live", "replay"]
Argument = Literal[
    "worker",
    "role",
    "split",
    "mode",
    "policy",
    "shadow",
    "decision",
    "held",
    "time",
    "factor",
    "order",
    "words",
    "file",
    "theme",
]
"""What a word of a command names; completion offers what there is of it."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do.

    Attributes:
        id: the name under which the console carries it out.
        keys: Textual key names, comma separated; the first is the one that is shown. Empty for commands without a key.
        shown: the key as it is written.
        label: one or two words for the footer.
        help: one sentence for the help page.
        feeds: on which feeds it works.
        sends: whether it sends a command, and so is off in replay and when the console is read-only.
        rank: place in the footer, where there is room; 0 is never in the footer.
        word: its name in command mode; that of the ``prorsa`` command that does the same, where there is one.
        takes: what may follow the word.
    """

    id: str
    keys: str
    shown: str
    label: str
    help: str
    group: Group
    word: str
    feeds: Literal["live", "replay", "any"] = "any"
    sends: bool = False
    rank: int = 0
    takes: tuple[Argument, ...] = ()

    def available(self, kind: FeedKindName, *, read_only: bool) -> bool:
        """Whether the action does anything on a feed of that kind."""
        return self.feeds in ("any", kind) and not (self.sends and read_only)

    def usage(self) -> str:
        """The command as it is typed: ``:pin WORKER ROLE``."""
        options = " [--for 10m] --reason TEXT" if self.sends else ""
        return " ".join([f":{self.word}", *(name.upper() for name in self.takes)]) + options


def _steer(action_id: str, key: str, label: str, text: str, rank: int, takes: tuple[Argument, ...] = ()) -> Action:
    return Action(action_id, key, key, label, text, "Steer", action_id, "live", sends=True, rank=rank, takes=takes)


def _look(
    action_id: str,
    keys: str,
    shown: str,
    label: str,
    text: str,
    word: str,
    rank: int = 0,
    takes: tuple[Argument, ...] = (),
    feeds: Literal["live", "any"] = "any",
) -> Action:
    return Action(action_id, keys, shown, label, text, "Look", word, feeds, rank=rank, takes=takes)


def _replay(
    action_id: str,
    keys: str,
    shown: str,
    label: str,
    text: str,
    word: str,
    rank: int = 0,
    takes: tuple[Argument, ...] = (),
) -> Action:
    return Action(action_id, keys, shown, label, text, "Replay", word, "replay", rank=rank, takes=takes)


def _screen(action_id: str, keys: str, shown: str, label: str, text: str, rank: int = 0) -> Action:
    return Action(action_id, keys, shown, label, text, "Screens", action_id, rank=rank)


def _console(action_id: str, keys: str, shown: str, label: str, text: str, word: str, rank: int = 0) -> Action:
    return Action(action_id, keys, shown, label, text, "Console", word, rank=rank)


PAGES: Final = ("overview", "workers", "trajectories", "forecast", "decisions", "policies", "audit", "log")
"""The screens, in the order of their number keys."""

_EXPORT: Final[tuple[Argument, ...]] = ("time", "time", "file")
_WORDS: Final[tuple[Argument, ...]] = ("words",)
_POLICY: Final[tuple[Argument, ...]] = ("policy",)
_PAGE_HELP: Final = {
    "overview": "The split, the demand, the workers and why the split is as it is.",
    "workers": "Every worker: role, state, queues, KV, rates, age of the data.",
    "trajectories": "How many in each state, the flow, the slowest and the stuck.",
    "forecast": "What is expected by target and horizon, its errors, and its sources.",
    "decisions": "What was decided, from what, which guard changed it, what followed.",
    "policies": "Which policy decides, which in shadow, where they disagree, handovers.",
    "audit": "Who asked for what, when, why, and what came of it.",
    "log": "What happened, a line an event.",
}

ACTIONS: Final[tuple[Action, ...]] = (
    *(
        Action(f"show_{page}", str(number), str(number), page.capitalize(), _PAGE_HELP[page], "Screens", page)
        for number, page in enumerate(PAGES, 1)
    ),
    _screen("details", "enter", "enter", "Details", "Everything about the row under the cursor.", rank=7),
    _screen("back", "escape", "esc", "Back", "Close the details, or take the filter or the marks off."),
    _steer("pin", "P", "Pin", "Pin the selected or marked workers to a role until a time.", 3, ("worker", "role")),
    _steer("override", "O", "Split", "Hold the split at P:D until a time.", 4, ("split",)),
    _steer("freeze", "F", "Freeze", "Let no flip start until a time; those under way finish.", 5),
    _steer("release", "U", "Release", "End a pin, the held split or the freeze.", 6, ("held",)),
    _steer("approve", "A", "Approve", "Carry out the plan that waits (mode approve).", 1, ("decision",)),
    _steer("reject", "R", "Reject", "Drop the plan that waits (mode approve).", 2, ("decision",)),
    _steer("mode", "M", "Mode", "Set the mode: auto, approve or observe.", 14, ("mode",)),
    _steer("policy", "Y", "Policy", "Let another policy decide.", 0, ("policy",)),
    _steer("shadow", "H", "Shadow", "Let a second policy decide beside the active one; off: none.", 0, ("shadow",)),
    _steer("drain", "D", "Drain", "Take workers out of the pool; their requests move on.", 8, ("worker",)),
    _steer("quarantine", "X", "Quarantine", "Send workers nothing new; what they have ends there.", 0, ("worker",)),
    _steer("readmit", "E", "Readmit", "Let a worker that is out of the pool serve again.", 0, ("worker",)),
    _replay("toggle_play", "space", "space", "Play", "Play or pause the recording.", "play", 1),
    _replay("seek_back", "left_square_bracket", "[", "−10 s", "Go back by 10 s of the run.", "rewind", 2),
    _replay("seek_on", "right_square_bracket", "]", "+10 s", "Go on by 10 s of the run.", "forward", 3),
    _replay("step", "full_stop", ".", "Step", "Go on to the next view and pause.", "step", 4),
    _replay("slower", "less_than_sign,comma", "<", "Slower", "Halve the speed.", "slower", 8),
    _replay("faster", "greater_than_sign", ">", "Faster", "Double the speed.", "faster", 9),
    _replay("speed", "", "", "Speed", "Set the speed, in run seconds a second.", "speed", 0, ("factor",)),
    _replay("seek", "t", "t", "Go to", "Go to a time of the run.", "seek", 5, ("time",)),
    _replay("next_decision", "d", "d", "Decision", "Go to the next decision that moves workers.", "next-decision", 6),
    _replay("next_flip", "f", "f", "Flip", "Go to the next flip.", "next-flip", 7),
    _replay("next_alert", "a", "a", "Alert", "Go to the next alert.", "next-alert", 10),
    _look("what_if", "W", "W", "What if", "Run another policy or split from here on a copy.", "whatif", 12, _POLICY),
    _look("mark", "space", "space", "Mark", "Mark the row under the cursor, to act on several.", "mark", feeds="live"),
    _look("pause", "p", "p", "Hold view", "Hold the display still; the run goes on.", "pause", 15, feeds="live"),
    _look("filter", "slash", "/", "Filter", "Show only rows with these words, !word: without.", "filter", 11, _WORDS),
    _look("sort", "s", "s", "Sort", "Take the table's next order.", "sort", 16, ("order",)),
    _look("zoom_in", "plus,equals_sign", "+", "Zoom in", "Show a shorter stretch of time.", "zoom-in"),
    _look("zoom_out", "minus", "-", "Zoom out", "Show a longer stretch of time.", "zoom-out"),
    _look("down", "j,down", "j", "Down", "Select the next row.", "down"),
    _look("up", "k,up", "k", "Up", "Select the row before.", "up"),
    _look("page_down", "pagedown,ctrl+f", "pgdn", "Page down", "Go down by ten rows.", "page-down"),
    _look("page_up", "pageup,ctrl+b", "pgup", "Page up", "Go up by ten rows.", "page-up"),
    _look("top", "g,home", "g", "Top", "Select the first row.", "top"),
    _look("bottom", "G,end", "G", "Bottom", "Select the last row.", "bottom"),
    _look("export", "e", "e", "CSV", "Write a stretch of the run as CSV.", "export", 0, _EXPORT),
    _look("picture", "S", "S", "Picture", "Write the screen as an SVG file.", "picture", 0, ("file",)),
    _look("theme", "T", "T", "Theme", "Change between the dark and the light theme.", "theme", 0, ("theme",)),
    _console("help", "question_mark,f1", "?", "Help", "Show all keys and commands.", "help", 10),
    _console("command", "colon", ":", "Command", "Type a command; tab completes it.", "command", 10),
    _console("palette", "ctrl+p", "^p", "Palette", "Find an action by its name.", "palette"),
    _console("leave", "q,ctrl+q", "q", "Quit", "Close the details; else the console. The run goes on.", "quit", 17),
)  # fmt: skip


def bindings(actions: Iterable[Action] = ACTIONS) -> list[Binding]:
    """Textual bindings of the actions that have keys, each under its action's id."""
    return [
        Binding(action.keys, f"do('{action.id}')", action.label, show=False, id=action.id)
        for action in actions
        if action.keys
    ]


def find(action_id: str) -> Action:
    """The action of an id."""
    return next(action for action in ACTIONS if action.id == action_id)


def by_group(actions: Iterable[Action] = ACTIONS) -> dict[str, list[Action]]:
    """The actions by group, both in the order of the list."""
    groups: dict[str, list[Action]] = {}
    for action in actions:
        groups.setdefault(action.group, []).append(action)
    return groups


def footer(kind: FeedKindName, *, read_only: bool) -> list[Action]:
    """The actions for the footer of a console, the most wanted first."""
    shown = [action for action in ACTIONS if action.rank and action.available(kind, read_only=read_only)]
    return sorted(shown, key=lambda action: action.rank)


def keys_markdown() -> str:
    """The table of keys for the documentation."""
    lines = ["| key | command | what it does | where |", "|---|---|---|---|"]
    where = {"live": "live", "replay": "replay", "any": "live, replay"}
    for group, actions in by_group().items():
        lines.append(f"| | **{group}** | | |")
        lines += [
            f"| {_key(action)} | `{_command(action)}` | {action.help} | {where[action.feeds]} |" for action in actions
        ]
    return "\n".join(lines)


def _key(action: Action) -> str:
    return f"`{action.shown}`" if action.keys else ""


def _command(action: Action) -> str:
    return " ".join([action.word, *(name.upper() for name in action.takes)])
