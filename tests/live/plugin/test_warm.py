"""Warm flips: what a worker holds of a trajectory is still there after it has changed its role."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from prorsa.events import WorkerLoad
from testbed.hub import RunningHub
from testbed.pool import KV_TOKENS, PAGE_TOKENS, Pool, Worker, model
from tests.live.plugin.conftest import Pair, prompt, whole_pages

pytestmark = pytest.mark.live

MARGIN = 1e-3
"""Smallest distance between the two best tokens for which outputs are compared; float32 noise is far below it."""
CLEAR_SEEDS = (25, 27, 28, 38)
"""Trajectories that keep this distance over four turns."""


class Trajectory:
    """Turns that each continue the context: the prompt of a turn is all that went before and some new tokens."""

    def __init__(self, seed: int, first_tokens: int = 200) -> None:
        self.seed = seed
        self.turns = 0
        self.context = prompt(seed, first_tokens)
        self.outputs: list[list[int]] = []
        self.cached: list[int] = []
        self.held: list[int] = []
        """For each turn the tokens of its prompt that a worker which served the last turn holds."""
        self._last = 0

    def turn(self, pair: Pair, tokens: int = 24, new: int = 30) -> None:
        answer = pair.generate(self.context, tokens)
        self.outputs.append(answer.output_ids)
        self.cached.append(answer.cached_tokens)
        self.held.append(self._last)
        self._last = len(self.context) + tokens - 1  # the KV of the last token is not computed
        self.turns += 1
        self.context = [*self.context, *answer.output_ids, *prompt(1000 * self.seed + self.turns, new)]


def outputs_of(pair: Pair, seeds: tuple[int, ...], turns: int) -> list[list[list[int]]]:
    """The same trajectories on a pair that never flips; each choice is clear by :data:`MARGIN`."""
    trajectories = [Trajectory(seed) for seed in seeds]
    for _ in range(turns):
        for trajectory in trajectories:
            assert_clear(pair, trajectory)
            trajectory.turn(pair)
    return [t.outputs for t in trajectories]


def assert_clear(pair: Pair, trajectory: Trajectory) -> None:
    answer = pair.generate(trajectory.context, 24, return_logprob=True, top_logprobs_num=2)
    margins = [best[0] - second[0] for best, second in answer.meta["output_top_logprobs"]]
    assert min(margins) >= MARGIN, "choose another seed: this trajectory has a near tie"


@pytest.mark.parametrize("flips", [1, 2], ids=["decode becomes prefill", "and back"])
def test_the_first_turn_after_a_flip_is_warm(pair: Pair, flips: int) -> None:
    trajectories = [Trajectory(seed) for seed in range(4)]
    for trajectory in trajectories:
        trajectory.turn(pair)
    for _ in range(flips):
        pair = pair.swap()
    for trajectory in trajectories:
        trajectory.turn(pair)
        assert trajectory.cached[1] >= 0.8 * whole_pages(trajectory.held[1]) > 0


def test_without_the_plugin_it_is_cold(stock: Pair) -> None:
    trajectory = Trajectory(1)
    trajectory.turn(stock)
    stock = stock.swap()
    trajectory.turn(stock)
    assert trajectory.cached[1] == 0
    stock.swap()


def test_outputs_are_those_of_a_pair_that_never_flips(pair: Pair, undisturbed: Pair) -> None:
    turns = 4
    expected = outputs_of(undisturbed, CLEAR_SEEDS, turns)
    trajectories = [Trajectory(seed) for seed in CLEAR_SEEDS]
    for _ in range(turns):
        for trajectory in trajectories:
            trajectory.turn(pair)
        pair = pair.swap()
    assert [t.outputs for t in trajectories] == expected
    for trajectory in trajectories:
        for cached, held in zip(trajectory.cached[1:], trajectory.held[1:], strict=True):
            assert cached >= 0.8 * whole_pages(held)


@pytest.mark.parametrize("tokens", [PAGE_TOKENS, 5 * PAGE_TOKENS, 5 * PAGE_TOKENS + 1])
def test_a_prompt_that_is_cached_whole_is_answered_alike(pair: Pair, tokens: int) -> None:
    ids = prompt(77, tokens)
    expected = pair.generate(ids).output_ids
    for _ in range(2):
        assert pair.generate(ids).output_ids == expected
        pair = pair.swap()
        assert pair.generate(ids).output_ids == expected


def test_fifty_flips_leak_no_slot(pair: Pair, hub: RunningHub) -> None:
    workers = (pair.prefill, pair.decode)
    dropped = [worker.log_text().count("Prorsa dropped") for worker in workers]
    for flips in range(25):  # of both workers
        if flips % 8 == 0:
            trajectory = Trajectory(500 + flips, first_tokens=100)
        trajectory.turn(pair, tokens=4, new=10)
        pair = pair.swap()
    pair.settle()
    assert [worker.log_text().count("Prorsa dropped") for worker in workers] == dropped, "the books did not balance"
    for worker in workers:
        assert worker.load()["num_used_tokens"] == 0
        before = hub.head()
        worker.post("/flush_cache?timeout=5")
        load = hub.wait_for(
            WorkerLoad, lambda e, w=worker: e.worker_id == w.name and e.kv_cached == 0, after_seq=before
        )
        assert load.event.kv_used == 0


def test_an_abort_in_flight_does_not_cost_the_next_flip_its_cache(pair: Pair) -> None:
    trajectory = Trajectory(6)
    trajectory.turn(pair)
    pair.decode.post("/slow_down", {"forward_sleep_time": 0.05})
    client = threading.Thread(target=pair.generate, args=(prompt(7, 300), 400))
    client.start()
    wait_until(lambda: pair.decode.load()["num_running_reqs"] == 1)
    pair.decode.post("/abort_request", {"abort_all": True})
    client.join()
    pair.decode.post("/slow_down", {"forward_sleep_time": None})
    pair = pair.swap()
    trajectory.turn(pair)
    assert trajectory.cached[1] >= 0.8 * whole_pages(trajectory.held[1])


def test_kept_prefixes_give_way_to_admissions(pair: Pair) -> None:
    """The same burst just after a flip: on pools full of what they held in the other role, and on empty ones.

    Paired and in turns. Forward steps are slowed down to what a GPU takes, and the best of each kind is compared:
    whatever else runs on this machine can only make a burst slower, so a busy one gets more turns, both kinds alike.
    """
    best = {"full": 0.0, "empty": 0.0}
    for repeat in range(8):
        if repeat >= 3 and best["full"] >= 0.9 * best["empty"]:
            break
        for kind in ("full", "empty") if repeat % 2 else ("empty", "full"):
            empty(pair)
            if kind == "full":
                fill(pair, repeat)
            pair = pair.swap()
            assert (kept_tokens(pair.decode) > 0.9 * KV_TOKENS) == (kind == "full")
            pair.generate(prompt(1, 20), 2)  # the two shake hands
            best[kind] = max(best[kind], burst(pair, seed=2 * repeat + (kind == "full")))
    print(f"requests/s: {best}")
    assert best["full"] >= 0.9 * best["empty"], best


def empty(pair: Pair) -> None:
    pair.settle()
    for worker in (pair.prefill, pair.decode):
        worker.post("/flush_cache?timeout=5")


def kept_tokens(worker: Worker) -> int:
    """Cached tokens that the worker took over its last role switch, by its own log."""
    return int(worker.log_text().rsplit("Prorsa kept ", 1)[1].split(" ", 1)[0])


def fill(pair: Pair, seed: int) -> None:
    """Fill both workers' pools with finished prefixes."""
    with ThreadPoolExecutor(4) as clients:
        jobs = [clients.submit(pair.generate, prompt(9000 + 50 * seed + n, 480), 2) for n in range(20)]
        for job in jobs:
            job.result()


