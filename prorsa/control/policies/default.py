"""``default``: the shipped choice, `lookahead` where the workers' profile is known, `analytic` where it is not.

Look-ahead needs a profile for its model; the ratio formula does with the workers' own counters. That look-ahead is the
better of the two wherever it can decide is what simulated runs say (``docs/judging-results.md``).
"""

from dataclasses import replace

from prorsa.control.lookahead import Lookahead
from prorsa.control.policies.analytic import Analytic
from prorsa.control.policies.base import Context, Want


class Default:
    """Look-ahead with a profile, the ratio formula without one."""

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self._lookahead = Lookahead(name)
        self._analytic = Analytic(name)

    def decide(self, context: Context) -> Want:
        """What the one of the two that can wants."""
        if context.cost.profile is None:
            return replace(self._analytic.decide(context), decided_by="analytic")
        return replace(self._lookahead.decide(context), decided_by="lookahead")

    def state(self) -> str:
        """What both remember: which of them decides is settled by the configuration."""
        return f"{self._lookahead.state()} {self._analytic.state()}"
