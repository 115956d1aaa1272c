"""What single trajectories are like: who has had long answers, slow tools or large results has them again.

A mixed model of each of the three (an *effect*): the logarithm of what is seen, standardised among its like (z), is the
group's part plus the trajectory's own plus chance, of variances γ², α² and 1 − γ² − α². What to expect of a trajectory
is the best linear prediction from its own z and its siblings' (Henderson, Biometrics 31, 1975). The variances are
learnt from products: of a new z with the sum of those before it of the same trajectory, γ² + α² for each of these on
average, with those of its siblings γ². Where trajectories are no different both are 0, and nothing is expected of them.
Tails are not those of a normal law: how far the multiples that follow from it come true is learnt too.
"""

import math
from collections import OrderedDict
from enum import IntEnum
from typing import Final

from prorsa.forecast.columns import Columns
from prorsa.forecast.scan import LENGTHS, TURN_BUCKETS, length_class, turn_bucket

MAX_GROUPS: Final = 8192
"""Groups that are remembered: those heard of last."""
_ENOUGH: Final = 10.0
"""Observations of a kind before one more is called unusual."""
_MEMORY: Final = 500.0
"""Observations of a kind over which its mean and spread are taken."""
_FARTHEST: Final = 3.0
"""Standard deviations that a single observation counts for at most."""
_LONG: Final = 4000.0
"""Observations over which the mean of z is taken; it is not 0 early in a run, when only the short have ended."""
_KEEP: Final = 2.0 ** (-1.0 / 20_000.0)
"""Of what is learnt of an effect, an observation."""
_PRIOR: Final = 100.0
"""Products that it takes to believe half of a variance."""
_MOST_VARIANCE: Final = 0.8
_MOST: Final = 4.0
"""A multiple is at most so large, or so small."""
_TRUST, _TRUST_WEIGHT = 0.5, 10.0
"""How far multiples are expected to come true before that is known, and the sum of their squared distances from 1 that
it takes to know it as well."""


class Effect(IntEnum):
    """What trajectories differ in."""

    ANSWER = 0
    GAP = 1
    RESULT = 2


class _Kind:
    """Observations that are alike: the mean, the mean logarithm and its variance; the newer ones count more."""

    __slots__ = ("log", "mean", "number", "spread", "variance")

    def __init__(self) -> None:
        self.number = self.mean = self.log = self.variance = self.spread = 0.0

    def add(self, value: float) -> tuple[float, float] | None:
        """By how many standard deviations the logarithm of one is off, and by what part of the mean it is above that
        of those before it; None where too few were seen.
        """
        off = math.log(value) - self.log
        known = self.spread > 0.0
        z, above = (off / self.spread, value / self.mean - 1.0) if known else (0.0, 0.0)
        number = self.number = min(self.number + 1.0, _MEMORY)
        self.mean += (value - self.mean) / number
        self.log += off / number
        self.variance = (1.0 - 1.0 / number) * (self.variance + off * off / number)
        self.spread = math.sqrt(self.variance) if number >= _ENOUGH and self.variance > 1e-6 else 0.0
        return (min(max(z, -_FARTHEST), _FARTHEST), above) if known else None


class _Seen:
    """Of a trajectory or of all of a group: the number and the sum of z, and both weighted as the prediction has it;
    ``told``, the multiple that was expected last.
    """

    __slots__ = ("number", "told", "total", "weight", "weighted")

    def __init__(self) -> None:
        self.number = self.total = self.weight = self.weighted = 0.0
        self.told = 1.0