def burst(pair: Pair, seed: int, requests: int = 40) -> float:
    """Requests a second of a burst of new prompts that together exceed the pool."""
    workers = (pair.prefill, pair.decode)
    for worker in workers:
        worker.post("/slow_down", {"forward_sleep_time": 0.03})
    began = time.monotonic()
    with ThreadPoolExecutor(requests) as clients:
        jobs = [clients.submit(pair.generate, prompt(100_000 + 100 * seed + n, 400), 8) for n in range(requests)]
        for job in jobs:
            assert len(job.result().output_ids) == 8
    rate = requests / (time.monotonic() - began)
    for worker in workers:
        worker.post("/slow_down", {"forward_sleep_time": None})
    return rate


def wait_until(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_weights(fresh: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Other weights for the workers; the first ones are put back at the end."""
    yield str(model(tmp_path_factory.mktemp("weights"), seed=1))
    for name in "ABCD":
        fresh[name].wait_idle()
        update_weights(fresh[name], str(fresh.model), flush=True)


def update_weights(worker: Worker, path: str, *, flush: bool) -> None:
    answer = worker.post("/update_weights_from_disk", {"model_path": path, "flush_cache": flush})
    assert answer["success"], answer


@pytest.mark.parametrize("flush", [True, False])
def test_nothing_stale_survives_a_weight_update_and_a_flip(
    pair: Pair, undisturbed: Pair, two_weights: str, flush: bool
) -> None:
    ids = prompt(8, 300)
    before = pair.generate(ids).output_ids
    pair = pair.swap()
    pair.settle()
    for worker in (pair.prefill, pair.decode):
        update_weights(worker, two_weights, flush=flush)
    for worker in (undisturbed.prefill, undisturbed.decode):
        update_weights(worker, two_weights, flush=True)
    pair = pair.swap()
    answer = pair.generate(ids)
    assert answer.cached_tokens == 0
    assert answer.output_ids == undisturbed.generate(ids).output_ids != before


def test_an_update_of_an_empty_pool_leaves_later_flips_warm(pair: Pair, two_weights: str) -> None:
    """As frameworks do it: flush, then update without a flush of its own."""
    pair.generate(prompt(9, 100))
    empty(pair)
    for worker in (pair.prefill, pair.decode):
        update_weights(worker, two_weights, flush=False)
    trajectory = Trajectory(9)
    trajectory.turn(pair)
    pair = pair.swap()
    trajectory.turn(pair)
    assert trajectory.cached[1] >= 0.8 * whole_pages(trajectory.held[1])
