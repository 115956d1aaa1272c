"""The advised number of trajectories, read from a real hub."""

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prorsa.bus.keys import HubKeys, Keys, make_keys
from prorsa.bus.publisher import Publisher
from prorsa.events import Admission
from prorsa.rollout import Advice, advice
from tests.bus.conftest import HubThread

FOR_S = 60.0


def said(limit: int | None, mode: str = "advise") -> Admission:
    """What a controller says."""
    return Admission(
        tick_ns=0, mode=mode, limit=limit, live=3, room_tokens=10**6, mean_context_tokens=5e4, reason="they hold it"
    )  # type: ignore[arg-type]


def until(holds: Callable[[], object], within_s: float = FOR_S) -> None:
    """Wait for something to hold."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.01)


def test_it_follows_what_the_controller_says(hub: HubThread) -> None:
    with Advice(hub.run_dir, ask_every_s=0.02) as advised, Publisher(hub.endpoints.ingest, "controller") as controller:
        assert advised.limit is None
        controller.publish(said(17))
        until(lambda: advised.limit == 17)
        controller.publish(said(12, "gate"))
        until(lambda: advised.limit == 12)
        assert advised.admission == said(12, "gate")
        controller.publish(said(None))
        until(lambda: advised.limit is None)
        assert advised.admission == said(None)


def test_who_comes_late_hears_the_last_and_a_hub_may_be_away(hub: HubThread) -> None:
    with Publisher(hub.endpoints.ingest, "controller") as controller:
        controller.publish(said(17))
        assert controller.flush(FOR_S)
        with Advice(hub.endpoints.control, ask_every_s=0.02) as advised:
            until(lambda: advised.limit == 17)
            hub.stop()
            assert advised.limit == 17
            hub.start()
            controller.publish(said(9))
            until(lambda: advised.limit == 9)


@pytest.mark.parametrize("variable", ["PRORSA_CONTROL", "PRORSA_HUB"])
def test_the_environment_names_the_hub(hub: HubThread, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, str(hub.run_dir))
    with Publisher(hub.endpoints.ingest, "controller") as controller, Advice(ask_every_s=0.02) as advised:
        controller.publish(said(17))
        until(lambda: advised.limit == 17)


def test_without_a_hub_it_knows_nothing_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORSA_HUB", "tcp://127.0.0.1:1")  # where to publish says nothing of where to ask
    advised = Advice()
    assert advised.limit is None
    assert advised.admission is None


def test_a_configuration_that_is_wrong_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    advised = Advice(tmp_path / "nowhere")
    assert [advised.limit, advised.limit] == [None, None]
    assert [record.message for record in caplog.records if "no advice" in record.message] != []
    assert len(caplog.records) == 1


def test_advice_that_nobody_repeats_no_longer_holds(hub: HubThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "OLD_S", 0.4)
    with Publisher(hub.endpoints.ingest, "controller") as controller, Advice(hub.run_dir, ask_every_s=0.02) as advised:
        controller.publish(said(17))
        until(lambda: advised.limit == 17)
        until(lambda: advised.limit is None)
        controller.publish(said(17))
        until(lambda: advised.limit == 17)


def _read(advised: Advice) -> None:
    until(lambda: advised.limit == 9)
    os._exit(0)


def test_it_goes_on_in_a_forked_child_and_a_pickled_copy(hub: HubThread) -> None:
    with Publisher(hub.endpoints.ingest, "controller") as controller, Advice(hub.run_dir, ask_every_s=0.02) as advised:
        controller.publish(said(17))
        until(lambda: advised.limit == 17)
        child = multiprocessing.get_context("fork").Process(target=_read, args=(advised,))
        child.start()
        controller.publish(said(9))
        child.join(FOR_S)
        assert child.exitcode == 0
        with pickle.loads(pickle.dumps(advised)) as copy:
            until(lambda: copy.limit == 9)


def test_a_hub_with_keys_answers_a_viewer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_keys(tmp_path)
    hub = HubThread(tmp_path / "run", tcp=True, keys=HubKeys.load(tmp_path))
    endpoints = hub.start().endpoints
    try:
        with (
            Publisher(endpoints.ingest, "controller", keys=Keys.load(tmp_path / "operator.key")) as controller,
            Advice(endpoints.control, keys=tmp_path / "viewer.key", ask_every_s=0.02) as advised,
            Advice(endpoints.control, keys=tmp_path / "publisher.key", ask_every_s=0.02) as refused,
        ):
            controller.publish(said(17))
            until(lambda: advised.limit == 17)
            assert refused.limit is None
            until(lambda: "does not let us in" in caplog.text)
    finally:
        hub.stop()
