"""A real hub, and what its journal holds of a tracker."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorsa.bus.hub import JOURNAL_DIR
from prorsa.bus.journal import JournalReader
from prorsa.events import Event, Stamped
from prorsa.rollout import Tracker
from tests.bus.conftest import HubThread


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRORSA_HUB", "PRORSA_RUN_ID", "PRORSA_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubThread]:
    thread = HubThread(tmp_path / "run")
    thread.start()
    thread.endpoints.save(thread.run_dir)
    yield thread
    with contextlib.suppress(AttributeError):
        thread.stop()


@pytest.fixture
def tracker(hub: HubThread) -> Iterator[Tracker]:
    with Tracker(hub.endpoints.ingest) as tracker:
        yield tracker


def stamped(hub: HubThread, after_seq: int = 0) -> list[Stamped]:
    """What a running hub has journalled."""
    with JournalReader(hub.run_dir / JOURNAL_DIR) as reader:
        return list(reader.read(after_seq))


def tracked(hub: HubThread, tracker: Tracker) -> list[Event]:
    """What the hub has journalled once it has all that was tracked."""
    assert tracker.flush(10)
    return [s.event for s in stamped(hub)]
