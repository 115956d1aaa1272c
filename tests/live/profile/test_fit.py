"""A profile fitted to live workers under load, and the simulator with it against the same workers under more load.

The tiny model's steps are made longer, so that they take more than the test machine's own noise and requests queue as
they do on a GPU. The fit sees a light and a heavy load; one between them is predicted. What a request costs outside the
steps is taken from the light load, in which hardly any waits. Tolerances: 20 % of the time per output token, 35 % of
the time to first token.
"""

import asyncio
import json
import random
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.profiling.bench import Deployment, Latency, Load, request_sizes, simulate_load
from prorsa.cluster.profiling.live import Known, live_profile, watch
from prorsa.cluster.profiling.observed import Observed
from prorsa.cluster.profiling.writing import profile_toml
from testbed.client import room
from testbed.pool import PYTHON, Pool, Worker

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not PYTHON.exists(), reason="no workers' environment: run `make sglang-env`"),
]

PREFILL_STEP_S, DECODE_STEP_S = 0.15, 0.05
"""Decode polls for arrivals once a step, which costs each request a few steps: long ones would be most of TTFT."""
PROMPT, OUTPUT = 400, 20
LIGHT, HEAVY, PREDICTED = 2, 8, 5
"""Requests in flight while the counters are watched, and those of the load that is predicted."""
ROUNDS = 8
TPOT_TOLERANCE, TTFT_TOLERANCE = 0.20, 0.35


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode worker whose steps take longer than the machine's noise."""

    prefill: Worker
    decode: Worker

    def stream(self, prompt: list[int], output_tokens: int) -> Latency:
        """One cold request, as a client sees it."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": room(),
        }
        with ThreadPoolExecutor(1) as other:
            sent = time.monotonic()
            leg = other.submit(self.prefill.post, "/generate", body)
            arrivals = list(_chunks(self.decode.url + "/generate", body | {"stream": True}))
            leg.result()
        per_token = (arrivals[-1] - arrivals[0]) / (output_tokens - 1)
        return Latency((arrivals[0] - sent) * 1e3, per_token * 1e3)

    def load(self, in_flight: int) -> Latency:
        """A closed loop of cold prompts, of the sizes that the simulation has too; means over its requests."""
        source = random.Random(in_flight)
        lengths, outputs = request_sizes(_load(in_flight), in_flight * ROUNDS)
        prompts = [[source.randrange(3, 250) for _ in range(length)] for length in lengths.tolist()]
        with ThreadPoolExecutor(in_flight) as clients:
            found = list(clients.map(self.stream, prompts, outputs.tolist()))
        return Latency(
            sum(each.ttft_ms for each in found) / len(found), sum(each.tpot_ms for each in found) / len(found)
        )


def _load(in_flight: int) -> Load:
    """Sizes differ, so that requests do not stay in step and arrive all at once."""
    return Load(PROMPT, OUTPUT, in_flight, shortest=0.4)


def _chunks(url: str, body: dict[str, object]) -> Iterator[float]:
    """Times at which parts of the answer arrive."""
    order = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(order, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                yield time.monotonic()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pool(["prefill", "decode"]) as pool:
        for worker, step_s in zip(pool.workers, (PREFILL_STEP_S, DECODE_STEP_S), strict=True):
            worker.post("/slow_down", {"forward_sleep_time": step_s})
        pair = Pair(*pool.workers)
        pair.load(1)
        yield pair


def _watched(pair: Pair) -> tuple[Profile, Latency]:
    """The profile that the counters give while the light and the heavy load run, and the light one's latency."""

    def loads() -> Latency:
        light = pair.load(LIGHT)
        pair.load(HEAVY)
        return light

    async def run() -> tuple[Profile, Latency]:
        seen, launch = Observed(), None
        loading = asyncio.get_running_loop().run_in_executor(None, loads)
        while not loading.done():
            launch, more = await watch([pair.prefill.url, pair.decode.url], 10.0)
            seen.prefill += more.prefill
            seen.decode += more.decode
        assert launch is not None
        known = Known("bed", kv_bytes_per_token=1024)
        return live_profile(launch, seen, known, "counters of the test bed"), await loading

    return asyncio.run(run())


def _simulated(profile: Profile, in_flight: int) -> Latency:
    return simulate_load(Deployment(profile, 1, None, 1), _load(in_flight), rounds=ROUNDS)


def test_a_profile_from_counters_predicts_the_latency_under_another_load(pair: Pair, tmp_path: Path) -> None:
    fitted, light = _watched(pair)
    outside_ms = max(0.0, light.ttft_ms - _simulated(fitted, LIGHT).ttft_ms)
    file = tmp_path / "bed.toml"
    file.write_text(profile_toml(msgspec.structs.replace(fitted, request_ms=outside_ms)))
    profile = load_profile(str(file))
    live, simulated = pair.load(PREDICTED), _simulated(profile, PREDICTED)
    print(f"\n{profile}\nlight {light}\nlive {live}\nsimulated {simulated}")
    assert simulated.tpot_ms == pytest.approx(live.tpot_ms, rel=TPOT_TOLERANCE)
    assert simulated.ttft_ms == pytest.approx(live.ttft_ms, rel=TTFT_TOLERANCE)
    # It is a load under which requests queue; live, a busy machine can make the light one as slow.
    assert simulated.ttft_ms > 1.2 * _simulated(profile, LIGHT).ttft_ms
