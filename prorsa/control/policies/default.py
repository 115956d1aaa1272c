"""``default``: the shipped choice, `lookahead` where the workers' profile is known and `analytic` where it is not."""

from prorsa.control.lookahead import Lookahead
from prorsa.control.policies.analytic import Analytic
from prorsa.control.policies.base import Context, Want


class Default:
    """Look-ahead needs a profile for its model of the pool; the ratio formula does with the workers' own counters."""

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
        chosen = self._analytic if context.cost.profile is None else self._lookahead
        return chosen.decide(context)

    def state(self) -> str:
        """That of look-ahead; the ratio formula remembers nothing."""
        return self._lookahead.state()
