"""The journal: a directory of SQLite segments and a manifest. A recording is just such a directory.

A writer appends in transactions and locks the directory; readers need no lock and may read while it writes. What a
transaction has committed survives the death of the process at any moment (WAL, ``synchronous = NORMAL``; a power cut
may cost the last transactions, never an older one). The tables of a segment:

- ``events(hub_seq, t_ns, source, seq, ts_ns, type, event)``: ``event`` is the msgpack as the source sent it;
- ``sources(source, last_seq)``, ``types(type, count)``, ``clock(t_ns, wall_ns)``: totals of the run so far, so that a
  writer that takes over needs to read nothing else.
"""

import fcntl
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from prorsa.bus.layout import JOURNAL_VERSION, MANIFEST_FILE, Manifest, Row, Segment, row_of
from prorsa.bus.reading import JournalReader
from prorsa.errors import InvariantError, JournalError, RefusedError

__all__ = ["JournalReader", "JournalWriter", "Row", "row_of"]

SEGMENT_ROWS: Final = 1_000_000
"""Events after which a new segment begins, unless the writer is told otherwise."""
CHECKPOINT_PAGES: Final = 8000
"""Size of the write-ahead log, in pages of 4 KiB, at which SQLite moves it into the segment."""
LOCK_FILE: Final = "writer.lock"

_SCHEMA: Final = (
    """CREATE TABLE events(hub_seq INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, source TEXT NOT NULL,
       seq INTEGER NOT NULL, ts_ns INTEGER NOT NULL, type TEXT NOT NULL, event BLOB NOT NULL)""",
    "CREATE INDEX events_by_type ON events(type, hub_seq)",
    "CREATE TABLE sources(source TEXT PRIMARY KEY, last_seq INTEGER NOT NULL)",
    "CREATE TABLE types(type TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    "CREATE TABLE clock(one INTEGER PRIMARY KEY CHECK (one = 1), t_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL)",
)
_UPSERT_SOURCE: Final = "INSERT OR REPLACE INTO sources VALUES (?, ?)"
_UPSERT_TYPE: Final = "INSERT OR REPLACE INTO types VALUES (?, ?)"
_UPSERT_CLOCK: Final = "INSERT OR REPLACE INTO clock VALUES (1, ?, ?)"


