import logging

import pytest

from prorsa.cluster.plugin.hooks import Failures


def fail(*_: object) -> None:
    raise ValueError("broken")


def test_a_failing_hook_never_raises_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    failures = Failures(said.append)
    guarded = failures.guard("Scheduler.run_batch", fail)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert guarded(1, 2) is None
    assert failures.counts["Scheduler.run_batch"] == 3
    assert len(said) == len(caplog.records) == 1
    assert "Scheduler.run_batch" in said[0]
    assert "ValueError: broken" in said[0]
    assert caplog.records[0].exc_info is not None, "the traceback is in the log"


def test_each_place_is_said() -> None:
    said: list[str] = []
    failures = Failures(said.append)
    for place in ("here", "there", "here"):
        failures.guard(place, fail)()
    assert len(said) == 2


def test_a_guarded_hook_passes_its_arguments_and_hides_its_result() -> None:
    got: list[object] = []

    def hook(*args: object, **kwargs: object) -> str:
        got.append((args, kwargs))
        return "would change SGLang's result"

    assert Failures().guard("x", hook)(1, two=2) is None
    assert got == [((1,), {"two": 2})]


def test_an_interrupt_is_not_swallowed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Failures().guard("x", interrupt)()
