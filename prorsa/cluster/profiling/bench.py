"""SGLang's serving benchmark on a simulated deployment: cold prompts of one size in a closed loop of fixed concurrency.

This runs the simulator's engine itself, so that what is compared with measured rows is what policies are judged on.
"""

from dataclasses import dataclass

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.sim.config import SimConfig
from prorsa.cluster.sim.simulation import Simulation, Timed
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import LlmEnd, LlmFirstToken, Role, TrajectoryDispatched

ROUNDS = 10
"""Requests of a run by the concurrency, as benchmark harnesses set it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of ``prompt_tokens`` in and ``output_tokens`` out, ``concurrency`` of them in flight at any time."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int


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


def simulate_load(deployment: Deployment, load: Load, *, rounds: int = ROUNDS) -> Latency:
    """Run the load on the deployment to its end and say what a client would have measured.

    Raises:
        ConfigError: if a request does not fit the KV of a rank.
    """
    requests = rounds * load.concurrency
    sim = Simulation(
        SimConfig(name="bench", concurrency=load.concurrency),
        deployment.profile,
        _workload(load, requests),
        deployment.roles,
    )
    events: list[Timed] = []
    while not sim.done:
        events += sim.advance(sim.now_s + 1e6)
    return _latency(events, requests, load.output_tokens)


def _latency(events: list[Timed], requests: int, output_tokens: int) -> Latency:
    """Of each request: sent when its trajectory is dispatched, answered when its only turn ends."""
    sent, first, ended = ({} for _ in range(3))  # type: dict[str | None, float], dict[str | None, float], dict[str | None, float]
    times = {TrajectoryDispatched: sent, LlmFirstToken: first, LlmEnd: ended}
    for t_s, event in events:
        if (kind := times.get(type(event))) is not None:
            kind[event.trajectory_id] = t_s
    ids = list(sent)
    assert len(ids) == len(first) == len(ended) == requests
    to_first = np.array([first[i] - sent[i] for i in ids])
    after_first = np.array([ended[i] - first[i] for i in ids])
    return Latency(float(to_first.mean() * 1e3), float(after_first.mean() / max(1, output_tokens - 1) * 1e3))


def _workload(load: Load, requests: int) -> Workload:
    none = np.zeros(requests)
    return Workload(
        first_turn=np.arange(requests + 1),
        group=np.full(requests, -1),
        step=np.zeros(requests, np.int64),
        sandbox_s=none,
        reward_s=none,
        truncated=np.zeros(requests, np.bool_),
        prompt_tokens=np.full(requests, load.prompt_tokens),
        reuse_tokens=np.zeros(requests, np.int64),
        output_tokens=np.full(requests, load.output_tokens),
        gap_s=none,
        tool=np.full(requests, -1),
        tools=(),
        workload="bench",
    )
