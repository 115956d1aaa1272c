"""SGLang's serving benchmark on a simulated deployment: cold prompts of one size in a closed loop of fixed concurrency.

This runs the simulator's engine itself, so that what is compared with measured rows is what policies are judged on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation, Timed
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import LlmEnd, LlmFirstToken, Role, TrajectoryDispatched

ROUNDS = 10
"""Requests of a run by the concurrency, as benchmark harnesses set it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Cold requests of ``prompt_tokens`` in and ``output_tokens`` out, ``concurrency`` of them in flight at any time.

    Sizes are drawn evenly from ``shortest`` times these figures up to them, as ``--random-range-ratio`` has it.
    """

    prompt_tokens: int
    output_tokens: int
    concurrency: int
    shortest: float = 1.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """Workers that serve a load: all of them ``mixed``, or prefill and decode workers, which may differ in form."""

    profile: Profile
    workers: int = 1
    decode_profile: Profile | None = None
    decode_workers: int = 0

    @property
    def roles(self) -> list[Role]:
        """The role of each worker."""
        first: Role = "prefill" if self.decode_workers else "mixed"
        second: Role = "decode"
        return [first] * self.workers + [second] * self.decode_workers


@dataclass(frozen=True, slots=True)
class Latency:
    """Means over the requests of a run, in milliseconds: to the first token, and per output token after it."""

    ttft_ms: float
    tpot_ms: float


def simulate_load(deployment: Deployment, load: Load, *, rounds: int = ROUNDS, prefill_interval: int = 0) -> Latency:
    """Run the load on the deployment to its end and say what a client would have measured.

    Raises:
        ConfigError: if a request does not fit the KV of a rank.
    """
    prompts, outputs = request_sizes(load, rounds * load.concurrency)
    workload = single_turns(prompts, outputs, np.zeros(len(prompts)))
    sim = Simulation(
        SimConfig(name="bench", concurrency=load.concurrency, prefill_interval=prefill_interval),
        deployment.profile,
        workload,
        deployment.roles,
        decode_profile=deployment.decode_profile,
    )
    events: list[Timed] = []
    while not sim.done:
        events += sim.advance(sim.now_s + 1e6)
    return _latency(events, workload)


def _latency(events: list[Timed], workload: Workload) -> Latency:
    """Of each request: sent when its trajectory is dispatched, answered when its only turn ends."""
    sent, first, ended = ({} for _ in range(3))  # type: dict[str | None, float], dict[str | None, float], dict[str | None, float]
    times = {TrajectoryDispatched: sent, LlmFirstToken: first, LlmEnd: ended}
    for t_s, event in events:
        if (kind := times.get(type(event))) is not None:
            kind[event.trajectory_id] = t_s
    ids = list(sent)
    assert len(ids) == len(first) == len(ended) == workload.trajectories
    to_first = np.array([first[i] - sent[i] for i in ids])
    # Trajectories are dispatched in the order of the workload.
    per_token = np.array([ended[i] - first[i] for i in ids]) / np.maximum(workload.output_tokens - 1, 1)
    return Latency(float(to_first.mean() * 1e3), float(per_token.mean() * 1e3))


def request_sizes(load: Load, requests: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output tokens of each request of a load; always the same ones."""
    rng = np.random.default_rng(0)
    prompts, outputs = (
        rng.integers(max(1, int(load.shortest * tokens)), tokens, requests, endpoint=True)
        for tokens in (load.prompt_tokens, load.output_tokens)
    )
    return prompts, outputs


def single_turns(
    prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64], delay_s: NDArray[np.float64]
) -> Workload:
    """Trajectories of one turn, whose request comes ``delay_s`` after the dispatch."""
    count = len(prompt_tokens)
    return Workload(
        first_turn=np.arange(count + 1),
        group=np.full(count, -1),
        step=np.zeros(count, np.int64),
        sandbox_s=delay_s,
        reward_s=np.zeros(count),
        truncated=np.zeros(count, np.bool_),
        prompt_tokens=prompt_tokens,
        reuse_tokens=np.zeros(count, np.int64),
        output_tokens=output_tokens,
        gap_s=np.zeros(count),
        tool=np.full(count, -1),
        tools=(),
        workload="bench",
    )
