"""What does not fit together in a scenario, found all at once."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.sim.config import Fault, FlipTimes
from prorsa.cluster.workloads.fitted import workload_names
from prorsa.errors import ConfigError

if TYPE_CHECKING:
    from prorsa.cluster.scenario import Scenario

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "workers": (1, 1024),
    "concurrency": (1, 100_000),
    "trajectories": (1, 1_000_000),
    "steps": (1, 10_000),
    "groups_per_step": (1, 10_000),
    "group_size": (1, 1024),
    "oversample": (1, 100),
    "staleness": (0, 10_000),
    "update_every": (1, 1_000_000),
    "weight_update_s": (0, 86_400),
    "host_kv_tokens": (0, 10**12),
    "gap_cap_s": (0, 10**9),
    "max_turns": (1, 100_000),
}

_LENGTH_OF_SYNC: Final = ("steps", "groups_per_step", "group_size")


def problems(scenario: "Scenario") -> Iterator[str]:
    """What is wrong with the scenario, a line each; nothing where it is right."""
    for name, (low, high) in _BOUNDS.items():
        value = getattr(scenario, name)
        if value is not None and not low <= value <= high:
            yield f"{name} is {value}: give {low} to {high:,}"
    for name in FlipTimes.__struct_fields__:
        seconds = getattr(scenario.flip, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            yield f"flip.{name} is {seconds}: give seconds, 0 or more"
    yield from _prefill_problems(scenario)
    yield from _sync_problems(scenario) if scenario.mode == "sync" else _async_problems(scenario)
    for fault in scenario.faults:
        yield from _fault_problems(scenario, fault)
    yield from _workload_problems(scenario)
    yield from _profile_problems(scenario)


def _prefill_problems(scenario: "Scenario") -> Iterator[str]:
    count = scenario.prefill_workers
    if count is not None and not 1 <= count < scenario.workers:
        yield (
            f"prefill_workers is {count} of {scenario.workers} workers: leave at least one for each role, "
            "or leave it out for half"
        )


def _sync_problems(scenario: "Scenario") -> Iterator[str]:
    """A run has the length of its mode, in the terms of its mode."""
    needed = _LENGTH_OF_SYNC[1:] if scenario.sessions else _LENGTH_OF_SYNC
    for name in needed:
        if getattr(scenario, name) is None:
            yield f"{name} is missing: mode sync needs {', '.join(needed)}"
    if scenario.trajectories is not None:
        yield "trajectories is for mode async: give steps, groups_per_step and group_size"
    for name in ("staleness", "update_every"):
        if getattr(scenario, name) is not None:
            yield f"{name} is for mode async: a synchronous run updates the weights after each step"
    if scenario.oversample != 1.0 and scenario.sessions:
        yield "oversample is for generated groups: recorded sessions are in none"


def _async_problems(scenario: "Scenario") -> Iterator[str]:
    for name in ("steps", "groups_per_step"):
        if getattr(scenario, name) is not None:
            yield f"{name} is for mode sync: give trajectories"
    if scenario.oversample != 1.0:
        yield "oversample is for mode sync: leave it out"
    if scenario.update_every is None and (
        scenario.weight_update_s or scenario.cache_flush or scenario.staleness is not None
    ):
        yield (
            "weight_update_s, cache_flush and staleness are for mode sync, or an asynchronous run with weight "
            "updates: give update_every, or leave them out"
        )
    if scenario.group_size and scenario.trajectories and scenario.trajectories % scenario.group_size:
        yield f"trajectories is {scenario.trajectories}: give whole groups, a multiple of {scenario.group_size}"


def _fault_problems(scenario: "Scenario", fault: Fault) -> Iterator[str]:
    if not 0 <= fault.worker < scenario.workers:
        yield f"a fault hits worker {fault.worker}: give 0 to {scenario.workers - 1}"
    if not (math.isfinite(fault.at_s) and fault.at_s >= 0):
        yield f"a fault is at {fault.at_s} s: give seconds, 0 or more"
    if not (math.isfinite(fault.for_s) and fault.for_s > 0):
        yield f"a fault lasts {fault.for_s} s: give seconds above 0"
    if fault.kind == "slows" and not 1 < fault.factor <= 1000:
        yield f"a worker slows down by the factor {fault.factor}: give one above 1, up to 1,000"


def _workload_problems(scenario: "Scenario") -> Iterator[str]:
    if scenario.mix:
        if scenario.workload in workload_names():
            yield f"workload is {scenario.workload!r} beside a mix of classes: give the mix another name"
    elif scenario.workload not in workload_names():
        yield f"workload is {scenario.workload!r}: give one of {', '.join(workload_names())}"
    if scenario.sessions and (scenario.mix or scenario.tool_drift or scenario.slow_tools or scenario.sandbox_bursts):
        yield "mix, tool_drift, slow_tools and sandbox_bursts are for generated workloads: leave out sessions, or them"
    yield from scenario.shape.problems()


def _profile_problems(scenario: "Scenario") -> Iterator[str]:
    try:
        profiles = [
            load_profile(name)
            for name in (scenario.profile, scenario.prefill_profile, scenario.decode_profile)
            if name is not None
        ]
    except ConfigError as error:
        yield str(error)
        return
    yield from _stage_problems(profiles)


def _stage_problems(profiles: list[Profile]) -> Iterator[str]:
    """KV goes from one stage to the other: it must be of one model, in one form."""
    for name in ("model", "kv_bytes_per_token"):
        values = sorted({str(getattr(profile, name)) for profile in profiles})
        if len(values) > 1:
            names = ", ".join(profile.name for profile in profiles)
            yield f"the profiles {names} differ in {name} ({', '.join(values)}): give profiles of one model"