class JournalWriter:
    """Appends to a journal; creates it, or goes on where the last writer stopped, however that one ended.

    Args:
        directory: the journal; created if it does not exist.
        run_id: the run that is journalled; None takes that of an existing journal.
        meta: kept in the manifest of a new journal; an existing one keeps its own.
        segment_rows: events after which a new segment begins.

    Attributes:
        last_seq, last_t_ns: the last ``hub_seq`` and run time; 0 in a new journal.
        last_wall_ns: wall clock of the last append; None in a new journal.
        source_seqs: the last ``seq`` taken of each source.
        type_counts: events so far of each type.

    Raises:
        RefusedError: if another writer has the directory, or it holds another run.
        JournalError: if an existing journal cannot be continued.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str | None,
        meta: Mapping[str, Any] | None = None,
        segment_rows: int = SEGMENT_ROWS,
    ) -> None:
        self.directory = directory
        self.last_seq = 0
        self.last_t_ns = 0
        self.last_wall_ns: int | None = None
        self.source_seqs: dict[str, int] = {}
        self.type_counts: dict[str, int] = {}
        self._segment_rows = segment_rows
        self._db: sqlite3.Connection | None = None
        self._first: tuple[int, int] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        try:
            self._manifest = _open_manifest(directory, run_id, dict(meta or {}))
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_id(self) -> str:
        """The run that this journal holds."""
        return self._manifest.run_id

    @property
    def meta(self) -> dict[str, Any]:
        """What the creator of the journal wanted to be known."""
        return self._manifest.meta

    def append(self, rows: Sequence[Row], source_seqs: Mapping[str, int] | None = None) -> None:
        """Journal ``rows``, all or none; when this returns they are durable.

        Args:
            rows: consecutive in ``hub_seq`` after :attr:`last_seq`.
            source_seqs: sources whose last taken ``seq`` has no row, since its event was refused.

        Raises:
            JournalError: if they cannot be written; the writer is then of no use any more.
            InvariantError: if the rows do not follow.
        """
        if not rows:
            return
        if rows[0].hub_seq != self.last_seq + 1 or rows[-1].hub_seq != self.last_seq + len(rows):
            raise InvariantError(f"rows {rows[0].hub_seq}..{rows[-1].hub_seq} do not follow hub_seq {self.last_seq}")
        seqs = {row.source: row.seq for row in rows} | dict(source_seqs or {})
        counts = {name: self.type_counts.get(name, 0) + n for name, n in Counter(row.type for row in rows).items()}
        wall_ns = time.time_ns()
        try:
            self._roll_if_full(rows[0])
            self._commit(rows, seqs, counts, wall_ns)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"journal {self.directory}: cannot write: {error}; check the disk") from error
        self.source_seqs.update(seqs)
        self.type_counts.update(counts)
        self.last_seq, self.last_t_ns, self.last_wall_ns = rows[-1].hub_seq, rows[-1].t_ns, wall_ns

    def close(self) -> None:
        """Seal the segment and give the directory free. A sealed segment is one plain file."""
        if self._lock < 0:
            return
        try:
            self._seal()
        except (sqlite3.Error, OSError):
            self._db = None  # a full disk, say: the segment stays open, and the next writer goes on with it
        finally:
            os.close(self._lock)
            self._lock = -1

    def _commit(self, rows: Sequence[Row], seqs: dict[str, int], counts: dict[str, int], wall_ns: int) -> None:
        db = self._db
        assert db is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            if self._first is None:
                self._first = (rows[0].hub_seq, rows[0].t_ns)
                self._create_tables(db)
            db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            db.executemany(_UPSERT_SOURCE, seqs.items())
            db.executemany(_UPSERT_TYPE, counts.items())
            db.execute(_UPSERT_CLOCK, (rows[-1].t_ns, wall_ns))
            db.execute("COMMIT")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _create_tables(self, db: sqlite3.Connection) -> None:
        # In the transaction of the first rows: a segment either has its totals, or is as good as absent.
        for statement in _SCHEMA:
            db.execute(statement)
        db.executemany(_UPSERT_SOURCE, self.source_seqs.items())
        db.executemany(_UPSERT_TYPE, self.type_counts.items())

    def _roll_if_full(self, first: Row) -> None:
        if self._first is not None and first.hub_seq - self._first[0] >= self._segment_rows:
            self._seal()
        if self._db is None:
            segment = Segment(f"segment-{len(self._manifest.segments) + 1:05d}.sqlite")
            # The manifest first: an entry without its file is an empty segment, a file without its entry is lost.
            self._put((*self._manifest.segments, segment))
            self._db = _open_for_writing(self.directory / segment.file)

    def _seal(self) -> None:
        if self._db is None:
            return
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        self._db = None
        if self._first is not None:
            first_seq, first_t_ns = self._first
            sealed = Segment(
                self._manifest.segments[-1].file,
                sealed=True,
                first_seq=first_seq,
                last_seq=self.last_seq,
                first_t_ns=first_t_ns,
                last_t_ns=self.last_t_ns,
            )
            self._put((*self._manifest.segments[:-1], sealed))
        self._first = None

    def _put(self, segments: tuple[Segment, ...]) -> None:
        self._manifest = msgspec.structs.replace(self._manifest, segments=segments)
        self._manifest.save(self.directory)

    def _recover(self) -> None:
        """Take over where the last writer stopped: from the last segment that has anything in it."""
        while self._manifest.segments:
            segment = self._manifest.segments[-1]
            db = _open_for_writing(self.directory / segment.file)
            try:
                found = self._read_totals(db)
            except sqlite3.Error as error:
                db.close()
                raise JournalError(
                    f"journal {self.directory}: segment {segment.file} is damaged ({error}); "
                    "start a new run, and keep this directory for reading"
                ) from error
            if found and not segment.sealed:
                self._db = db
                return
            db.close()
            if found:
                self._first = None
                return
            # The last writer died before its first transaction in this segment: its name is free again.
            self._manifest = msgspec.structs.replace(self._manifest, segments=self._manifest.segments[:-1])

    def _read_totals(self, db: sqlite3.Connection) -> bool:
        """Take over the totals of a segment; False if nothing was ever committed to it."""
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'clock'").fetchone():
            return False
        (self.last_seq,) = db.execute("SELECT max(hub_seq) FROM events").fetchone()
        self.last_t_ns, self.last_wall_ns = db.execute("SELECT t_ns, wall_ns FROM clock").fetchone()
        self.source_seqs = dict(db.execute("SELECT source, last_seq FROM sources"))
        self.type_counts = dict(db.execute("SELECT type, count FROM types"))
        first_seq, first_t_ns = db.execute("SELECT hub_seq, t_ns FROM events ORDER BY hub_seq LIMIT 1").fetchone()
        self._first = (first_seq, first_t_ns)
        return True


def _open_manifest(directory: Path, run_id: str | None, meta: dict[str, Any]) -> Manifest:
    if not (directory / MANIFEST_FILE).exists():
        if run_id is None:
            raise JournalError(f"no journal at {directory} to go on with: give a run_id to begin one")
        manifest = Manifest(JOURNAL_VERSION, run_id, meta)
        manifest.save(directory)
        return manifest
    manifest = Manifest.load(directory)
    if run_id not in (None, manifest.run_id):
        raise RefusedError(f"journal {directory} holds run {manifest.run_id}, not {run_id}; use another directory")
    return manifest


def _lock(directory: Path) -> int:
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise RefusedError(
            f"journal {directory} is being written by process {owner}; stop that one, or use another directory"
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _open_for_writing(path: Path) -> sqlite3.Connection:
    # Made in one thread and used in another, as a hub may be; never by two at once.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    except sqlite3.Error as error:
        db.close()
        raise JournalError(
            f"journal segment {path}: {error}; start a new run, and keep this one for reading"
        ) from error
    return db
