"""``default``: the shipped choice, `lookahead` for workers with data-parallel attention, `analytic` for all others.

That is how simulated runs rank them: with lock-step ranks the ratio formula leaves something to gain, with plain tensor
parallelism look-ahead flips more than pays (``docs/judging-results.md``).
"""

from prorsa.control.lookahead import Lookahead
from prorsa.control.policies.analytic import Analytic
from prorsa.control.policies.base import Context, Want


class Default:
    """By the workers' profile; without one the ratio formula does with their own counters."""

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
        profile = context.cost.profile
        chosen = self._lookahead if profile is not None and profile.ranks > 1 else self._analytic
        return chosen.decide(context)

    def state(self) -> str:
        """That of look-ahead; the ratio formula remembers nothing."""
        return self._lookahead.state()
