"""A prefill worker that leaves its role and returns, while a decode worker stays."""

import time

import pytest

from testbed.client import HttpError
from testbed.pool import Pool
from tests.live.plugin.conftest import WAITING_TIMEOUT_S, Pair, prompt

pytestmark = pytest.mark.live


def leave_and_return(pair: Pair) -> None:
    pair.settle()
    pair.prefill.switch("decode")
    pair.prefill.switch("prefill")


def test_the_next_request_finds_the_prefill_worker_that_came_back(pair: Pair) -> None:
    expected = pair.generate(prompt(1, 60)).output_ids
    for _ in range(3):
        leave_and_return(pair)
        began = time.monotonic()
        assert pair.generate(prompt(1, 60)).output_ids == expected
        assert time.monotonic() - began < WAITING_TIMEOUT_S / 2
    assert "Prorsa forgot the address of prefill worker" in pair.decode.log_text()


def test_without_the_plugin_it_is_lost(stock: Pair, pool: Pool) -> None:
    stock.generate(prompt(1, 60))
    leave_and_return(stock)
    began = time.monotonic()
    with pytest.raises(HttpError):
        stock.generate(prompt(1, 60))
    assert time.monotonic() - began >= WAITING_TIMEOUT_S * 0.9
    pool.restart(stock.decode)  # it holds the lost request's KV for half a minute


def test_a_decode_worker_that_leaves_and_returns_is_found_too(pair: Pair) -> None:
    expected = pair.generate(prompt(2, 60)).output_ids
    pair.settle()
    pair.decode.switch("prefill")
    pair.decode.switch("decode")
    assert pair.generate(prompt(2, 60)).output_ids == expected


def test_a_prefill_worker_that_died_and_restarted_is_found_at_its_new_address(pair: Pair, pool: Pool) -> None:
    expected = pair.generate(prompt(3, 60)).output_ids
    pair.settle()
    pool.restart(pair.prefill)
    began = time.monotonic()
    assert pair.generate(prompt(3, 60)).output_ids == expected
    assert time.monotonic() - began < WAITING_TIMEOUT_S / 2
