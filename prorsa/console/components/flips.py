"""Flips: those under way with the state they are in, and the latest that have ended with what they cost."""

from collections.abc import Sequence

from prorsa.console.components.drawing import Drawing
from prorsa.console.look import Line, Look, fit, fit_words
from prorsa.console.model import ConsoleModel, FlipEntry
from prorsa.console.text import count, run_time, span

_ROLES_CELLS = 17


class FlipPanel(Drawing):
    """A line a flip, the newest first."""

    def __init__(self, model: ConsoleModel, look: Look) -> None:
        super().__init__(model, look, id="flips", classes="panel")

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """As many as there is room for."""
        newest = list(self.model.flips.values())[::-1][:height]
        if not newest:
            return [self.line().gap().add("no worker has changed its role yet", "muted")]
        ids = max(len(entry.latest.worker_id) for entry in newest)
        return [self._line(entry, min(ids, 22), width) for entry in newest]

    def _line(self, entry: FlipEntry, ids: int, width: int) -> Line:
        flip = entry.latest
        line = self.line().gap().add(run_time(round(entry.t_s * 1e9)), "muted").gap()
        line.add(fit(flip.worker_id, ids, self.look), "strong").gap()
        start = line.width
        line.add(flip.from_role, flip.from_role).add(f" {self.look.glyphs.arrow} ", "muted").add(
            flip.to_role, flip.to_role
        )
        line.to(start + _ROLES_CELLS + 1)
        tone = "warning" if entry.under_way else "good" if flip.state == "serving" else "critical"
        line.add(fit(flip.state, 11, self.look), tone).gap()
        line.add(fit(span(flip.elapsed_s), 6, self.look, align="right")).gap(2)
        room = width - line.width - 1
        return (
            line.add(fit_words(self._cost(entry), room, self.look), "muted")
            if room >= len("9 moved, 9 KV lost")
            else line
        )

    def _cost(self, entry: FlipEntry) -> str:
        flip = entry.latest
        return f"{count(flip.requests_resumed)} moved, {count(flip.kv_tokens_dropped)} KV lost"
