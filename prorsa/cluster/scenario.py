"""Scenarios: small TOML files that fix profile, pool, workload and length of a run.

``docs/workloads.md`` lists those that the package carries.
"""

import math
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.scenario_checks import problems
from prorsa.cluster.sim.config import Fault, FlipTimes
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.sessions import load_sessions
from prorsa.cluster.workloads.shapes import DriftPoint, MixPoint, SandboxBursts, Shape, SlowTools
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError

CacheMode = Literal["cold", "retained", "l3"]


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What is run, on what, and for how long. Constructing one checks it.

    Attributes:
        profile: name of a performance profile, or path of its TOML file.
        prefill_profile, decode_profile: other profiles for the workers of one stage, under a fixed split only.
        concurrency: trajectories in flight at most.
        mode: ``async``, a new trajectory for each that ends; ``sync``, steps of groups with a weight update between.
        workload: the class that the generator draws from; with ``sessions`` or ``mix`` only a name.
        sessions: a CSV file of recorded sessions to run instead; a relative path counts from the scenario's file.
        trajectories: length of an asynchronous run; None is 2 x concurrency. Not for recorded sessions: each runs once.
        steps, groups_per_step, group_size: length of a synchronous run. With recorded sessions a step takes
            ``groups_per_step`` x ``group_size`` of them, for as many steps as it takes. Asynchronous runs have groups
            where ``group_size`` is given.
        oversample: a synchronous step dispatches so many times ``groups_per_step`` groups and ends with the first
            ``groups_per_step`` that are complete; the rest is cut off.
        staleness: weight versions that an asynchronous trajectory may be behind when it is used; None for no bound.
        update_every: trajectories of an asynchronous run after which the weights are updated; None for never.
        weight_update_s: pause for a weight update; ``cache_flush``: whether it drops the prefix caches.
        cache: what a flip does to the worker's prefix cache: ``cold`` loses it, ``retained`` keeps it, ``l3`` loses it
            but has a shared store.
        host_kv_tokens: host tier of each worker's prefix cache, in tokens; 0 for none.
        gap_cap_s: longer gaps between turns are cut to this.
        max_turns: trajectories end as truncated after this many turns; None for no limit.
        prefill_workers: prefill workers at the start, for policies that move them; None is half.
        mix, tool_drift, slow_tools, sandbox_bursts: what moves or disturbs the generated workload; see
            :mod:`prorsa.cluster.workloads.shapes`.
        faults: workers that die or slow down.
    """

    name: str
    description: str = ""
    profile: str
    prefill_profile: str | None = None
    decode_profile: str | None = None
    workers: int
    concurrency: int
    mode: Literal["async", "sync"]
    workload: str
    sessions: str | None = None
    trajectories: int | None = None
    steps: int | None = None
    groups_per_step: int | None = None
    group_size: int | None = None
    oversample: float = 1.0
    staleness: int | None = None
    update_every: int | None = None
    weight_update_s: float = 0.0
    cache_flush: bool = False
    cache: CacheMode = "retained"
    host_kv_tokens: int = 0
    gap_cap_s: float = 60.0
    max_turns: int | None = None
    prefill_workers: int | None = None
    mix: tuple[MixPoint, ...] = ()
    tool_drift: tuple[DriftPoint, ...] = ()
    slow_tools: SlowTools | None = None
    sandbox_bursts: SandboxBursts | None = None
    faults: tuple[Fault, ...] = ()
    flip: FlipTimes = FlipTimes()

    def __post_init__(self) -> None:
        _refuse(self.name, list(problems(self)))

    @property
    def initial_prefill(self) -> int:
        """Prefill workers at the start, for policies that move them."""
        return max(1, self.workers // 2) if self.prefill_workers is None else self.prefill_workers

    def with_overrides(
        self,
        *,
        workers: int | None = None,
        concurrency: int | None = None,
        cache: CacheMode | None = None,
        gap_cap_s: float | None = None,
    ) -> "Scenario":
        """A copy with what is not None replaced.

        Raises:
            ConfigError: if the result does not fit together.
        """
        given = {"workers": workers, "concurrency": concurrency, "cache": cache, "gap_cap_s": gap_cap_s}
        return msgspec.structs.replace(self, **{name: value for name, value in given.items() if value is not None})

    def make_workload(
        self, seed: int, sessions: str | Path | None = None, *, profile: Profile | None = None
    ) -> Workload:
        """The workload of a seed: generated, or replayed from ``sessions`` (else the scenario's own file).

        Args:
            profile: the loaded profile, where the caller has it.

        Raises:
            InputError: if a session file is bad.
            ConfigError: if the seed or the profile does not fit.
        """
        profile = profile or self.narrowest_profile()
        groups = self._groups()
        file = sessions or self.sessions
        if file is not None:
            return load_sessions(
                file,
                profile=profile,
                gap_cap_s=self.gap_cap_s,
                seed=seed,
                trajectories_per_step=groups.per_step * groups.size if groups and groups.per_step else None,
                max_turns=self.max_turns,
                workload=self.workload,
            )
        return generate(
            self.workload,
            profile=profile,
            trajectories=self._generated_trajectories(groups),
            seed=seed,
            groups=groups,
            gap_cap_s=self.gap_cap_s,
            max_turns=self.max_turns,
            shape=self.shape,
        )

    @property
    def shape(self) -> Shape:
        """What moves or disturbs the generated workload."""
        return Shape(
            mix=self.mix,
            tool_drift=self.tool_drift,
            slow_tools=self.slow_tools,
            sandbox_bursts=self.sandbox_bursts,
        )

    @property
    def groups_dispatched(self) -> int | None:
        """Groups that a synchronous step dispatches; more than ``groups_per_step`` where it over-samples."""
        return None if self.groups_per_step is None else math.ceil(self.oversample * self.groups_per_step)

    @property
    def staged(self) -> bool:
        """Whether prefill and decode workers have different profiles."""
        return (self.prefill_profile or self.profile) != (self.decode_profile or self.profile)

    def narrowest_profile(self) -> Profile:
        """Of the profiles of its workers the one with the shortest context: what every trajectory must fit.

        Raises:
            ConfigError: if there is no such profile.
        """
        names = {self.prefill_profile or self.profile, self.decode_profile or self.profile}
        return min((load_profile(name) for name in sorted(names)), key=lambda profile: profile.max_context)

    def _groups(self) -> Groups | None:
        if self.group_size is None:
            return None
        return Groups(per_step=self.groups_dispatched, size=self.group_size)

    def _generated_trajectories(self, groups: Groups | None) -> int:
        if groups is None:
            return 2 * self.concurrency if self.trajectories is None else self.trajectories
        if self.steps is not None and groups.per_step is not None:
            return self.steps * groups.per_step * groups.size
        # An asynchronous run ends with a whole group.
        return self.trajectories or groups.size * math.ceil(2 * self.concurrency / groups.size)


def scenario_names() -> list[str]:
    """Names of the scenarios that the package carries."""
    folder = resources.files("prorsa.cluster") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Load a scenario by its name in the package, or from a TOML file.

    Raises:
        ConfigError: if there is no such scenario or the file does not fit; names every field that is wrong.
    """
    path = Path(name_or_path)
    name = str(name_or_path)
    if path.suffix == ".toml":
        return _decode(name, _read(path), folder=path.parent)
    if name not in scenario_names():
        raise ConfigError(f"no scenario {name!r}; there are {', '.join(scenario_names())}, or give a TOML file")
    return _decode(name, (resources.files("prorsa.cluster") / "scenarios" / f"{name}.toml").read_text(), folder=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(
            f"scenario {path}: {why}; give a name ({', '.join(scenario_names())}) or a TOML file"
        ) from error


def _decode(name: str, text: str, *, folder: Path | None) -> Scenario:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"scenario {name}: {error}") from error
    raw.setdefault("name", Path(name).stem)
    if folder is not None and isinstance(raw.get("sessions"), str):
        raw["sessions"] = str(folder / raw["sessions"])
    _refuse(name, list(_type_problems(raw)))
    return msgspec.convert(raw, Scenario)


def _refuse(name: str, problems: list[str]) -> None:
    if problems:
        raise ConfigError(f"scenario {name}: {'; '.join(problems)}")


def _type_problems(raw: dict[str, Any]) -> Iterator[str]:
    """What is missing, unknown or of the wrong type, field by field, so that one error names all of it."""
    known = {field.name: field for field in msgspec.structs.fields(Scenario)}
    for name in sorted(raw.keys() - known.keys()):
        yield f"unknown field {name}: there are {', '.join(known)}"
    for name, field in known.items():
        if name not in raw:
            if field.required:
                yield f"{name} is missing"
            continue
        try:
            msgspec.convert(raw[name], field.type)
        except msgspec.ValidationError as error:
            yield f"{name} is {raw[name]!r}: {error}"
