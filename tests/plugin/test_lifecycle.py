from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.plugin import lifecycle as module
from prorsa.cluster.plugin.lifecycle import HEALTH_CHECK, Lifecycle, finish_reason
from prorsa.events import (
    Event,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmQueued,
    Role,
    decode,
    encode,
    make_rid,
    type_name,
)
from tests.plugin.scheduling import Req, admitted, batch


class Worker:
    """A lifecycle and what it has emitted."""

    def __init__(self, role: Role) -> None:
        self.events: list[Event] = []
        self.lifecycle = Lifecycle(self.events.append)
        self.lifecycle.identify("w", None)
        self.lifecycle.role = role

    def names(self) -> list[str]:
        return [type_name(event) for event in self.events]


def test_a_prompt_in_chunks_starts_once_and_ends_with_its_token() -> None:
    worker = Worker("prefill")
    req = Req("r", [1] * 100, cached_tokens=32)
    worker.lifecycle.queued(None, req)
    for computed in (32, 64):
        req.prefix_len = computed
        worker.lifecycle.batch_starts(None, batch("extend", req))
        worker.lifecycle.batch_done(None, None, batch("extend", req), None)
    progress = worker.lifecycle.progress()
    assert progress is not None
    assert progress.prefilled == (("r", 32),), "computed, without what came from the cache"
    worker.lifecycle.batch_starts(None, batch("extend", req))
    req.output_ids.append(7)
    worker.lifecycle.batch_done(None, None, batch("extend", req), None)
    assert worker.names() == ["llm.queued", "llm.prefill_start", "llm.prefill_end"]
    end = worker.events[-1]
    assert isinstance(end, LlmPrefillEnd)
    assert (end.cached_tokens, end.computed_tokens) == (32, 68)
    assert worker.lifecycle.progress() is None


def test_a_prefill_worker_leaves_first_token_and_end_to_decode() -> None:
    worker = Worker("prefill")
    req = Req("r", [1] * 10, output_ids=[5])
    worker.lifecycle.queued(None, req)
    req.finish("length")
    worker.lifecycle.output(None, None, [req])
    assert worker.names() == ["llm.queued"]


def test_a_decode_worker_reports_admission_first_token_and_end_once() -> None:
    worker = Worker("decode")
    req = Req("foreign", [1] * 10)
    worker.lifecycle.queued(None, req)
    worker.lifecycle.admitted(admitted(req), None)
    req.output_ids.append(5)
    for _ in range(3):
        worker.lifecycle.output(None, None, [req])
        worker.lifecycle.batch_done(None, None, batch("decode", req), None)
    req.finish("length")
    for _ in range(2):  # with overlapped scheduling a finished request is put out twice
        worker.lifecycle.output(None, None, [req])
    assert worker.names() == ["llm.queued", "llm.admitted", "llm.first_token", "llm.end"]
    assert worker.lifecycle.output_tokens_total == 3


def test_a_retracted_request_is_not_queued_or_begun_again() -> None:
    worker = Worker("decode")
    req = Req("r", [1] * 10, output_ids=[5])
    worker.lifecycle.queued(None, req)
    worker.lifecycle.output(None, None, [req])
    worker.lifecycle.queued(None, req, is_retracted=True)
    worker.lifecycle.output(None, None, [req])
    assert worker.names() == ["llm.queued", "llm.first_token"]


@pytest.mark.parametrize("rid", [make_rid("a" * 32, 0), make_rid("b", 17)])
def test_the_router_ends_its_own_requests(rid: str) -> None:
    worker = Worker("decode")
    for end in (worker.lifecycle.output, None):
        req = Req(rid, [1])
        worker.lifecycle.queued(None, req)
        req.finish()
        if end is None:
            worker.lifecycle.aborted(None, None, None, req)
        else:
            end(None, None, [req])
    assert "llm.end" not in worker.names()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"type": "stop", "matched": 2}, "stop"),
        ({"type": "length", "length": 8}, "length"),
        ({"type": "abort", "status_code": None}, "abort"),
        ({"type": "abort", "status_code": 400}, "abort"),
        ({"type": "abort", "status_code": 500}, "error"),
        ({"type": "abort", "status_code": 503}, "error"),
    ],
)
def test_finish_reasons(reason: dict[str, object], expected: str) -> None:
    assert finish_reason(reason) == expected


@pytest.mark.parametrize("rid", ["", f"{HEALTH_CHECK}_17", "x" * 261, None])
def test_requests_that_the_schema_cannot_hold_are_passed_over(rid: str) -> None:
    worker = Worker("mixed")
    worker.lifecycle.queued(None, Req(rid, [1]))
    assert not worker.events


def test_the_oldest_is_forgotten_when_ends_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    worker = Worker("mixed")
    reqs = [Req(str(n), [1]) for n in range(3)]
    for req in reqs:
        worker.lifecycle.queued(None, req)
    for req in reqs:
        req.finish()
        worker.lifecycle.output(None, None, [req])
    ends = [event for event in worker.events if isinstance(event, LlmEnd)]
    assert [end.request_id for end in ends] == ["1", "2"]


STEPS = st.sampled_from(["queued", "retracted", "start", "chunk", "token", "admitted", "output", "finish", "aborted"])
ORDER = (LlmQueued, LlmAdmitted, LlmPrefillStart, LlmPrefillEnd, LlmFirstToken, LlmEnd)


@given(role=st.sampled_from(get_args(Role)), steps=st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=60))
def test_whatever_the_scheduler_does_each_life_is_told_once_and_decodes(
    role: Role, steps: list[tuple[int, str]]
) -> None:
    worker = Worker(role)
    reqs = [Req(f"r{n}", [1] * 20) for n in range(3)]
    queued: set[str] = set()
    for index, step in steps:
        req, do = reqs[index], worker.lifecycle
        match step:
            case "queued":
                if req.rid not in queued:  # ids are used once
                    queued.add(req.rid)
                    do.queued(None, req)
            case "retracted":
                do.queued(None, req, is_retracted=True)
            case "start":
                do.batch_starts(None, batch("extend", req))
            case "chunk":
                do.batch_done(None, None, batch("extend", req), None)
            case "token":
                req.output_ids.append(1)
                do.batch_done(None, None, batch("extend" if len(req.output_ids) == 1 else "decode", req), None)
            case "admitted":
                if not req.output_ids:
                    do.admitted(admitted(req), None)
            case "output":
                do.output(None, None, reqs)
            case "finish":
                req.finish()
            case "aborted":
                do.aborted(None, None, None, req)
    for event in worker.events:
        assert decode(encode(event)) == event, "every event fits the schema"
    for req in reqs:
        life = [type(e) for e in worker.events if getattr(e, "rid", getattr(e, "request_id", None)) == req.rid]
        once = [kind for kind in life if kind is not LlmAdmitted]
        assert len(once) == len(set(once))
        assert not life or life[0] is LlmQueued
        if LlmPrefillEnd in life:
            assert life.index(LlmPrefillStart) < life.index(LlmPrefillEnd)
        if LlmEnd in life:
            assert life[-1] is LlmEnd
