"""The journal on real files: what is committed stays, and damage is named and contained."""

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa import events
from prorsa.bus.journal import JournalReader, JournalWriter, Row, row_of
from prorsa.bus.layout import MANIFEST_FILE, Manifest, Segment
from prorsa.errors import InvariantError, JournalError, RefusedError
from prorsa.events import Stamped
from tests.bus.conftest import numbers, token


def rows(first: int, last: int, source: str = "me#1") -> list[Row]:
    """Rows ``first`` to ``last``: every third is a worker's load, the others tokens."""
    return [
        row_of(Stamped(n, n * 1000, source, n, n, events.WorkerLoad(worker_id=f"w{n}") if n % 3 == 0 else token(n)))
        for n in range(first, last + 1)
    ]


def write(directory: Path, parts: Sequence[tuple[int, int]], segment_rows: int = 1_000_000) -> None:
    with JournalWriter(directory, run_id="run-1", meta={"scenario": "quick"}, segment_rows=segment_rows) as writer:
        for first, last in parts:
            writer.append(rows(first, last))


def hub_seqs(directory: Path, **of: object) -> list[int]:
    with JournalReader(directory, strict=True) as reader:
        return [stamped.hub_seq for stamped in reader.read(**of)]  # type: ignore[arg-type]


def test_a_recording_gives_back_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, [(1, 5), (6, 10)])
    with JournalReader(tmp_path, strict=True) as reader:
        assert [row_of(stamped) for stamped in reader.read()] == rows(1, 10)
        assert reader.run_id == "run-1"
        assert reader.meta == {"scenario": "quick"}
        assert reader.last() == rows(10, 10)[0]
        assert reader.last("worker.load") == rows(9, 9)[0]
        assert reader.last("flip") is None


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 7), max_size=12),
    st.integers(1, 9),
    st.integers(0, 90),
    st.integers(0, 90),
    st.sampled_from([None, ["worker.load"], ["llm.first_token", "worker.load"], ["flip"]]),
)
def test_any_range_is_read_over_segments(
    sizes: list[int], segment_rows: int, after: int, upto: int, types: list[str] | None
) -> None:
    ends = list(itertools.accumulate(sizes))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write(directory, [(end - size + 1, end) for end, size in zip(ends, sizes, strict=True)], segment_rows)
        written = rows(1, ends[-1] if ends else 0)
        wanted = [r for r in written if after < r.hub_seq <= upto and (types is None or r.type in types)]
        assert hub_seqs(directory, after_seq=after, upto_seq=upto, types=types) == [r.hub_seq for r in wanted]
        with JournalReader(directory, strict=True) as reader:
            assert (
                reader.page(after, 4, types)
                == [r for r in written if r.hub_seq > after and (types is None or r.type in types)][:4]
            )
            t_ns = upto * 1000 + 500
            assert reader.seq_before(t_ns) == min(upto, len(written))


@given(
    st.text(min_size=1, max_size=9),
    st.dictionaries(st.text(max_size=9), st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=9), st.none())),
    st.lists(st.builds(Segment, st.just("s.sqlite"), st.booleans(), *[st.none() | st.integers(0, 2**62)] * 4)),
)
@settings(max_examples=30, deadline=None)
def test_a_manifest_round_trips(run_id: str, meta: dict[str, object], segments: list[Segment]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        manifest = Manifest(1, run_id, meta, tuple(segments))
        manifest.save(Path(folder))
        assert Manifest.load(Path(folder)) == manifest


def test_a_closed_journal_is_plain_files_with_their_ranges(tmp_path: Path) -> None:
    write(tmp_path, [(1, 4), (5, 8), (9, 9)], segment_rows=4)
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    assert [(s["first_seq"], s["last_seq"], s["sealed"]) for s in manifest["segments"]] == [
        (1, 4, True),
        (5, 8, True),
        (9, 9, True),
    ]
    assert not list(tmp_path.glob("*-wal"))


def test_a_writer_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    write(tmp_path, [(1, 4)])
    with JournalWriter(tmp_path, run_id=None) as writer:
        assert (writer.run_id, writer.last_seq, writer.last_t_ns) == ("run-1", 4, 4000)
        assert writer.source_seqs == {"me#1": 4}
        assert writer.type_counts == {"llm.first_token": 3, "worker.load": 1}
        writer.append(rows(5, 6, "you#1"), {"them#1": 9})
    with JournalWriter(tmp_path, run_id="run-1") as writer:
        assert writer.source_seqs == {"me#1": 4, "you#1": 6, "them#1": 9}
        assert writer.meta == {"scenario": "quick"}
    assert hub_seqs(tmp_path) == [1, 2, 3, 4, 5, 6]


_WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from tests.bus.test_journal import rows
from prorsa.bus.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), run_id="run-1", segment_rows=40)
first = writer.last_seq + 1
while True:
    writer.append(rows(first, first + 9))
    first += 10
    print(first - 1, flush=True)
