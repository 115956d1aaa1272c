"""How soon siblings end: what those of a group have done tells of the others.

Trajectories that begin with one prompt are as hard as each other, more or less: where siblings went on for longer than
turns like theirs do, so will the others. Each group has a factor on the hazard of an end, drawn from a gamma of mean 1
and variance v (a shared frailty; Clayton, Biometrika 65, 1978). After d ends where H were expected its mean is
(1 + v d) / (1 + v H). The variance is learnt: what a trajectory does beyond what was expected, times what its siblings
did, is v times what was expected of both, on average; where siblings do not resemble each other it is 0. Chances by
turn are those of all that live: who reads a factor divides it by the mean of these.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from prorsa.forecast.columns import Columns

MAX_GROUPS: Final = 8192
"""Groups that are remembered: those heard of last."""
_KEEP: Final = 2.0 ** (-1.0 / 4000.0)
"""A turn."""
_PRIOR: Final = 10.0
"""Products of expected ends that it takes to believe half of a resemblance."""
_MOST_VARIANCE: Final = 1.0
_MOST: Final = 3.0
"""An end is at most so much likelier, or less likely, than that of others."""


@dataclass(slots=True)
class _Group:
    """Ends and expected ends of all members; those of the live ones, by slot."""

    ended: float = 0.0
    expected: float = 0.0
    live: dict[int, float] = field(default_factory=dict)


class Fates:
    """Keeps ``fate`` of the columns: how much likelier an end is for what the siblings did; O(group) an event."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._of: dict[int, str] = {}
        self._together = self._alike = 0.0

    @property
    def variance(self) -> float:
        """Of the factors of groups, as learnt so far."""
        return min(max(self._alike, 0.0) / (self._together + _PRIOR), _MOST_VARIANCE)

    def dispatched(self, slot: int, group_id: str | None) -> None:
        """A trajectory of a group begins; one of none has no siblings."""
        if group_id is None:
            return
        group = self._groups.setdefault(group_id, _Group())
        self._groups.move_to_end(group_id)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        self._of[slot] = group_id
        group.live[slot] = 0.0
        self._tell(group)

    def turn_over(self, slot: int, chance: float, *, ended: bool) -> None:
        """A turn that was the last with some chance was it, or not."""
        group = self._group_of(slot)
        if group is None:
            return
        others_expected = group.expected - group.live[slot]
        self._together = self._together * _KEEP + chance * others_expected
        self._alike = self._alike * _KEEP + (ended - chance) * (group.ended - others_expected)
        group.live[slot] += chance
        group.expected += chance
        group.ended += ended
        self._tell(group)

    def ended(self, slot: int) -> None:
        """The trajectory of a slot is no more."""
        group = self._group_of(slot)
        if group is not None:
            del group.live[slot]
        self._of.pop(slot, None)

    def _group_of(self, slot: int) -> _Group | None:
        group = self._groups.get(self._of.get(slot, ""))
        return group if group is not None and slot in group.live else None

    def _tell(self, group: _Group) -> None:
        variance = self.variance
        for slot, own in group.live.items():
            # No live one has ended: all ends are of siblings.
            factor = (1.0 + variance * group.ended) / (1.0 + variance * (group.expected - own))
            self._columns.fate[slot] = min(max(factor, 1.0 / _MOST), _MOST)
