"""What the engine needs to know beside the profile and the workload, and the constants of its mechanisms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import Struct

from prorsa.cluster.profile import Profile, check_profile
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError
from prorsa.events import Role

CacheMode = Literal["cold", "retained", "l3"]

RESERVED_DECODE_TOKENS: Final = 512
"""KV that decode keeps free for each request it holds when it admits another (SGLang
``--num-reserved-decode-tokens``, default 512)."""

RETRACT_DECODE_STEPS: Final = 20
"""Once KV is full, requests are retracted until the others can go on for so many steps (SGLang
``SGLANG_RETRACT_DECODE_STEPS``, default 20)."""

PREFILL_BOUND_CHUNKS: Final = 2
"""The router sends to a prefill rank while its outstanding uncached tokens are below so many chunks: enough that it
never waits for the router, little enough that the rest can still go elsewhere."""

MAX_ATTEMPT: Final = 99
"""A request that has been moved so often stays where it is until it is answered (rids carry two digits)."""

TRANSFER_LATENCY_S: Final = 0.005
"""Fixed part of a KV transfer: hand-shake and polling. An assumption: no SGLang figure is published."""

HOST_COPY_GB_S: Final = 25.0
"""Rate at which KV of a retracted request returns from host memory: half of PCIe 5.0 x16. An assumption."""

L3_FETCH_GB_S: Final = 20.0
"""Rate at which a worker fetches KV from the shared store: half of its 400 Gb/s port. An assumption."""


class FlipTimes(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long the parts of a role flip take, in seconds, beside the drain that the simulator works out.

    No flip time of SGLang on a GPU is published. The defaults take the slower of what there is: SGLang 0.5.23 on CPU
    (to decode 0.40 at the median; to prefill 0.03, at most 0.52) and a vLLM prototype on H100 (to decode 0.013-0.036,
    to prefill 0.23-0.76). ``warm_s`` is the first request after a flip, ``cancel_s`` an abort until its answer, both
    SGLang on CPU (0.095-0.207; at most 0.030).
    """

    to_prefill_s: float = 0.5
    to_decode_s: float = 0.4
    warm_s: float = 0.2
    cancel_s: float = 0.03


