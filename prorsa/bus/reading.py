"""Reads a journal, whether a writer is still at it or it is a finished recording."""

import heapq
import itertools
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

import structlog

from prorsa.bus.layout import Manifest, Row, Segment
from prorsa.errors import EventError, JournalError
from prorsa.events import Stamped, decode

READ_PAGE_ROWS: Final = 2000
"""Rows that a reader fetches at a time; it holds no transaction in between, so that it never hinders the writer."""

_log = structlog.get_logger(__name__)
_NO_END: Final = 2**63 - 1
_SELECT: Final = "SELECT hub_seq, t_ns, source, seq, ts_ns, type, event FROM events WHERE "


class JournalReader:
    """Reads the events of a journal in order of ``hub_seq``.

    Args:
        directory: a journal, a recording.
        strict: raise at the first damaged segment. Otherwise what cannot be read is left out, logged, and listed in
            :attr:`damaged`.

    Raises:
        JournalError: if there is no journal, or it is of another version.
    """

    def __init__(self, directory: Path, *, strict: bool = False) -> None:
        self.directory = directory
        self.damaged: dict[str, str] = {}
        """What is wrong, by segment."""
        self._strict = strict
        self._manifest = Manifest.load(directory)
        self._open: dict[str, sqlite3.Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the segments."""
        for db in self._open.values():
            db.close()
        self._open.clear()

    @property
    def run_id(self) -> str:
        """The run that this journal holds."""
        return self._manifest.run_id

    @property
    def meta(self) -> dict[str, Any]:
        """What the creator of the journal wanted to be known."""
        return self._manifest.meta

    def read(
        self, after_seq: int = 0, upto_seq: int | None = None, types: Collection[str] | None = None
    ) -> Iterator[Stamped]:
        """Events with ``after_seq < hub_seq <= upto_seq``, of these types; up to the present end if None.

        Raises:
            JournalError: at damage, if the reader is strict.
        """
        for row in self.rows(after_seq, upto_seq, types):
            try:
                event = decode(row.event)
            except EventError as error:
                self._note(f"event {row.hub_seq}", error)
                continue
            yield Stamped(row.hub_seq, row.t_ns, row.source, row.seq, row.ts_ns, event)

    def rows(
        self, after_seq: int = 0, upto_seq: int | None = None, types: Collection[str] | None = None
    ) -> Iterator[Row]:
        """Like :meth:`read`, without decoding the events."""
        return self._rows(after_seq, upto_seq, types, READ_PAGE_ROWS)

    def page(
        self, after_seq: int, limit: int, types: Collection[str] | None = None, upto_seq: int | None = None
    ) -> list[Row]:
        """The first ``limit`` of :meth:`rows`; fewer only at the end."""
        return list(itertools.islice(self._rows(after_seq, upto_seq, types, limit), limit))

    def last(self, kind: str | None = None) -> Row | None:
        """The last event, or the last of a type; None if there is none."""
        self._manifest = Manifest.load(self.directory)
        where = "type = ?" if kind else "1"
        for segment in reversed(self._manifest.segments):
            rows = self._query(segment, [(f"{where} ORDER BY hub_seq DESC LIMIT 1", (kind,) if kind else ())], 1)
            if rows:
                return rows[0]
        return None

    def seq_before(self, t_ns: int) -> int:
        """The last ``hub_seq`` whose run time is before ``t_ns``; 0 if none is."""
        end = self.last()
        low, high = 0, end.hub_seq if end else 0
        while low < high:
            middle = (low + high + 1) // 2
            row = next(self.rows(middle - 1, middle), None)
            if row is not None and row.t_ns < t_ns:
                low = middle
            else:
                high = middle - 1
        return low

    def _rows(self, after_seq: int, upto_seq: int | None, types: Collection[str] | None, fetch: int) -> Iterator[Row]:
        wanted = sorted(set(types)) if types is not None else None
        position = after_seq
        while True:
            manifest = self._manifest
            for segment in manifest.segments:
                if _overlaps(segment, position, upto_seq):
                    for row in self._segment_rows(segment, position, upto_seq, wanted, fetch):
                        yield row
                        position = row.hub_seq
            # The open segment may have been sealed meanwhile, and the next one begun.
            self._manifest = Manifest.load(self.directory)
            if self._manifest.segments == manifest.segments:
                return

    def _segment_rows(
        self, segment: Segment, after_seq: int, upto_seq: int | None, types: list[str] | None, fetch: int
    ) -> Iterator[Row]:
        end = upto_seq if upto_seq is not None else _NO_END
        span = f"hub_seq > ? AND hub_seq <= ? ORDER BY hub_seq LIMIT {fetch}"
        while True:
            if types is None:
                rows = self._query(segment, [(span, (after_seq, end))], fetch)
            else:
                # One walk of the index for each type, merged: an IN would sort all that follows for each page.
                walks = [(f"type = ? AND {span}", (name, after_seq, end)) for name in types]
                rows = self._query(segment, walks, fetch)
            yield from rows
            if len(rows) < fetch:
                return
            after_seq = rows[-1].hub_seq

    def _query(self, segment: Segment, walks: Sequence[tuple[str, tuple[str | int, ...]]], limit: int) -> list[Row]:
        """The first ``limit`` rows of several ordered queries, in order; no more than that is read."""
        try:
            db = self._connect(segment)
            if db is None:
                return []
            cursors = [db.execute(_SELECT + where, values) for where, values in walks]
            rows = [Row._make(row) for row in itertools.islice(heapq.merge(*cursors, key=itemgetter(0)), limit)]
            for cursor in cursors:
                cursor.close()
        except sqlite3.Error as error:
            if not segment.sealed and "no such table" in str(error):
                return []  # its first transaction has not been committed
            self._note(segment.file, error)
            return []
        return rows

    def _connect(self, segment: Segment) -> sqlite3.Connection | None:
        if segment.file in self._open:
            return self._open[segment.file]
        path = (self.directory / segment.file).absolute()
        if not segment.sealed and not path.exists():
            return None
        db = _open_read_only(path.as_uri(), "mode=ro")
        if db is None:
            # A write-ahead log needs a writable directory; a sealed segment on read-only media needs none.
            db = _open_read_only(path.as_uri(), "mode=ro&immutable=1")
        if db is None:
            raise sqlite3.OperationalError(f"cannot open {path.name}")
        self._open[segment.file] = db
        return db

    def _note(self, place: str, error: Exception) -> None:
        text = f"journal {self.directory}: {place} cannot be read: {error}"
        if self._strict:
            raise JournalError(f"{text}; read without strict to have the rest, or restore it from a copy") from error
        if place not in self.damaged:
            self.damaged[place] = str(error)
            _log.warning("journal_damaged", journal=str(self.directory), place=place, error=str(error))


def _overlaps(segment: Segment, after_seq: int, upto_seq: int | None) -> bool:
    ends_before = segment.last_seq is not None and segment.last_seq <= after_seq
    begins_after = upto_seq is not None and segment.first_seq is not None and segment.first_seq > upto_seq
    return not ends_before and not begins_after


def _open_read_only(uri: str, options: str) -> sqlite3.Connection | None:
    """Open a segment; None if SQLite cannot open it in this way."""
    db = None
    try:
        db = sqlite3.connect(f"{uri}?{options}", uri=True, isolation_level=None, check_same_thread=False)
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        if not isinstance(error, sqlite3.OperationalError):
            raise
        return None
    return db
