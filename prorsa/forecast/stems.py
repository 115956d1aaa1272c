"""Which ranks hold the prompt that a group of trajectories begins with: wherever one of them was, all find it.

A sibling that waits for its first turn has its home where the group was sent; one whose own rank is busy finds its
first prompt at those of the others, so that to go there costs it no more than what came after.
"""

from dataclasses import dataclass, field

from prorsa.forecast.columns import Columns


@dataclass(slots=True)
class _Group:
    number: int
    members: set[int] = field(default_factory=set)
    ranks: dict[int, float] = field(default_factory=dict)
    """Tokens of the stem that each holds."""


class Stems:
    """Tells the columns of every live member where its group's first prompt is; O(members) when that is a new rank.

    Args:
        columns: of the live trajectories.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._groups: dict[str, _Group] = {}
        self._of: dict[int, str] = {}
        self._free: list[int] = []

    def dispatched(self, slot: int, group_id: str | None) -> None:
        """A trajectory of a group was dispatched."""
        if group_id is None:
            return
        self._of[slot] = group_id
        group = self._groups.get(group_id)
        if group is None:
            number = self._free.pop() if self._free else len(self._groups)
            group = self._groups[group_id] = _Group(number)
        group.members.add(slot)
        self._columns.group[slot] = group.number
        for rank, tokens in group.ranks.items():
            self._columns.found_at(slot, rank, tokens)

    def prefilled(self, slot: int, rank: int) -> None:
        """The trajectory of a slot is prefilled at a rank."""
        group_id = self._of.get(slot)
        if group_id is None:
            return
        group, tokens = self._groups[group_id], float(self._columns.first_tokens[slot])
        if rank in group.ranks or not tokens > 0.0:
            return
        group.ranks[rank] = tokens
        for member in group.members:
            if member != slot:
                self._columns.found_at(member, rank, tokens)

    def flush(self) -> None:
        """Every cache has been dropped."""
        for group in self._groups.values():
            group.ranks.clear()

    def ended(self, slot: int) -> None:
        """The trajectory of a slot has ended; with its last member a group is forgotten."""
        group_id = self._of.pop(slot, None)
        if group_id is None:
            return
        group = self._groups[group_id]
        group.members.discard(slot)
        if not group.members:
            del self._groups[group_id]
            self._free.append(group.number)
