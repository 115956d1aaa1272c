"""Groups of trajectories that begin with the same prompt: who computes it, and who finds it computed.

In GRPO every sibling starts from one prompt. The first that becomes ready has it computed; where the others then go the
cache holds it. While all of them wait nobody's cache does, and a router's index counts the prompt once for each.
"""

from collections import OrderedDict
from typing import Final

from prorsa.forecast.columns import Columns

MAX_GROUPS: Final = 8192
"""Groups that are remembered: those heard of last."""
_BEGUN: Final = -1


class Groups:
    """Keeps ``sibling`` of the columns true; O(1) an event.

    Args:
        columns: of the live trajectories.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._first: OrderedDict[str, int] = OrderedDict()
        self._of: dict[int, str] = {}

    def dispatched(self, slot: int, group_id: str | None) -> bool:
        """A trajectory was dispatched. Returns whether it has siblings before it; one of no group has none."""
        if group_id is None:
            return False
        self._of[slot] = group_id
        sibling = group_id in self._first
        if not sibling:
            self._put(group_id, slot)
        self._columns.sibling[slot] = sibling
        return sibling

    def ready(self, slot: int) -> None:
        """A trajectory's first request is ready: the first of its group to come so far computes the prompt."""
        group_id = self._of.pop(slot, None)
        if group_id is None:
            return
        first = self._first.get(group_id, slot)
        self._columns.sibling[slot] = first == _BEGUN
        if first not in (_BEGUN, slot) and self._of.get(first) == group_id:
            self._columns.sibling[first] = True
        self._put(group_id, _BEGUN)

    def ended(self, slot: int) -> None:
        """The trajectory of a slot has ended."""
        self._of.pop(slot, None)

    def _put(self, group_id: str, first: int) -> None:
        self._first[group_id] = first
        if len(self._first) > MAX_GROUPS:
            self._first.popitem(last=False)
