"""What each policy has decided so far, counted from the decisions that this console has seen. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prorsa.beside import Comparison, Disagreement, Handovers
from prorsa.clock import seconds
from prorsa.events import Decision, ShadowDecision


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


class ShadowRecord:
    """What the policy in shadow said beside each decision that this console has seen, and who handed over when.

    Attributes:
        last: what it said last.
        handovers: of the active policy and of the one in shadow.
    """

    def __init__(self, limit: int = 4096) -> None:
        self.last: ShadowDecision | None = None
        self.handovers = Handovers()
        self._limit = limit
        self._decision: Decision | None = None
        self._comparison: Comparison | None = None
        self._compared: list[tuple[float, bool]] = []

    def decide(self, decision: Decision) -> None:
        """Take a decision of the active policy; one that was seen already is not counted again."""
        if self._decision is not None and decision.decision_id <= self._decision.decision_id:
            return
        self._decision = decision
        self.handovers.add(decision)

    def say(self, said: ShadowDecision) -> None:
        """Take what the policy in shadow said beside the decision that came last."""
        if self._decision is None or said.decision_id != self._decision.decision_id or said == self.last:
            return
        if self._comparison is None or self._comparison.policy != said.policy:
            self._comparison = Comparison(said.policy, said.tick_ns)
        self.last = said
        self._comparison.add(self._decision, said)
        self.handovers.add(said)
        if said.agrees is not None:
            self._compared.append((seconds(said.tick_ns), said.agrees))
            del self._compared[: -self._limit]

    def disagreements(self) -> Sequence[Disagreement]:
        """The latest of the policy that is or was last in shadow, oldest first."""
        return () if self._comparison is None else tuple(self._comparison.disagreements)

    def disagreed(self, from_s: float, to_s: float) -> float | None:
        """Share of the decisions with ``from_s < t_s <= to_s`` that disagreed; None where none was compared."""
        begin = bisect_left(self._compared, (from_s, True), key=lambda pair: (pair[0], True))
        found = []
        for t_s, agrees in self._compared[begin:]:
            if t_s > to_s:
                break
            if t_s > from_s:
                found.append(not agrees)
        return sum(found) / len(found) if found else None
