"""Clients' requests taken apart."""

from typing import Any

import pytest

from prorsa.cluster.router.inbound import take_apart
from prorsa.errors import InputError


def test_a_single_request_stays_as_it_is() -> None:
    inbound = take_apart("generate", {"input_ids": [1, 2], "rid": "mine", "return_logprob": True, "stream": True})
    (single,) = inbound.singles
    assert (single.units, single.client_rid, inbound.many, inbound.stream) == ([1, 2], "mine", False, True)
    assert single.body == {"input_ids": [1, 2], "return_logprob": True, "sampling_params": {"n": 1}}


def test_a_batch_becomes_singles_with_their_own_values() -> None:
    inbound = take_apart(
        "generate",
        {
            "input_ids": [[1], [2]],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "return_logprob": [True, False],
            "token_ids_logprob": [5, 6],
            "lora_path": "same",
            "rid": "x",
        },
    )
    first, second = inbound.singles
    assert inbound.many
    assert (first.body["sampling_params"]["max_new_tokens"], second.body["sampling_params"]["max_new_tokens"]) == (1, 2)
    assert (first.body["return_logprob"], second.body["return_logprob"]) == (True, False)
    assert first.body["token_ids_logprob"] == [5, 6], "one list for all, not one id each"
    assert second.body["lora_path"] == "same"
    assert (first.client_rid, second.client_rid) == ("x_0", "x_1")


def test_samples_become_singles_in_sglangs_order() -> None:
    inbound = take_apart("generate", {"text": ["a", "b"], "sampling_params": {"n": 2}})
    assert [single.units for single in inbound.singles] == ["a", "a", "b", "b"]
    assert all(single.body["sampling_params"]["n"] == 1 for single in inbound.singles)


def test_a_list_of_one_is_still_a_batch() -> None:
    assert take_apart("generate", {"text": ["a"]}).many
    assert not take_apart("generate", {"text": "a"}).many


def test_what_the_client_says_of_pairs_is_ours_to_say() -> None:
    (single,) = take_apart("generate", {"text": "a", "bootstrap_host": "h", "bootstrap_room": 1}).singles
    assert not any(key.startswith("bootstrap") for key in single.body)


def test_openai_prompts_and_samples() -> None:
    inbound = take_apart("completions", {"prompt": ["a", "b"], "n": 2, "stream_options": {"include_usage": True}})
    assert [single.prompt_index for single in inbound.singles] == [0, 0, 1, 1]
    assert inbound.include_usage
    assert take_apart("completions", {"prompt": [1, 2, 3]}).singles[0].units == [1, 2, 3]
    chat = take_apart("chat", {"messages": [{"role": "user", "content": "hi"}]})
    assert chat.singles[0].units == "user: hi\n"


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("generate", {}, "no prompt"),
        ("generate", {"input_ids": []}, "is empty"),
        ("generate", {"text": ["a", "b"], "sampling_params": [{}]}, "1 sampling_params for 2 prompts"),
        ("generate", {"text": ["a", "b"], "rid": ["x"]}, "1 rids for 2 prompts"),
        ("generate", {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "different `n`"),
        ("chat", {}, "`messages`"),
        ("chat", {"messages": "hi"}, "must be a list"),
        ("completions", {}, "`prompt`"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(kind: Any, body: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        take_apart(kind, body)
