"""What makes a run what it is: scenario, seed, policy and the controller's settings, in one checked plan."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.router.config import RouterConfig
from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.workload import Workload
from prorsa.control.config import ControlConfig, ForecastKind
from prorsa.control.policies import colocated_settings, make_policy, make_simulated
from prorsa.control.shadow import OFF, make_shadow
from prorsa.errors import ConfigError
from prorsa.events import Mode, Role, Stamped


class WorkerAccess(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the controller reaches live workers; see :class:`prorsa.cluster.live.LiveBackend`."""

    key_file: str | None = None
    admin_key_file: str | None = None
    graph_memory_gb: float | None = None
    cache_kept: bool = False
    guard_l3: bool = False


Recorder = Callable[[list[Stamped]], None]
"""Keeps the stamped events of a run, in order."""


class Tuning(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a policy that is found by trying was found.

    Attributes:
        asked: the policy as on the command line, as in ``static:best``.
        chosen: the best of those tried.
        figure: what they were compared by, a key of the run row.
        seeds: the seeds that they were tried on; none that is scored.
        tried: mean of the figure over these seeds, by policy.
    """

    asked: str
    chosen: str
    figure: str
    seeds: tuple[int, ...]
    tried: dict[str, float]


class RunPlan(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="embedded"):
    """All that makes a run of the embedded cluster what it is: kept in its journal, and told to its processes."""

    run_id: str
    scenario: Scenario
    seed: int
    control: ControlConfig
    sessions: str | None = None
    speed: float = 1.0
    scored: bool = True
    tuning: Tuning | None = None

    @property
    def asked(self) -> str:
        """The policy that was asked for; the controller's may be what trying has made of it."""
        return self.tuning.asked if self.tuning else self.control.policy

    def to_meta(self) -> dict[str, object]:
        """As plain data, for a journal's manifest."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain

    @property
    def pool_size(self) -> int | None:
        """How many workers there are."""
        return self.scenario.workers


class LivePlan(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="live"):
    """What makes a run on live workers what it is: kept in its journal, and told to its processes.

    Secrets are not in it, only the names of the files that hold them; ``keys`` is a directory of the bus's keys.
    """

    run_id: str
    control: ControlConfig
    routers: tuple[RouterConfig, ...]
    workers: WorkerAccess = WorkerAccess()
    keys: str | None = None
    speed: float = 1.0

    def to_meta(self) -> dict[str, object]:
        """As plain data, for a journal's manifest."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain

    @property
    def pool_size(self) -> int | None:
        """How many workers there are: unknown, they come and go."""
        return None


AnyPlan = RunPlan | LivePlan


def plan_of(meta: object) -> AnyPlan:
    """The plan that a journal's manifest holds.

    Raises:
        ConfigError: if it holds none, or one of another version.
    """
    try:
        return msgspec.convert(meta, AnyPlan)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise ConfigError(f"the journal does not say how its run was set up: {error}") from error


def make_plan(
    scenario: Scenario,
    *,
    policy: str,
    run_id: str,
    seed: int = 0,
    sessions: Path | None = None,
    forecast: ForecastKind = "lifecycle",
    scored: bool = True,
    speed: float = 1.0,
    mode: Mode = "auto",
    batch: bool = False,
    admission: Literal["advise", "gate"] = "advise",
    shadow: str | None = None,
) -> RunPlan:
    """A checked plan. What is not ``scored`` makes a forecast only if its policy, or its shadow, decides by it.

    ``batch`` allows the policies that only a batch simulation can run; `prorsa.tuning` settles them.

    Raises:
        ConfigError: for an unknown policy, a split that is not the pool's, or workers that the policy could not flip.
    """
    chosen = make_simulated(policy, scenario.workers) if batch else make_policy(policy, scenario.workers)
    if scenario.workers < 2 and not policy.startswith("colocated"):
        raise ConfigError(f"policy {policy} needs at least 2 workers, one of each role; {scenario.name} has 1")
    if scenario.staged and (chosen.flips or policy.startswith("colocated")):
        raise ConfigError(
            f"{scenario.name} has prefill and decode workers of different parallelism, whose roles are fixed, and "
            f"policy {policy} would change them: take static:P:D"
        )
    profile = load_profile(scenario.prefill_profile or scenario.profile)
    if forecast == "perfect" and speed != 1.0:
        raise ConfigError("--forecast perfect knows the simulator's future: it is for `prorsa simulate` alone")
    if not profile.flippable and chosen.flips:
        why = profile.why_not_flippable or "SGLang refuses it"
        raise ConfigError(f"policy {policy} flips workers, and {profile.name} cannot: {why}; take a fixed split")
    if shadow == OFF:
        shadow = None
    beside = make_shadow(shadow, policy, scenario.workers).policy if shadow else None
    made = forecast if scored or chosen.needs_forecast or (beside and beside.needs_forecast) else None
    control = ControlConfig(
        profile=profile,
        policy=policy,
        shadow=shadow,
        forecast=made,
        cache=scenario.cache,
        host_kv_tokens=scenario.host_kv_tokens,
        admission=admission,
        mode=mode,
    )
    return RunPlan(
        run_id=run_id,
        scenario=scenario,
        seed=seed,
        control=control,
        scored=scored,
        sessions=str(sessions) if sessions else None,
        speed=speed,
    )


def with_policy(plan: RunPlan, policy: str) -> RunPlan:
    """The plan under another policy that needs no forecast; it makes one only to be scored, or for a shadow."""
    chosen = make_policy(policy, plan.scenario.workers)
    assert not chosen.needs_forecast, policy
    made = plan.control.forecast if plan.scored or plan.control.shadow else None
    return msgspec.structs.replace(plan, control=msgspec.structs.replace(plan.control, policy=policy, forecast=made))


def make_workload(plan: RunPlan) -> Workload:
    """The workload of a plan: the same for every policy."""
    sessions = Path(plan.sessions) if plan.sessions else None
    return plan.scenario.make_workload(plan.seed, sessions)


def initial_roles(plan: RunPlan) -> list[Role]:
    """Roles at the start: the fixed split's; for adaptive policies the scenario's, half and half if it says nothing."""
    workers = plan.scenario.workers
    policy = plan.control.policy
    if policy.startswith("colocated"):
        return ["mixed"] * workers
    prefill = plan.scenario.initial_prefill
    if policy.startswith("static:"):
        prefill = int(policy.split(":")[1])
    return ["prefill" if index < prefill else "decode" for index in range(workers)]


def profile_of(plan: RunPlan) -> Profile:
    """The performance profile of the plan's cluster; :func:`make_plan` always gives one.

    A colocated policy may set the workers' prefill chunk.
    """
    profile = plan.control.profile
    assert profile is not None
    chosen = colocated_settings(plan.control.policy)
    if chosen is None or chosen.chunk_tokens is None:
        return profile
    return msgspec.structs.replace(profile, chunk_tokens=chosen.chunk_tokens)


def decode_profile_of(plan: RunPlan) -> Profile | None:
    """The profile of the decode workers where it is another one than :func:`profile_of`, else None."""
    return load_profile(plan.scenario.decode_profile or plan.scenario.profile) if plan.scenario.staged else None


def run_row(
    plan: RunPlan, measured: dict[str, object], forecast: Mapping[str, object] | None, wall_s: float
) -> dict[str, object]:
    """One element of ``runs`` from its parts."""
    profile = profile_of(plan)
    decode_profile = decode_profile_of(plan)
    return {
        "scenario": plan.scenario.name,
        "profile": profile.name,
        "decode_profile": decode_profile.name if decode_profile else None,
        "profile_validated": profile.validated and (decode_profile is None or decode_profile.validated),
        "policy": plan.asked,
        "tuning": None if plan.tuning is None else msgspec.to_builtins(plan.tuning),
        "search": None,
        "shadow": None,
        "seed": plan.seed,
        "workers": plan.scenario.workers,
        "concurrency": plan.scenario.concurrency,
        "cache": plan.scenario.cache,
        **measured,
        "forecast": forecast if plan.scored else None,
        "wall_s": round(wall_s, 3),
    }
