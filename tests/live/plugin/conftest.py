"""One pool for all tests of the plugin: two pairs with the plugin, of which one never flips, and a stock pair."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest

from prorsa.bus.publisher import Publisher  # noqa: F401 - the import that the workers need, made early to fail early
from testbed.client import Answer, generate
from testbed.hub import RunningHub
from testbed.pool import PAGE_TOKENS, Pool, Worker

WAITING_TIMEOUT_S = 6
"""After so long a request gives up waiting for a peer that does not answer."""
VOCAB = range(3, 259)


@dataclass
class Pair:
    """A prefill and a decode worker, by their present roles."""

    prefill: Worker
    decode: Worker

    def generate(self, input_ids: list[int], tokens: int = 16, **more: object) -> Answer:
        return generate(self.prefill, self.decode, input_ids, tokens, **more)  # type: ignore[arg-type]

    def settle(self) -> None:
        self.prefill.wait_idle()
        self.decode.wait_idle()

    def swap(self) -> Self:
        """Flip both."""
        self.settle()
        self.prefill.switch("decode")
        self.decode.switch("prefill")
        return type(self)(self.decode, self.prefill)


def prompt(seed: int, tokens: int) -> list[int]:
    source = random.Random(seed)
    return [source.choice(VOCAB) for _ in range(tokens)]


def whole_pages(tokens: int) -> int:
    return tokens // PAGE_TOKENS * PAGE_TOKENS


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with RunningHub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture(scope="session")
def pool(hub: RunningHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    env = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(WAITING_TIMEOUT_S)}
    with Pool(
        ["prefill", "decode", "prefill", "decode"],
        hub=hub.ingest,
        run_id=hub.run_id,
        env=env,
        home=tmp_path_factory.mktemp("bed"),
    ) as running:
        for role in ("prefill", "decode"):
            running.add(role, env={"PRORSA_HUB": ""})
        yield running


@pytest.fixture
def fresh(pool: Pool) -> Iterator[Pool]:
    """The pool with every worker idle, empty and in its launch role."""
    yield pool
    for worker in pool.workers:
        worker.post("/slow_down", {"forward_sleep_time": None})
        worker.post("/abort_request", {"abort_all": True})
    for worker in pool.workers:
        worker.wait_idle(WAITING_TIMEOUT_S + 20)
        if worker.live_role() != worker.role:
            worker.switch(worker.role)
        worker.post("/flush_cache?timeout=5")


@pytest.fixture
def pair(fresh: Pool) -> Pair:
    """A pair with the plugin."""
    return Pair(fresh["A"], fresh["B"])


@pytest.fixture
def undisturbed(fresh: Pool) -> Pair:
    """Another pair with the plugin, which never flips."""
    return Pair(fresh["C"], fresh["D"])


@pytest.fixture
def stock(fresh: Pool) -> Pair:
    """A pair without the plugin."""
    return Pair(fresh["E"], fresh["F"])
