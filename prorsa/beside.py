"""How a policy in shadow compares with the one that decides, and when a policy handed over; from their events. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from prorsa.clock import seconds
from prorsa.events import Decision, ShadowDecision, ShadowScore, Stamped

KEPT: Final = 200
"""Disagreements and handovers that are kept, the latest."""
REPORTED: Final = 10
"""Disagreements of a run's report, the latest."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two decisions on the same state that chose different splits."""

    decision: Decision
    said: ShadowDecision

    def to_json(self) -> dict[str, object]:
        """As a run's report has it."""
        return {
            "t_s": round(seconds(self.decision.tick_ns), 3),
            "decision_id": self.decision.decision_id,
            "decided": str(self.decision.chosen),
            "shadow": str(self.said.chosen),
            "reason": self.decision.reason,
            "shadow_reason": self.said.reason,
        }


class Comparison:
    """One policy in shadow beside those that decided meanwhile; see :class:`ShadowScore` for what is counted.

    Attributes:
        policy: the one in shadow.
        disagreements: the latest, oldest first.
    """

    def __init__(self, policy: str, since_ns: int) -> None:
        self.policy = policy
        self.disagreements: deque[Disagreement] = deque(maxlen=KEPT)
        self._since_ns = since_ns
        self._decisions = self._compared = self._agreed = 0
        self._would_move = self._moved = self._failed = self._handed_over = 0
        self._more = self._apart = 0

    def add(self, decision: Decision, said: ShadowDecision) -> None:
        """Count a decision and what the shadow said beside it."""
        self._decisions += 1
        self._failed += said.chosen is None
        self._handed_over += said.handed_over is not None
        if said.agrees is None or said.chosen is None:
            return
        more = said.chosen.prefill - decision.chosen.prefill
        self._more += more
        self._apart += abs(more)
        self._compared += 1
        self._agreed += said.agrees
        self._would_move += bool(said.moves)
        self._moved += bool(decision.moves)
        if not said.agrees:
            self.disagreements.append(Disagreement(decision, said))

    def score(self) -> ShadowScore:
        """The counts so far."""
        compared = self._compared
        return ShadowScore(
            policy=self.policy,
            since_ns=self._since_ns,
            decisions=self._decisions,
            compared=compared,
            agreed=self._agreed,
            prefill_more=self._more / compared if compared else None,
            prefill_apart=self._apart / compared if compared else None,
            would_move=self._would_move,
            moved=self._moved,
            failed=self._failed,
            handed_over=self._handed_over,
        )

    def to_json(self) -> dict[str, object]:
        """As a run's report has it: the counts, the share of agreement, the latest disagreements."""
        score = self.score()
        plain: dict[str, object] = msgspec.to_builtins(score)
        latest = list(self.disagreements)[-REPORTED:]
        return {
            **plain,
            "agreement": agreement(score),
            "disagreements": [disagreement.to_json() for disagreement in latest],
        }


def agreement(score: ShadowScore) -> float | None:
    """Share of the compared decisions that chose the same split; None where none could be compared."""
    return score.agreed / score.compared if score.compared else None


def compare_shadow(stamped_events: Iterable[Stamped]) -> Comparison | None:
    """The last policy that decided in shadow in a recording, from its decisions; None where there was none."""
    comparison: Comparison | None = None
    decision: Decision | None = None
    for stamped in stamped_events:
        event = stamped.event
        if isinstance(event, Decision):
            decision = event
        elif isinstance(event, ShadowDecision) and decision is not None:
            if comparison is None or comparison.policy != event.policy:
                comparison = Comparison(event.policy, event.tick_ns)
            comparison.add(decision, event)
    return comparison


@dataclass(slots=True)
class Handover:
    """A policy let another decide from ``begin_ns`` on, until ``end_ns``: None while it still does."""

    policy: str
    in_shadow: bool
    begin_ns: int
    reason: str
    end_ns: int | None = None


class Handovers:
    """When policies handed over, why, and when they decided again; of the active one and of the one in shadow.

    Attributes:
        all: the latest, oldest first.
    """

    def __init__(self) -> None:
        self.all: deque[Handover] = deque(maxlen=KEPT)
        self._open: dict[bool, Handover] = {}

    def add(self, said: Decision | ShadowDecision) -> None:
        """Take a decision, or one in shadow; a policy that is changed while it hands over has ended that."""
        in_shadow = isinstance(said, ShadowDecision)
        under_way = self._open.get(in_shadow)
        if under_way is not None and (said.handed_over is None or said.policy != under_way.policy):
            under_way.end_ns = said.tick_ns
            del self._open[in_shadow]
            under_way = None
        if said.handed_over is not None and under_way is None:
            self._open[in_shadow] = Handover(said.policy, in_shadow, said.tick_ns, said.handed_over)
            self.all.append(self._open[in_shadow])
