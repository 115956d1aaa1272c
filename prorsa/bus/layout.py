"""What a journal consists of: the manifest, which says which run is in which segments, and the rows in these."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from prorsa.errors import JournalError
from prorsa.events import Stamped, encode, type_name

MANIFEST_FILE: Final = "manifest.json"
JOURNAL_VERSION: Final = 1


class Row(NamedTuple):
    """One journalled event; ``event`` is its msgpack, ``type`` its wire name."""

    hub_seq: int
    t_ns: int
    source: str
    seq: int
    ts_ns: int
    type: str
    event: bytes


def row_of(stamped: Stamped) -> Row:
    """The row that journals a stamped event."""
    event = stamped.event
    return Row(
        stamped.hub_seq, stamped.t_ns, stamped.source, stamped.seq, stamped.ts_ns, type_name(event), encode(event)
    )


class Segment(Struct, frozen=True, forbid_unknown_fields=True):
    """One SQLite file of a journal. The range is None while the segment is open or has no rows."""

    file: str
    sealed: bool = False
    first_seq: int | None = None
    last_seq: int | None = None
    first_t_ns: int | None = None
    last_t_ns: int | None = None


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal directory holds; ``meta`` is whatever its creator wants to be known about the run."""

    version: int
    run_id: str
    meta: dict[str, Any]
    segments: tuple[Segment, ...] = ()

    def save(self, directory: Path) -> None:
        """Write the manifest, at once or not at all."""
        draft = directory / (MANIFEST_FILE + ".tmp")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        draft.replace(directory / MANIFEST_FILE)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Read a journal's manifest.

        Raises:
            JournalError: if there is none, it is damaged, or of another version.
        """
        path = directory / MANIFEST_FILE
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise JournalError(
                f"no journal at {directory}: {MANIFEST_FILE} is missing; name a journal directory"
            ) from error
        except OSError as error:
            raise JournalError(f"journal {directory}: cannot read {MANIFEST_FILE}: {error.strerror}") from error
        _check_version(directory, content)
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise _damaged(directory, error) from error


class _Version(Struct):
    version: int


def _check_version(directory: Path, content: bytes) -> None:
    try:
        found = msgspec.json.decode(content, type=_Version).version
    except msgspec.DecodeError as error:
        raise _damaged(directory, error) from error
    if found != JOURNAL_VERSION:
        raise JournalError(
            f"journal {directory} is of version {found}, this Prorsa reads version {JOURNAL_VERSION}; "
            "read it with the Prorsa that wrote it"
        )


def _damaged(directory: Path, error: Exception) -> JournalError:
    return JournalError(
        f"journal {directory}: {MANIFEST_FILE} is damaged ({error}); restore it from a copy (the segments may be whole)"
    )
