"""What-if: another policy or split from this moment on, on a copy, in a process of its own that answers in JSON."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from prorsa.clock import seconds
from prorsa.console.commandline import Spoken
from prorsa.console.components.asking import AskFields
from prorsa.console.forms import POLICIES, Field
from prorsa.console.pages.what_if import Supposition, WhatIfDetail
from prorsa.console.steering import Doer
from prorsa.console.text import parse_duration_s
from prorsa.errors import InputError
from prorsa.futures import WhatIf

if TYPE_CHECKING:
    from prorsa.console.app import ProrsaConsole

DEFAULT_FOR: Final = "2m"

Helper = Callable[[Path, str, float, float], list[str]]
"""The command that answers: journal, policy, moment and how far to go, both in run seconds."""


def helper_command(journal: Path, policy: str, at_s: float, for_s: float) -> list[str]:
    """``prorsa whatif``, which prints its answer as JSON."""
    moment = ["--at", f"{at_s:.3f}s", "--for", f"{for_s:.3f}s"]
    return [sys.executable, "-m", "prorsa", "whatif", policy, "--journal", str(journal), *moment, "--json"]


@dataclass(frozen=True, slots=True)
class _Question:
    policy: str
    for_s: float


class Supposing:
    """Asks a helper process, and shows its answer. The console itself knows no policy and no simulator.

    Attributes:
        helper: makes the command of the process that answers.
    """

    def __init__(self, app: "ProrsaConsole", journal: Path | None, helper: Helper = helper_command) -> None:
        self._app = app
        self._journal = journal
        self.helper = helper

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        return {"what_if": self.what_if}

    def what_if(self, spoken: Spoken | None) -> None:
        """Suppose the policy that was named, or ask for one.

        Raises:
            InputError: without the run's journal on this machine, or before anything is known of the run.
        """
        if self._journal is None:
            raise InputError("what-if reads the run's journal: open the console on its directory, where that is")
        if self._app.model.view is None:
            raise InputError("there is no moment to begin from before the controller's first view")
        named = spoken.word(0) if spoken is not None else None
        if spoken is not None and named is not None:
            self._begin(_Question(named, parse_duration_s(spoken.for_text or DEFAULT_FOR)))
            return
        fields = (
            Field("policy", "policy or split", hint=", ".join(POLICIES), check=_given),
            Field("for", "for", value=DEFAULT_FOR, hint="how far both go on, in run time", check=parse_duration_s),
        )

        def go(answers: dict[str, str] | None) -> None:
            if answers is not None:
                self._begin(_Question(answers["policy"].strip(), parse_duration_s(answers["for"])))

        self._app.push_screen(AskFields(fields, "What if another policy decided from here on", self._app.look), go)

    def _begin(self, question: _Question) -> None:
        assert self._journal is not None
        tick_s = self._app.model.tick_s or 0.0
        now_ns = self._app.feed.status().now_ns
        at_s = min(tick_s, seconds(now_ns)) if now_ns is not None else tick_s
        supposition = Supposition(question.policy, at_s, question.for_s, time.monotonic())
        self._app.frame.open_detail(WhatIfDetail(self._app.model, self._app.look, supposition))
        self._app.start(self._ask(supposition, self.helper(self._journal, question.policy, at_s, question.for_s)))

    async def _ask(self, supposition: Supposition, command: list[str]) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        try:
            supposition.found = msgspec.json.decode(out, type=WhatIf)
        except msgspec.DecodeError:
            supposition.failure = err.decode(errors="replace").strip().removeprefix("prorsa: ") or "it gave no answer"
        self._app.redraw()


def _given(text: str) -> str:
    if not text.strip():
        raise InputError(f"name a policy or a split: {', '.join(POLICIES)}")
    return text