class _Model:
    """One effect, over all trajectories."""

    def __init__(self, *, by_mean: bool) -> None:
        self._by_mean = by_mean
        self._kinds: dict[int, _Kind] = {}
        self._number = self._mean = 0.0
        self._told, self._usual = _ENOUGH, 1.0
        self._own, self._own_weight = 0.0, _PRIOR
        self._siblings, self._siblings_weight = 0.0, _PRIOR
        self._true, self._true_weight = _TRUST * _TRUST_WEIGHT, _TRUST_WEIGHT
        self.total = self.between_groups = 0.0
        self.trust = _TRUST if by_mean else 1.0

    def add(self, own: _Seen, group: _Seen, kind: int, value: float) -> None:
        """A trajectory has shown something of a kind."""
        found = self._kinds.setdefault(kind, _Kind()).add(value)
        if found is None:
            return
        z, above = found
        self._learn(z, above, own, group)
        self._number = min(self._number + 1.0, _LONG)
        self._mean += (z - self._mean) / self._number
        own.number += 1.0
        own.total += z
        group.number += 1.0
        group.total += z
        scale = 1.0 / (1.0 - self.total + (self.total - self.between_groups) * own.number)
        weight, weighted = own.number * scale, own.total * scale
        group.weight += weight - own.weight
        group.weighted += weighted - own.weighted
        own.weight, own.weighted = weight, weighted

    def _learn(self, z: float, above: float, own: _Seen, group: _Seen) -> None:
        variance, mean = self.total, self._mean
        if own.number > 0.0:
            weight = 1.0 / (1.0 - variance + variance * own.number)
            self._own = self._own * _KEEP + weight * z * (own.total - own.number * mean)
            self._own_weight = (self._own_weight - _PRIOR) * _KEEP + weight * own.number + _PRIOR
            self.total = min(max(self._own / self._own_weight, 0.0), _MOST_VARIANCE)
        others = group.number - own.number
        if others > 0.0:
            weight = 1.0 / (1.0 - variance + variance * others)
            self._siblings = self._siblings * _KEEP + weight * z * (group.total - own.total - others * mean)
            self._siblings_weight = (self._siblings_weight - _PRIOR) * _KEEP + weight * others + _PRIOR
        self.between_groups = min(max(self._siblings / self._siblings_weight, 0.0), self.total)
        told = own.told - 1.0
        self._true = self._true * _KEEP + above * told
        self._true_weight = self._true_weight * _KEEP + told * told
        if self._by_mean:
            self.trust = min(max(self._true / self._true_weight, 0.0), 1.0)

    def multiple(self, own: _Seen, group: _Seen, kind: int) -> float:
        """What to expect of a trajectory's next of a kind, as a multiple of what is usual."""
        of = self._kinds.get(kind)
        if of is None or of.spread <= 0.0 or self.total <= 0.0:
            own.told = 1.0
            return 1.0
        shared, alone, mean = self.between_groups, self.total - self.between_groups, self._mean
        known = 1.0 / (1.0 + shared * group.weight)
        of_group = shared * (group.weighted - group.weight * mean) * known
        pull = alone / (1.0 - self.total + alone * own.number)
        expected = of_group + pull * (own.total - own.number * (mean + of_group))
        unknown = shared * known * (1.0 - pull * own.number) ** 2 + alone * (1.0 - pull * own.number)
        # The mean of a lognormal; that of all trajectories is 1.
        multiple = math.exp(of.spread * expected + 0.5 * of.spread**2 * unknown)
        self._told = min(self._told + 1.0, _MEMORY)
        self._usual += (multiple - self._usual) / self._told
        own.told = min(max(multiple / self._usual, 1.0 / _MOST), _MOST)
        return 1.0 + self.trust * (own.told - 1.0)


_Record = tuple[_Seen, ...]


def _record() -> _Record:
    return tuple(_Seen() for _ in Effect)


class Effects:
    """Keeps ``longer``, ``slower`` and ``larger`` of the columns, multiples of what is usual; O(1) an event."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._models = tuple(_Model(by_mean=effect == Effect.RESULT) for effect in Effect)
        self._groups: OrderedDict[str, _Record] = OrderedDict()
        self._live: dict[int, tuple[_Record, _Record]] = {}

    def variances(self, effect: Effect) -> tuple[float, float]:
        """Of an effect's z, as learnt so far: between trajectories, and the part of it that is between groups."""
        of = self._models[effect]
        return of.total, of.between_groups

    def dispatched(self, slot: int, group_id: str | None) -> None:
        """A trajectory begins; one of no group has no siblings."""
        if group_id is None:
            self._live[slot] = _record(), _record()
            return
        group = self._groups.setdefault(group_id, _record())
        self._groups.move_to_end(group_id)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        self._live[slot] = _record(), group

    def ended(self, slot: int) -> None:
        """The trajectory of a slot is no more; its siblings keep what it has shown."""
        self._live.pop(slot, None)

    def answered(self, slot: int, action: int, turn: int, output_tokens: float) -> None:
        """The answer to an action's result is complete."""
        self._add(slot, Effect.ANSWER, _answers(action, turn), max(output_tokens, 1.0))

    def returned(self, slot: int, action: int, turn: int, gap_s: float | None, appended_tokens: float | None) -> None:
        """A turn begins with an action's result, ``gap_s`` after the answer before it; None where unknown."""
        if gap_s is not None:
            self._add(slot, Effect.GAP, action, max(gap_s, 1e-3))
        if appended_tokens is not None and appended_tokens >= 1.0:  # less where a context was rewritten
            self._add(slot, Effect.RESULT, _results(action, turn), appended_tokens)

    def tell(self, slot: int, turn: int) -> None:
        """Write down what to expect of the slot's present action: its gap and result before ``turn``, and the answer
        of that.
        """
        record = self._live.get(slot)
        if record is None:
            return
        columns, (own, group) = self._columns, record
        action = int(columns.action[slot])
        answer, gap, result = self._models
        columns.longer[slot] = answer.multiple(own[0], group[0], _answers(action, turn))
        if turn > 0:
            columns.slower[slot] = gap.multiple(own[1], group[1], action)
            columns.larger[slot] = result.multiple(own[2], group[2], _results(action, turn))

    def _add(self, slot: int, effect: Effect, kind: int, value: float) -> None:
        own, group = self._live.get(slot) or self._live.setdefault(slot, (_record(), _record()))
        self._models[effect].add(own[effect], group[effect], kind, value)


def _answers(action: int, turn: int) -> int:
    return action * LENGTHS + int(length_class(turn))


def _results(action: int, turn: int) -> int:
    return action * TURN_BUCKETS + int(turn_bucket(turn))
