"""Telling repeats from news, in bounded memory."""

from collections import OrderedDict
from typing import Final

MAX_MISSING: Final = 4096
MAX_SOURCES: Final = 1024


class SeqFolder:
    """Knows which ``(source, seq)`` have been seen, as the highest number of each source and the gaps below it.

    Sequence numbers are consecutive per source, so that what is below the highest number and not in a gap is a repeat.
    Gaps hold at most ``MAX_MISSING`` numbers a source (the newest); at most ``MAX_SOURCES`` sources are remembered
    (those heard last), so that publishers that restart under new names cost no memory for ever.
    """

    def __init__(self) -> None:
        self._sources: OrderedDict[str, tuple[int, set[int]]] = OrderedDict()
        self.lost = 0
        """Sequence numbers that have not been seen although later ones of their source have."""

    def is_repeat(self, source: str, seq: int) -> bool:
        """Whether ``seq`` of ``source`` has been seen before; remembers it."""
        known = self._sources.get(source)
        if known is None:
            self._remember(source, seq, set())
            return False
        highest, missing = known
        if seq == highest + 1:
            self._sources[source] = (seq, missing)
            return False
        if seq <= highest:
            return self._is_old(missing, seq)
        self._open_gap(missing, highest + 1, seq)
        self._remember(source, seq, missing)
        return False

    def _is_old(self, missing: set[int], seq: int) -> bool:
        if seq not in missing:
            return True
        missing.remove(seq)
        self.lost -= 1
        return False

    def _open_gap(self, missing: set[int], first: int, end: int) -> None:
        missing.update(range(max(first, end - MAX_MISSING), end))
        self.lost += end - first
        for old in sorted(missing)[: max(len(missing) - MAX_MISSING, 0)]:
            missing.remove(old)

    def _remember(self, source: str, seq: int, missing: set[int]) -> None:
        self._sources[source] = (seq, missing)
        self._sources.move_to_end(source)
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)


class RecentIds:
    """The last ``size`` ids that were added."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        """Remember ``name``; the oldest is forgotten when there are too many."""
        self._ids[name] = None
        if len(self._ids) > self._size:
            self._ids.popitem(last=False)

    def discard(self, name: str) -> None:
        """Forget ``name`` if it is known."""
        self._ids.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def __len__(self) -> int:
        return len(self._ids)
