"""Hooks into SGLang that can be missing, can fail, and never raise into the scheduler.

A :class:`Feature` is a set of hooks that are of use only together: it is installed whole or not at all.
"""

import logging
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Literal, ParamSpec

_Arguments = ParamSpec("_Arguments")

logger = logging.getLogger(__name__)

PACKAGE: Final = "sglang.srt"

Kind = Literal["before", "after", "replace"]


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. ``target`` is a dotted name below :data:`PACKAGE`.

    ``before`` is called with the arguments, ``after`` with the result and the arguments; what they return is ignored.
    ``replace`` is called instead and must not raise.
    """

    kind: Kind
    target: str
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Feature:
    """Hooks that are installed together."""

    name: str
    hooks: tuple[Hook, ...]


class Failures:
    """Counts what went wrong in hooks and in the plugin's thread, and says each thing once."""

    def __init__(self, report: Callable[[str], object] = lambda _: None) -> None:
        self.counts: Counter[str] = Counter()
        self.report = report
        """Called once for each place, with a text."""

    def note(self, place: str, error: Exception) -> None:
        """Take note of an error at ``place``; call it in an ``except`` block."""
        self.counts[place] += 1
        if self.counts[place] == 1:
            text = f"Prorsa's plugin failed in {place} and goes on without it: {type(error).__name__}: {error}"
            logger.error(text, exc_info=error)
            self.report(text)

    def guard(self, place: str, call: Callable[_Arguments, object]) -> Callable[_Arguments, None]:
        """``call`` without its result and without its errors."""

        @wraps(call)
        def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - a task root: an error here would end the scheduler
                self.note(place, error)

        return guarded


@dataclass(frozen=True, slots=True)
class Installed:
    """Which features took, and for each that did not the first target that this SGLang does not have."""

    names: tuple[str, ...]
    missing: dict[str, str]


def install(features: Iterable[Feature], failures: Failures) -> Installed:
    """Register the hooks of each feature whose targets all exist. SGLang applies them when all plugins have run."""
    names: list[str] = []
    missing: dict[str, str] = {}
    for feature in features:
        absent = next((hook.target for hook in feature.hooks if not exists(hook.target)), None)
        if absent is None:
            names.append(feature.name)
            for hook in feature.hooks:
                _register(hook, failures)
        else:
            missing[feature.name] = absent
    return Installed(tuple(names), missing)


def exists(target: str) -> bool:
    """Whether this SGLang has the target."""
    try:
        pkgutil.resolve_name(f"{PACKAGE}.{target}")
    except (ImportError, AttributeError, ValueError):
        return False
    return True


def patched(targets: Iterable[str]) -> tuple[str, ...] | None:
    """Those targets that SGLang says it has patched; None where it cannot say."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    known = getattr(HookRegistry, "_patched", None)
    return None if known is None else tuple(target for target in targets if f"{PACKAGE}.{target}" in known)


def _register(hook: Hook, failures: Failures) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    call = hook.call if hook.kind == "replace" else failures.guard(hook.target, hook.call)
    HookRegistry.register(f"{PACKAGE}.{hook.target}", call, HookType(hook.kind))
