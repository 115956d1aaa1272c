"""``NAME+guards``: a published rule once more, with the economy guards that Prorsa's own policies have."""

import dataclasses
from typing import Final

from prorsa.control.policies.analytic import relief_s
from prorsa.control.policies.base import Context, Policy, Want

SUFFIX: Final = "+guards"


class Guarded:
    """Wants what the rule wants; dwell time and payback hold for it, the payback by the forecast."""

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, rule: Policy) -> None:
        self.name = rule.name + SUFFIX
        self._rule = rule

    def decide(self, context: Context) -> Want:
        """The rule's want, with what it would save."""
        want = self._rule.decide(context)
        return dataclasses.replace(want, relief_s=relief_s(want.split, context))

    def state(self) -> str:
        """The rule's."""
        return self._rule.state()
