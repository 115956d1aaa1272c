"""What each policy has decided so far, counted from the decisions that this console has seen. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from prorsa.events import Decision


@dataclass(slots=True)
class PolicyStint:
    """A policy at work from ``begin_ns`` on: its decisions by status, and what became of its wishes.

    Attributes:
        wishes: decisions in which it wanted another split than the pool had.
        changed: of those, the ones in which something else was chosen.
        guards: how often each guard or override spoke.
        moves: workers that its applied decisions moved.
    """

    policy: str
    config_hash: str
    begin_ns: int
    last: Decision
    decisions: Counter[str] = field(default_factory=Counter)
    guards: Counter[str] = field(default_factory=Counter)
    wishes: int = 0
    changed: int = 0
    moves: int = 0

    @property
    def total(self) -> int:
        """Decisions of this stint."""
        return self.decisions.total()

    def add(self, decision: Decision) -> None:
        """Count a decision."""
        self.last = decision
        self.decisions[decision.status] += 1
        self.guards.update({guard.guard for guard in decision.guards})
        wished = (
            decision.wanted.prefill != decision.current.prefill or decision.wanted.decode != decision.current.decode
        )
        self.wishes += wished
        self.changed += wished and decision.wanted != decision.chosen
        self.moves += len(decision.moves) if decision.status == "applied" else 0


class PolicyRecord:
    """The stints of the run, oldest first; a new one begins where the policy changes."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self.stints: list[PolicyStint] = []

    def add(self, decision: Decision) -> None:
        """Count a decision for the policy that made it; one that was seen already is not counted again."""
        stint = self.stints[-1] if self.stints else None
        if stint is not None and decision.decision_id <= stint.last.decision_id:
            return
        if stint is None or stint.policy != decision.policy:
            stint = PolicyStint(decision.policy, decision.config_hash, decision.tick_ns, decision)
            self.stints.append(stint)
            del self.stints[: -self._limit]
        stint.add(decision)
