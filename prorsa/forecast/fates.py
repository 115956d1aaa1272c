"""How soon siblings end: what those of a group have done tells of the others.

Trajectories that begin with one prompt are as hard as each other, more or less: where siblings went on for longer than
turns like theirs do, so will the others. Each group has a factor on the hazard of an end, drawn from a gamma of mean 1
and variance v (a shared frailty; Clayton, Biometrika 65, 1978). Chances by turn are those of all that live, and the
longer they live the fewer are left of those with large factors: with H of a trajectory's chances summed as hazards, its
own group's factor has worked for (exp(v H) - 1) / v. So after d ends of siblings the chance of the next one is
exp(v H) (1 + v d) / (1 + the sum of exp(v H) - 1 over all members) times that by turn, which is 1 for an only child.

How large v is, is learnt: a few values are weighed by how likely they make what came. Ends are no gamma's in truth, so
that factors are scaled for as many ends to be expected as came.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prorsa.forecast.columns import Columns

MAX_GROUPS: Final = 8192
"""Groups that are remembered: those heard of last."""
_KEEP: Final = 2.0 ** (-1.0 / 4000.0)
"""A turn."""
_VARIANCES: Final = (0.3, 1.0, 3.0)
"""Besides 0, which is taken for the truth before anything was seen."""
_DOUBT: Final = 10.0
"""Logarithm of how much likelier one of them must make what came to be as likely as 0."""
_PRIOR_ENDS: Final = 20.0
"""Expected ends that it takes to believe half of what factors are off by."""
_MOST: Final = 3.0
"""An end is at most so much likelier, or less likely, than that of others."""
_LEAST_CHANCE: Final = 1e-9
_MOST_CHANCE: Final = 0.98
_MOST_GROWN: Final = 1e9
"""Bounds exp(v H)."""


@dataclass(slots=True)
class _Group:
    """Ends; of the live ones by slot exp(v H) for each v, and its sum less 1 over all that ever were."""

    ended: float = 0.0
    grown: list[float] = field(default_factory=lambda: [0.0] * len(_VARIANCES))
    live: dict[int, list[float]] = field(default_factory=dict)

    def shares(self) -> list[float]:
        """For each v, what exp(v H) of a live one is multiplied by: then it is how much likelier its end is."""
        return [(1.0 + v * self.ended) / (1.0 + of_all) for v, of_all in zip(_VARIANCES, self.grown, strict=True)]


class Fates:
    """Keeps ``fate`` of the columns: how much likelier an end is for what the siblings did; O(group) an event."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._of: dict[int, str] = {}
        self._likelihood = [0.0] * len(_VARIANCES)
        self._weights = [0.0] * len(_VARIANCES)
        self._expected = self._ended = 0.0

    @property
    def variance(self) -> float:
        """Of the factors of groups, as learnt so far."""
        return sum(weight * v for weight, v in zip(self._weights, _VARIANCES, strict=True))

    def dispatched(self, slot: int, group_id: str | None) -> None:
        """A trajectory of a group begins; one of none has no siblings."""
        if group_id is None:
            return
        group = self._groups.setdefault(group_id, _Group())
        self._groups.move_to_end(group_id)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        self._of[slot] = group_id
        group.live[slot] = [1.0] * len(_VARIANCES)
        self._tell(group, (slot,))

    def turn_over(self, slot: int, chance: float, *, ended: bool) -> None:
        """A turn that was the last with some chance was it, or not."""
        group = self._group_of(slot)
        if group is None:
            return
        chance, own = min(max(chance, _LEAST_CHANCE), _MOST_CHANCE), group.live[slot]
        factors = [grown * share for grown, share in zip(own, group.shares(), strict=True)]
        self._learn(chance, factors, ended=ended)
        goes_on = 1.0 - chance
        for k, v in enumerate(_VARIANCES):
            grown = min(own[k] * goes_on**-v, _MOST_GROWN)
            group.grown[k] += grown - own[k]
            own[k] = grown
        group.ended += ended
        self._tell(group, group.live)

    def ended(self, slot: int) -> None:
        """The trajectory of a slot is no more."""
        group = self._group_of(slot)
        if group is not None:
            del group.live[slot]
        self._of.pop(slot, None)

    def _group_of(self, slot: int) -> _Group | None:
        group = self._groups.get(self._of.get(slot, ""))
        return group if group is not None and slot in group.live else None

    def _learn(self, chance: float, factors: list[float], *, ended: bool) -> None:
        """How likely each v made what came, and how many ends were expected."""
        usual = chance if ended else 1.0 - chance
        expected, likelihood = chance, self._likelihood
        for k, factor in enumerate(factors):
            now = min(factor * chance, _MOST_CHANCE)
            likelihood[k] = likelihood[k] * _KEEP + math.log((now if ended else 1.0 - now) / usual)
            expected += self._weights[k] * (factor - 1.0) * chance
        self._expected = self._expected * _KEEP + expected
        self._ended = self._ended * _KEEP + ended
        most = max(_DOUBT, *likelihood)
        weights = [math.exp(one - most) for one in likelihood]
        whole = math.exp(_DOUBT - most) + sum(weights)
        self._weights = [weight / whole for weight in weights]

    def _tell(self, group: _Group, slots: Iterable[int]) -> None:
        scale = (self._ended + _PRIOR_ENDS) / (self._expected + _PRIOR_ENDS)
        others = scale * (1.0 - sum(self._weights))
        some, more, most = (scale * weight * share for weight, share in zip(self._weights, group.shares(), strict=True))
        fate, live = self._columns.fate, group.live
        for slot in slots:
            own = live[slot]
            factor = others + some * own[0] + more * own[1] + most * own[2]
            fate[slot] = _MOST if factor > _MOST else max(factor, 1.0 / _MOST)
