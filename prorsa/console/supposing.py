"""What-if: another policy or split from this moment on, on a copy, in a process of its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prorsa.console.commandline import Spoken
from prorsa.console.steering import Doer

if TYPE_CHECKING:
    from prorsa.console.app import ProrsaConsole


class Supposing:
    """Asks a helper process, and shows its answer."""

    def __init__(self, app: "ProrsaConsole") -> None:
        self._app = app

    def doers(self) -> Mapping[str, Doer]:
        """What carries out which action."""
        return {"what_if": self.what_if}

    def what_if(self, spoken: Spoken | None) -> None:
        """Ask what to suppose."""
