"""Segments of a resumed request become one ordinary answer."""

import base64
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.router.inbound import take_apart
from prorsa.cluster.router.merge import Segment, cut_at_seam, join, join_openai, same_weights, spans
from prorsa.cluster.router.resume import resume_body, why_not_exact
from tests.router.build import segment


def test_one_segment_is_the_workers_answer_with_the_clients_id() -> None:
    answer = join([segment([1, 2], finish="stop")], rid="mine")
    assert answer["meta_info"]["id"] == "mine"
    assert answer["meta_info"]["cached_tokens"] == 1, "prefill's count, not decode's"
    assert answer["meta_info"]["input_token_logprobs"] == [[-1.0, 5, None]], "input logprobs come from prefill"
    assert "prorsa" not in answer["meta_info"]


def test_segments_join_in_order() -> None:
    answer = join([segment([1, 2]), segment([3], prompt_tokens=5), segment([4, 5], finish="length")], rid="x")
    meta = answer["meta_info"]
    assert answer["output_ids"] == [1, 2, 3, 4, 5]
    assert answer["text"] == "bcdef"
    assert [item[1] for item in meta["output_token_logprobs"]] == [1, 2, 3, 4, 5]
    assert (meta["output_token_logprobs_length"], meta["completion_tokens"], meta["prompt_tokens"]) == (5, 5, 3)
    assert meta["finish_reason"] == {"type": "length", "length": 5}, "the whole output's length"
    assert meta["weight_versions"] == [{"version": "v1", "start": 0, "end": 5}]
    assert [part["output_tokens"] for part in meta["prorsa"]["segments"]] == [2, 1, 2]


def test_weight_versions_are_kept_for_each_token() -> None:
    parts = [segment([1, 2], version="a"), segment([3], version="b"), segment([4], version="b")]
    assert spans(parts) == [{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 2, "end": 4}]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab")), min_size=1, max_size=6))
def test_spans_cover_the_output_without_holes(parts: list[tuple[int, str]]) -> None:
    joined = spans([segment([7] * count, version=version) for count, version in parts])
    covered = [position for span in joined for position in range(span["start"], span["end"])]
    assert covered == list(range(sum(count for count, _ in parts)))
    assert all(a["version"] != b["version"] for a, b in pairwise(joined))


def test_mixed_weights_in_one_pair_are_seen() -> None:
    good = segment([1], version="a")
    assert same_weights(good)
    prefill = {"meta_info": {"weight_version": "b"}}
    assert not same_weights(Segment(good.reply, prefill, "p", "d", 3))


def rows(*numbers: int) -> str:
    """Routed experts with one byte a row."""
    return base64.b64encode(bytes(numbers)).decode()


def test_routed_experts_are_stitched_from_who_computed_them() -> None:
    # Prompt of 3 tokens, outputs of 2 and 2: rows 0 to 5. Decode has not computed its prompt's rows (255 here).
    first = segment([1, 2], routed_experts=rows(255, 255, 2, 3))
    assert first.prefill is not None
    first.prefill["meta_info"]["routed_experts"] = rows(0, 1, 2)
    second = segment([3, 4], prompt_tokens=5, routed_experts=rows(255, 5))
    assert second.prefill is not None
    second.prefill["meta_info"]["routed_experts"] = rows(4)
    answer = join([first, second], rid="x")
    assert base64.b64decode(answer["meta_info"]["routed_experts"]) == bytes([0, 1, 2, 3, 4, 5])


def test_a_character_cut_by_a_seam_is_noticed() -> None:
    whole, cut = segment([1]), segment([2])
    cut.reply["text"] = "\ufffd"
    assert cut_at_seam([cut, whole])
    assert cut_at_seam([whole, cut])
    assert not cut_at_seam([whole, whole])


def single(**body: Any) -> Any:
    return take_apart("generate", {"input_ids": [1, 2, 3], **body}).singles[0]


def test_a_resumed_request_goes_on_from_its_tokens() -> None:
    asked = single(
        sampling_params={"max_new_tokens": 10, "sampling_seed": 7},
        return_logprob=True,
        logprob_start_len=0,
        return_routed_experts=True,
        lora_path="l",
    )
    body = resume_body(asked, [1, 2, 3], [4, 5])
    assert body["input_ids"] == [1, 2, 3, 4, 5]
    assert body["sampling_params"] == {"max_new_tokens": 8, "sampling_seed": 7, "n": 1}
    assert (body["logprob_start_len"], body["routed_experts_start_len"], body["lora_path"]) == (-1, 4, "l")
    assert "text" not in resume_body(take_apart("generate", {"text": "abc"}).singles[0], [1], [2])


def test_without_a_limit_sglangs_own_applies() -> None:
    assert resume_body(single(), [1, 2, 3], [4])["sampling_params"]["max_new_tokens"] == 127
    unlimited = single(sampling_params={"max_new_tokens": None})
    assert resume_body(unlimited, [1, 2, 3], [4])["sampling_params"]["max_new_tokens"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"json_schema": "{}"}},
        {"sampling_params": {"frequency_penalty": 0.5}},
        {"sampling_params": {"repetition_penalty": 1.1}},
        {"sampling_params": {"min_new_tokens": 4}},
        {"sampling_params": {"stop": ["x"]}},
        {"sampling_params": {"beam_width": 4}},
        {"image_data": "x"},
        {"return_hidden_states": True},
        {"session_params": {"id": "s"}},
    ],
)
def test_what_cannot_resume_exactly_is_known(body: dict[str, Any]) -> None:
    assert why_not_exact(single(**body)) is not None


@pytest.mark.parametrize(
    "body",
    [
        {"sampling_params": {"temperature": 0.7, "top_p": 0.9, "stop_token_ids": [2], "sampling_seed": 1}},
        {"sampling_params": {"stop": [], "repetition_penalty": 1.0, "min_new_tokens": 0, "frequency_penalty": None}},
        {"return_logprob": True, "top_logprobs_num": 3},
    ],
)
def test_what_resumes_exactly(body: dict[str, Any]) -> None:
    assert why_not_exact(single(**body)) is None


def test_openai_answers_join() -> None:
    def answer(text: str, prompt: int, completion: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"id": "x", "choices": [{"index": 0, "text": text}], "usage": usage}

    whole = join_openai([answer("a", 3, 1), answer("b", 3, 2), answer("c", 5, 1)], [0, 0, 1])
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, "a"), (1, "b"), (2, "c")]
    assert whole["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
