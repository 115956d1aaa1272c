"""What trajectories tell of themselves and of their siblings, kept as columns."""

from prorsa.forecast.columns import Columns
from prorsa.forecast.effects import Effects
from prorsa.forecast.fates import Fates
from prorsa.forecast.groups import Groups
from prorsa.forecast.stems import Stems


class Kin:
    """All that goes by groups.

    Attributes:
        groups: who computes the prompt that a group begins with.
        stems: which ranks hold it.
        fates: how soon its members end.
        effects: what their answers, tools and results are like.
    """

    def __init__(self, columns: Columns) -> None:
        self.groups = Groups(columns)
        self.stems = Stems(columns)
        self.fates = Fates(columns)
        self.effects = Effects(columns)

    def dispatched(self, slot: int, group_id: str | None) -> bool:
        """A trajectory begins. Returns whether it has siblings before it; one of no group has none."""
        self.stems.dispatched(slot, group_id)
        self.fates.dispatched(slot, group_id)
        self.effects.dispatched(slot, group_id)
        return self.groups.dispatched(slot, group_id)

    def ended(self, slot: int) -> None:
        """The trajectory of a slot is no more."""
        for of in (self.groups, self.stems, self.fates, self.effects):
            of.ended(slot)
