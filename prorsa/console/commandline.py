"""Command mode: what is typed after ``:``, taken apart and completed. The verbs are those of the command line. Pure."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from prorsa.console.actions import Action, Argument
from prorsa.console.forms import POLICIES, SHADOWS
from prorsa.console.model import ConsoleModel
from prorsa.errors import InputError

_OPTIONS: Final = ("--for", "--reason")
_ROLES: Final = ("prefill", "decode")
_MODES: Final = ("auto", "approve", "observe")
_THEMES: Final = ("dark", "light")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A command as it was typed: the action, its words in order, and the options."""

    action: Action
    words: tuple[str, ...] = ()
    for_text: str | None = None
    reason: str | None = None

    def word(self, index: int) -> str | None:
        """The word at a place; None where fewer were typed."""
        return self.words[index] if index < len(self.words) else None


def parse(text: str, available: Sequence[Action]) -> Spoken:
    """Take a command apart.

    Raises:
        InputError: for an unknown command, an option that it does not take, or more words than it takes.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{text!r}: {error}; close the quotation") from error
    if not parts:
        raise InputError("type a command; tab completes it, ? lists all")
    action = _action(parts[0], available)
    words, options = _options(parts[1:], action)
    most = len(action.takes)
    if "words" not in action.takes and len(words) > most:
        raise InputError(f"{action.word} takes {most or 'no'} words: {action.usage()}")
    return Spoken(action, tuple(words), options.get("--for"), options.get("--reason"))


def _action(word: str, available: Sequence[Action]) -> Action:
    exact = [action for action in available if action.word == word]
    found = exact or [action for action in available if action.word.startswith(word)]
    if len(found) == 1:
        return found[0]
    names = [action.word for action in found] or get_close_matches(word, [action.word for action in available])
    hint = f"did you mean {', '.join(names)}?" if names else "? lists what there is"
    raise InputError(f"no command {word!r} here; {hint}")


def _options(parts: Sequence[str], action: Action) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    options: dict[str, str] = {}
    rest = list(parts)
    while rest:
        part = rest.pop(0)
        if part not in _OPTIONS:
            words.append(part)
            continue
        if not action.sends and not (action.id == "what_if" and part == "--for"):
            raise InputError(f"{action.word} takes no {part}: {action.usage()}")
        if not rest:
            raise InputError(f"{part} takes a value: {action.usage()}")
        # The reason is the rest of the line, so that it needs no quotation marks.
        options[part] = " ".join(rest) if part == "--reason" else rest.pop(0)
        if part == "--reason":
            break
    return words, options


def complete(text: str, available: Sequence[Action], model: ConsoleModel) -> list[str]:
    """Whole lines that ``text`` may become, the likeliest first; none while a reason is typed."""
    if "--reason " in text:
        return []
    head, _, last = text.rpartition(" ")
    if not head:
        return [action.word for action in available if action.word.startswith(last)]
    try:
        spoken = parse(head, available)
    except InputError:
        return []
    offers = list(_candidates(spoken, model))
    if spoken.action.sends and (last.startswith("-") or not offers):
        offers += [option for option in _OPTIONS if option not in head]
    return [f"{head} {offer}" for offer in offers if offer.startswith(last) and offer != last]


def _candidates(spoken: Spoken, model: ConsoleModel) -> Iterable[str]:
    takes = spoken.action.takes
    if len(spoken.words) >= len(takes):
        return ()
    return _of_kind(takes[len(spoken.words)], model)


def _of_kind(kind: Argument, model: ConsoleModel) -> Iterable[str]:
    workers = () if model.view is None else model.view.workers
    match kind:
        case "worker":
            return [worker.worker_id for worker in workers]
        case "role":
            return _ROLES
        case "mode":
            return _MODES
        case "theme":
            return _THEMES
        case "policy":
            return POLICIES
        case "shadow":
            return SHADOWS
        case "held":
            lives = model.requests.in_force()
            return [life.target or {"override": "split"}.get(life.verb, life.verb) for life in lives]
        case "split":
            return [f"{prefill}:{len(workers) - prefill}" for prefill in range(1, len(workers))]
        case "decision":
            return () if model.proposal is None else [str(model.proposal.decision_id)]
        case _:
            return ()