class Fault(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Worker ``worker`` dies at ``at_s`` and is back ``for_s`` later, or takes ``factor`` times as long meanwhile."""

    worker: int
    at_s: float
    kind: Literal["dies", "slows"]
    for_s: float
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """One simulated pool and its sampler.

    Attributes:
        name: name of the scenario, for the run's first event.
        concurrency: trajectories in flight at most.
        mode: ``async``, a new trajectory for each that ends; ``sync``, step by step.
        groups_per_step: groups of a synchronous step; None in asynchronous runs. Informative.
        group_size: trajectories of a group. Informative.
        weight_update_s: pause of a weight update: between two synchronous steps, or amid an asynchronous run.
        cache_flush: whether a weight update drops all prefix caches.
        cache: what a flip does to the prefix cache of the worker.
        host_kv_tokens: host tier of each worker's prefix cache, in tokens; its ranks have equal parts of it.
        oversample: a synchronous step dispatches so many times ``groups_per_step`` (the workload holds them) and ends
            when ``groups_per_step`` are complete; the others are cut off.
        update_every: an asynchronous run updates the weights whenever so many more trajectories have ended; None for
            never. ``cache_flush``: running requests are aborted for it and go on from their tokens so far; otherwise
            they are held in place and go on with the KV that they have.
        update_lead_s: time from the end of the last of these trajectories to the pause (training), announced ahead.
        staleness: weight versions, at most, between a trajectory's dispatch and the update that it is for, after
            AReaL: in flight + ended < (staleness + version + 1) x update_every; None for no bound.
        faults: workers that die or slow down.
        flip: how long the parts of a flip take.
        prefill_interval: decode steps, at least, of a colocated worker between two prefill steps while any of its
            requests decodes: SGLang's ``--prefill-decode-interval`` (0 by default, and so is its minimum batch).
        report_s: whole seconds between two load reports of a worker.
        seed: the seed that the workload was made with, for the run's first event.
    """

    name: str = "simulation"
    concurrency: int = 128
    mode: Literal["async", "sync"] = "async"
    groups_per_step: int | None = None
    group_size: int | None = None
    weight_update_s: float = 0.0
    cache_flush: bool = False
    cache: CacheMode = "retained"
    host_kv_tokens: int = 0
    oversample: float = 1.0
    update_every: int | None = None
    update_lead_s: float = 0.0
    staleness: int | None = None
    faults: tuple[Fault, ...] = ()
    flip: FlipTimes = field(default_factory=FlipTimes)
    prefill_interval: int = 0
    report_s: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}: give at least 1")
        if self.host_kv_tokens < 0:
            raise ConfigError(f"host_kv_tokens is {self.host_kv_tokens}: give 0 for no host tier, or its tokens")
        if self.prefill_interval < 0:
            raise ConfigError(f"prefill_interval is {self.prefill_interval}: give 0 or more decode steps")
        _check_updates(self)
        _check_seconds("update_lead_s", self.update_lead_s)
        _check_seconds("weight_update_s", self.weight_update_s)
        for name in FlipTimes.__struct_fields__:
            _check_seconds(f"flip.{name}", getattr(self.flip, name))


def _check_updates(config: SimConfig) -> None:
    if not config.oversample >= 1:
        raise ConfigError(f"oversample is {config.oversample}: give 1 for none, or more")
    if config.oversample > 1 and (config.mode != "sync" or not config.groups_per_step):
        raise ConfigError("oversample is for mode sync with groups_per_step: leave it out")
    if config.update_every is not None and (config.mode != "async" or config.update_every < 1):
        raise ConfigError(f"update_every is {config.update_every}: give 1 or more trajectories, in mode async")
    if config.staleness is not None and (config.update_every is None or config.staleness < 0):
        raise ConfigError(f"staleness is {config.staleness}: give 0 or more versions, together with update_every")


def check_faults(config: SimConfig, workers: int) -> None:
    """Refuse faults of workers that there are not, or at no possible time.

    Raises:
        ConfigError: names what is wrong.
    """
    for fault in config.faults:
        if not 0 <= fault.worker < workers:
            raise ConfigError(f"a fault hits worker {fault.worker}: there are 0 to {workers - 1}")
        _check_seconds("at_s of a fault", fault.at_s)
        _check_seconds("for_s of a fault", fault.for_s)
        if not fault.factor > 0:
            raise ConfigError(f"a worker slows down by the factor {fault.factor}: give one above 1")


def _check_seconds(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} is {value}: give a time of 0 s or more")


ROLES_FIXED: Final = "prefill and decode workers have profiles of their own: their roles are fixed"
"""Why a pool with stage-specific parallelism flips nobody: a worker's parallelism is fixed when it starts."""


def check_inputs(profiles: tuple[Profile, ...], workload: Workload, roles: Sequence[Role]) -> None:
    """Refuse what the engine could not carry to an end. ``profiles``: of all, or of prefill and of decode workers.

    Raises:
        ConfigError: names what is wrong and the remedy.
    """
    if not roles:
        raise ConfigError("a pool without workers: give at least one role")
    for profile in profiles:
        check_profile(profile)
    if len(profiles) > 1:
        _check_pair(profiles[0], profiles[1], roles)
    if workload.trajectories == 0:
        raise ConfigError("the workload has no trajectories: nothing to simulate")
    for profile in profiles:
        _check_turns(profile, workload)


def _check_pair(prefill: Profile, decode: Profile, roles: Sequence[Role]) -> None:
    if prefill.model != decode.model:
        raise ConfigError(
            f"prefill workers serve {prefill.model} and decode workers {decode.model}: give profiles of one model"
        )
    if "mixed" in roles:
        raise ConfigError("decode_profile is for prefill and decode workers: leave it out where workers are colocated")


def _check_turns(profile: Profile, workload: Workload) -> None:
    if (workload.first_turn[1:] <= workload.first_turn[:-1]).any():
        raise ConfigError("the workload has a trajectory without turns: leave it out")
    if (workload.step[1:] < workload.step[:-1]).any():
        raise ConfigError("the workload's steps go back: order its trajectories by step")
    if workload.output_tokens.min() < 1 or workload.prompt_tokens.min() < 1:
        raise ConfigError("the workload has a turn without prompt or output tokens: each needs at least 1")
    if (workload.shared_tokens > workload.prompt_tokens[workload.first_turn[:-1]]).any() or (
        workload.shared_tokens.min() < 0
    ):
        raise ConfigError("the workload has a trajectory that shares more than its first prompt with its group")
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    if longest > profile.kv_tokens:
        raise ConfigError(
            f"a turn of {longest} tokens does not fit the {profile.kv_tokens} KV tokens of a rank of {profile.name}: "
            "truncate its trajectory before it"
        )
