"""What an operator does to the run: asks, shows what would come of it, sends, and follows what becomes of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from prorsa.console import forms
from prorsa.console.commander import Commander
from prorsa.console.commandline import Spoken
from prorsa.console.components.dialogs import ActionDialog
from prorsa.console.components.workers import WorkerTable
from prorsa.console.forms import Ask, Form
from prorsa.errors import InputError, ProrsaError, UnavailableError
from prorsa.events import Command, WorkerView

if TYPE_CHECKING:
    from prorsa.console.app import ProrsaConsole

REHEARSE_AFTER_S: Final = 0.3
"""Wall seconds without another answer in a dialog before the controller is asked what would come of them."""

Doer = Callable[[Spoken | None], object]
"""Carries out an action, as a key started it (None) or as it was typed."""


class Steering:
    """Dialogs and commands. Without a commander nothing can be sent."""

    def __init__(self, app: "ProrsaConsole", commander: Commander | None) -> None:
        self._app = app
        self._model = app.model
        self._commander = commander
        self.dialog: ActionDialog | None = None
        self._rehearsal = 0

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        return {
            "pin": self.pin,
            "override": self.override,
            "freeze": lambda spoken: self._open(forms.freeze, spoken),
            "release": self.release,
            "approve": lambda spoken: self.answer_plan("approve", spoken),
            "reject": lambda spoken: self.answer_plan("reject", spoken),
            "mode": lambda spoken: self._open(forms.mode, spoken, "mode"),
            "policy": lambda spoken: self._open(forms.policy, spoken, "policy"),
            "shadow": lambda spoken: self._open(forms.shadow, spoken, "policy"),
            "drain": lambda spoken: self.take_out("drain", spoken),
            "quarantine": lambda spoken: self.take_out("quarantine", spoken),
            "readmit": self.readmit,
        }

    # --- what is asked -----------------------------------------------------------------------------------------------

    def pin(self, spoken: Spoken | None) -> None:
        """Ask how to pin the workers that are meant."""
        workers = self._workers(spoken)
        if workers:
            self._ask(forms.pin(self._model, workers), spoken, {"role": spoken.word(1) if spoken else None})

    def override(self, spoken: Spoken | None) -> None:
        """Ask for a split to hold."""
        self._open(forms.override, spoken, "split")

    def release(self, spoken: Spoken | None) -> None:
        """Ask what to release."""
        if not self._steerable():
            return
        selected = self._selected()
        targets = forms.releasable(self._model, selected.worker_id if selected is not None else None)
        if targets:
            form = forms.release(self._model, tuple(targets))
            self._ask(form, spoken, {"target": spoken.word(0) if spoken else None})
        else:
            self._app.notify("Nothing is held: no pin, no split, no freeze.")

    def answer_plan(self, verb: Literal["approve", "reject"], spoken: Spoken | None) -> None:
        """Approve or reject the plan that waits."""
        if not self._steerable():
            return
        plan = self._model.proposal
        if plan is None:
            self._app.notify("No plan waits for approval; plans wait in mode approve only.")
            return
        named = spoken.word(0) if spoken is not None else None
        if named not in (None, str(plan.decision_id)):
            raise InputError(f"decision {named} does not wait for approval; {plan.decision_id} does")
        self._ask(forms.answer_plan(self._model, verb), spoken, {})

    def take_out(self, verb: Literal["drain", "quarantine"], spoken: Spoken | None) -> None:
        """Ask for how long the workers that are meant are to be out of the pool."""
        workers = self._workers(spoken)
        if workers:
            self._ask(forms.absence(self._model, verb, workers), spoken, {})

    def readmit(self, spoken: Spoken | None) -> None:
        """Ask why the workers that are meant may serve again."""
        workers = self._workers(spoken)
        if workers:
            self._ask(forms.readmit(self._model, workers), spoken, {})

    def _open(self, make: Callable[..., Form], spoken: Spoken | None, first: str | None = None) -> None:
        if self._steerable():
            self._ask(make(self._model), spoken, {} if first is None or spoken is None else {first: spoken.word(0)})

    def _steerable(self) -> bool:
        """Whether there is a view to act on; says so if there is none."""
        if self._model.view is None:
            self._app.notify("There is nothing to steer before the controller's first view.", severity="warning")
        return self._model.view is not None

    def _selected(self) -> WorkerView | None:
        """The worker under the cursor; on a page without workers that of the overview."""
        table = self._app.frame.page.table
        overview = self._app.frame.pages["overview"].table
        chosen = table if isinstance(table, WorkerTable) else overview
        return chosen.selected if isinstance(chosen, WorkerTable) else None

    def _workers(self, spoken: Spoken | None) -> Sequence[WorkerView]:
        """The worker that was named, else the marked ones, else the one under the cursor."""
        if not self._steerable():
            return ()
        named = spoken.word(0) if spoken is not None else None
        if named is not None:
            worker = self._model.worker(named)
            if worker is None:
                raise InputError(f"no worker {named!r} in the latest view; tab lists them")
            return (worker,)
        table = self._app.frame.page.table
        if isinstance(table, WorkerTable) and table.marks:
            return table.marked()
        worker = self._selected()
        return () if worker is None else (worker,)

    def _ask(self, form: Form, spoken: Spoken | None, given: Mapping[str, str | None]) -> None:
        answers = {name: value for name, value in given.items() if value is not None}
        if spoken is not None and spoken.for_text is not None:
            answers["for"] = spoken.for_text
        if spoken is not None and spoken.reason is not None:
            answers["reason"] = spoken.reason
        self.dialog = ActionDialog(form.given(answers), self._app.look, self.rehearse)
        self._app.push_screen(self.dialog, self._asked)

    def _asked(self, asks: tuple[Ask, ...] | None) -> None:
        self.dialog = None
        for ask in asks or ():
            self._app.start(self._send(ask))
        table = self._app.frame.page.table
        if asks and table is not None and table.marks:
            table.marks.clear()

    # --- what is sent ------------------------------------------------------------------------------------------------

    def rehearse(self, asks: tuple[Ask, ...]) -> None:
        """Ask the controller what would come of requests, once no newer question comes."""
        self._rehearsal += 1
        if asks:
            self._app.start(self._rehearse(asks, self._rehearsal))

    async def _rehearse(self, asks: tuple[Ask, ...], rehearsal: int) -> None:
        await asyncio.sleep(REHEARSE_AFTER_S)
        if self.dialog is None or rehearsal != self._rehearsal:
            return
        results = [(ask, await self._dry_run(ask)) for ask in asks]
        if self.dialog is not None and rehearsal == self._rehearsal:
            self.dialog.told(results)

    async def _dry_run(self, ask: Ask) -> Command | ProrsaError:
        assert self._commander is not None
        try:
            return await self._commander.send(self._commander.prepare(ask, dry_run=True))
        except ProrsaError as error:
            return error

    async def _send(self, ask: Ask) -> None:
        assert self._commander is not None
        command = self._commander.prepare(ask)
        requests = self._model.requests
        life = requests.command(command, mine=True, t_ns=self._model.now_ns)
        self._app.redraw()
        try:
            answer = await self._commander.send(command)
        except UnavailableError as error:
            requests.unanswered(command.request_id, str(error))
            self._say(f"{life.what()}: no answer", str(error))
        except ProrsaError as error:
            self._answered(msgspec.structs.replace(command, state="rejected", detail=str(error)))
        else:
            self._answered(answer)
        self._app.redraw()

    def _answered(self, answer: Command) -> None:
        life = self._model.requests.command(answer, mine=True, t_ns=self._model.now_ns)
        if answer.state == "rejected":
            self._say(f"{life.what()}: rejected", answer.detail or "no reason given")

    def _say(self, title: str, text: str) -> None:
        self._app.notify(text, title=title, severity="error", markup=False)
