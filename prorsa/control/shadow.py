"""A policy in shadow: it decides beside the active one, from the same, and nothing comes of it.

It is asked after the active policy, on the same state of the pool, and keeps its memory to itself: a run with a shadow
is the run without it, and the shadow's own records. It decides each time about the pool as the active policy has made
it, not as its own moves would have. Policies found by trying futures are none here: each decides in milliseconds.
"""

import dataclasses
import hashlib
from typing import Final

from prorsa.beside import Comparison
from prorsa.control.plan import Plan, Pool, make_plan
from prorsa.control.policies import Context, Policy, Want, colocated_settings, make_policy
from prorsa.errors import ConfigError
from prorsa.events import Decision, GuardEffect, ShadowDecision, ShadowScore

OFF: Final = "off"
"""In place of a name: no policy in shadow."""
_LEAVE_NO_CHOICE: Final = frozenset({"freeze", "override", "pin", "weights", "versions"})
"""Guards and overrides that decide in place of any policy."""


def make_shadow(name: str, active: str, workers: int | None = None) -> "Shadow":
    """The policy of a name, to decide in shadow of the ``active`` one.

    Raises:
        ConfigError: for a name that :func:`make_policy` refuses, the active policy's, or one that decides nothing.
    """
    if name == active:
        raise ConfigError(f"shadow {name}: that policy decides already; name another one, or {OFF}")
    if colocated_settings(name) is not None:
        raise ConfigError(f"shadow {name}: it has nothing to decide; name a policy that chooses a split, or {OFF}")
    return Shadow(make_policy(name, workers))


class Shadow:
    """A second policy and how it compares.

    Args:
        policy: its own copy; nobody else asks it.

    Attributes:
        last: what it decided last.
        comparison: how it compares so far; None before its first decision.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.last: ShadowDecision | None = None
        self.comparison: Comparison | None = None

    def decide(self, context: Context, pool: Pool, decision: Decision, *, orders_alone: bool) -> ShadowDecision:
        """What it would have decided in place of ``decision``, whose context and pool these are; never raises."""
        try:
            want = self.policy.decide(dataclasses.replace(context, acts=False))
            plan = make_plan(want, pool, context.bounds, economy=self.policy.economy, orders_alone=orders_alone)
            said = _said(self.policy, want, plan, decision)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the active policy's run goes on
            said = _failed(self.policy, error, decision)
        self.last = said
        if self.comparison is None:
            self.comparison = Comparison(self.policy.name, decision.tick_ns)
        self.comparison.add(decision, said)
        return said

    def score(self) -> ShadowScore | None:
        """How it compares so far; None before its first decision."""
        return self.comparison.score() if self.comparison else None


def _said(policy: Policy, want: Want, plan: Plan, decision: Decision) -> ShadowDecision:
    return ShadowDecision(
        decision_id=decision.decision_id,
        tick_ns=decision.tick_ns,
        upto_hub_seq=decision.upto_hub_seq,
        policy=policy.name,
        policy_state=state_hash(policy),
        wanted=want.split,
        chosen=plan.chosen,
        agrees=None if _no_choice((*plan.guards, *decision.guards)) else plan.chosen == decision.chosen,
        reason=want.reason,
        inputs=want.inputs,
        alternatives=want.alternatives,
        guards=plan.guards,
        moves=plan.moves,
        handed_over=want.handed_over,
    )


def _failed(policy: Policy, error: Exception, decision: Decision) -> ShadowDecision:
    return ShadowDecision(
        decision_id=decision.decision_id,
        tick_ns=decision.tick_ns,
        upto_hub_seq=decision.upto_hub_seq,
        policy=policy.name,
        policy_state="",
        wanted=None,
        chosen=None,
        agrees=None,
        reason=f"it failed: {type(error).__name__}: {error}",
    )


def _no_choice(guards: tuple[GuardEffect, ...]) -> bool:
    return any(guard.guard in _LEAVE_NO_CHOICE for guard in guards)


def state_hash(policy: Policy) -> str:
    """A policy's state in twelve digits, as decisions have it."""
    return hashlib.sha256(policy.state().encode()).hexdigest()[:12]