"""


def test_sigkill_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    for _ in range(3):
        before = hub_seqs(tmp_path)[-1] if (tmp_path / MANIFEST_FILE).exists() else 0
        writer = subprocess.Popen([sys.executable, "-c", _WRITE_UNTIL_KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(15)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().splitlines() if line.endswith(b"0")]
        writer.wait()
        writer.stdout.close()
        assert said[0] == before + 10
        found = hub_seqs(tmp_path)
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= said[-1]


def test_a_segment_whose_first_transaction_never_came_is_used_again(tmp_path: Path) -> None:
    write(tmp_path, [(1, 4)])
    manifest = Manifest.load(tmp_path)
    Manifest(1, "run-1", {}, (*manifest.segments, Segment("segment-00002.sqlite"))).save(tmp_path)
    assert hub_seqs(tmp_path) == [1, 2, 3, 4]
    sqlite3.connect(tmp_path / "segment-00002.sqlite").close()
    assert hub_seqs(tmp_path) == [1, 2, 3, 4]
    write(tmp_path, [(5, 6)])
    assert hub_seqs(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert len(Manifest.load(tmp_path).segments) == 2


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1", segment_rows=3) as writer, JournalReader(tmp_path) as reader:
        assert list(reader.read()) == []
        seen = 0
        for first in range(1, 20, 2):
            writer.append(rows(first, first + 1))
            new = [stamped.hub_seq for stamped in reader.read(after_seq=seen)]
            assert new == [first, first + 1]
            seen = new[-1]
        assert not reader.damaged


def test_a_reader_sees_segments_that_begin_while_it_reads(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1", segment_rows=3) as writer, JournalReader(tmp_path) as reader:
        writer.append(rows(1, 2))
        reading = reader.read()
        assert next(reading).hub_seq == 1
        writer.append(rows(3, 4))
        writer.append(rows(5, 8))
        assert [stamped.hub_seq for stamped in reading] == [2, 3, 4, 5, 6, 7, 8]


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1"), pytest.raises(RefusedError, match=f"by process {os.getpid()}"):
        JournalWriter(tmp_path, run_id="run-1")
    JournalWriter(tmp_path, run_id="run-1").close()


def test_another_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [(1, 1)])
    with pytest.raises(RefusedError, match="holds run run-1, not run-2"):
        JournalWriter(tmp_path, run_id="run-2")


def test_rows_that_do_not_follow_are_a_defect(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1") as writer, pytest.raises(InvariantError, match="do not follow"):
        writer.append(rows(2, 3))


def test_a_failed_append_leaves_nothing_behind(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1") as writer:
        writer.append(rows(1, 2))
        bad = rows(3, 4)
        bad[1] = bad[1]._replace(event=None)  # type: ignore[arg-type]
        with pytest.raises(JournalError, match="cannot write"):
            writer.append(bad)
    assert hub_seqs(tmp_path) == [1, 2]


def test_a_missing_journal_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="name a journal directory"):
        JournalReader(tmp_path / "nowhere")
    with pytest.raises(JournalError, match="give a run_id"):
        JournalWriter(tmp_path, run_id=None)


def test_another_version_is_named(tmp_path: Path) -> None:
    write(tmp_path, [(1, 1)])
    content = json.loads((tmp_path / MANIFEST_FILE).read_text()) | {"version": 99, "news": 1}
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(content))
    with pytest.raises(JournalError, match="version 99, this Prorsa reads version 1"):
        JournalReader(tmp_path)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    write(tmp_path, [(1, 1)])
    (tmp_path / MANIFEST_FILE).write_text("{")
    with pytest.raises(JournalError, match=r"manifest\.json is damaged"):
        JournalReader(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "missing", "garbage"])
def test_a_damaged_segment_costs_only_itself(tmp_path: Path, damage: str) -> None:
    write(tmp_path, [(1, 50), (51, 100), (101, 150)], segment_rows=50)
    segment = tmp_path / "segment-00002.sqlite"
    if damage == "missing":
        segment.unlink()
    else:
        content = segment.read_bytes()
        segment.write_bytes(content[: len(content) // 3] if damage == "cut" else b"x" * len(content))
    with JournalReader(tmp_path) as reader:
        found = [stamped.hub_seq for stamped in reader.read()]
        assert set(found) >= {*range(1, 51), *range(101, 151)}
        assert "segment-00002.sqlite" in reader.damaged
    with (
        JournalReader(tmp_path, strict=True) as reader,
        pytest.raises(JournalError, match=r"segment-00002\.sqlite cannot be read"),
    ):
        list(reader.read())


def test_an_event_that_does_not_decode_costs_only_itself(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, run_id="run-1") as writer:
        bad = rows(1, 5)
        bad[1] = bad[1]._replace(event=b"\xc1")
        writer.append(bad)
    with JournalReader(tmp_path) as reader:
        assert numbers(list(reader.read())) == [1, 4, 5]
        assert list(reader.damaged) == ["event 2"]
    with JournalReader(tmp_path, strict=True) as reader, pytest.raises(JournalError, match="event 2"):
        list(reader.read())


def test_a_writer_does_not_go_on_after_a_damaged_segment(tmp_path: Path) -> None:
    write(tmp_path, [(1, 50)])
    (tmp_path / "segment-00001.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(JournalError, match=r"segment-00001\.sqlite.*start a new run"):
        JournalWriter(tmp_path, run_id="run-1")


def test_a_recording_on_read_only_media_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, [(1, 5)])
    for path in tmp_path.iterdir():
        path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert hub_seqs(tmp_path) == [1, 2, 3, 4, 5]
    finally:
        tmp_path.chmod(0o700)
