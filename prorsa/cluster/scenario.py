"""Scenarios: small TOML files that fix profile, pool, workload and length of a run.

``docs/workloads.md`` lists those that the package carries.
"""

import math
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from prorsa.cluster.profile import Profile, load_profile
from prorsa.cluster.sim.config import FlipTimes
from prorsa.cluster.workloads.fitted import workload_names
from prorsa.cluster.workloads.generators import Groups, generate
from prorsa.cluster.workloads.sessions import load_sessions
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import ConfigError

CacheMode = Literal["cold", "retained", "l3"]


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What is run, on what, and for how long. Constructing one checks it.

    Attributes:
        profile: name of a performance profile, or path of its TOML file.
        concurrency: trajectories in flight at most.
        mode: ``async``, a new trajectory for each that ends; ``sync``, steps of groups with a weight update between.
        workload: the class that the generator draws from; with ``sessions`` only a name.
        sessions: a CSV file of recorded sessions to run instead; a relative path counts from the scenario's file.
        trajectories: length of an asynchronous run; None is 2 x concurrency. Not for recorded sessions: each runs once.
        steps, groups_per_step, group_size: length of a synchronous run. With recorded sessions a step takes
            ``groups_per_step`` x ``group_size`` of them, for as many steps as it takes.
        weight_update_s: pause for the weight update after each synchronous step; ``cache_flush``: whether it drops the
            prefix caches.
        cache: what a flip does to the worker's prefix cache: ``cold`` loses it, ``retained`` keeps it, ``l3`` loses it
            but has a shared store.
        host_kv_tokens: host tier of each worker's prefix cache, in tokens; 0 for none.
        gap_cap_s: longer gaps between turns are cut to this.
        max_turns: trajectories end as truncated after this many turns; None for no limit.
        prefill_workers: prefill workers at the start, for policies that move them; None is half.
    """

    name: str
    description: str = ""
    profile: str
    workers: int
    concurrency: int
    mode: Literal["async", "sync"]
    workload: str
    sessions: str | None = None
    trajectories: int | None = None
    steps: int | None = None
    groups_per_step: int | None = None
    group_size: int | None = None
    weight_update_s: float = 0.0
    cache_flush: bool = False
    cache: CacheMode = "retained"
    host_kv_tokens: int = 0
    gap_cap_s: float = 60.0
    max_turns: int | None = None
    prefill_workers: int | None = None
    flip: FlipTimes = FlipTimes()

    def __post_init__(self) -> None:
        _refuse(self.name, list(_problems(self)))

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
        profile = profile or load_profile(self.profile)
        groups = self._groups()
        file = sessions or self.sessions
        if file is not None:
            return load_sessions(
                file,
                profile=profile,
                gap_cap_s=self.gap_cap_s,
                seed=seed,
                trajectories_per_step=groups.per_step * groups.size if groups else None,
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
        )

    def _groups(self) -> Groups | None:
        if self.groups_per_step is None or self.group_size is None:
            return None
        return Groups(per_step=self.groups_per_step, size=self.group_size)

    def _generated_trajectories(self, groups: Groups | None) -> int:
        if groups is not None and self.steps is not None:
            return self.steps * groups.per_step * groups.size
        return 2 * self.concurrency if self.trajectories is None else self.trajectories


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


# --- checks ---------------------------------------------------------------------------------------------------------

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "workers": (1, 1024),
    "concurrency": (1, 100_000),
    "trajectories": (1, 1_000_000),
    "steps": (1, 10_000),
    "groups_per_step": (1, 10_000),
    "group_size": (1, 1024),
    "weight_update_s": (0, 86_400),
    "host_kv_tokens": (0, 10**12),
    "gap_cap_s": (0, 10**9),
    "max_turns": (1, 100_000),
}

_LENGTH_OF_SYNC: Final = ("steps", "groups_per_step", "group_size")


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


def _problems(scenario: Scenario) -> Iterator[str]:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(scenario, name)
        if value is not None and not low <= value <= high:
            yield f"{name} is {value}: give {low} to {high:,}"
    for name in FlipTimes.__struct_fields__:
        seconds = getattr(scenario.flip, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            yield f"flip.{name} is {seconds}: give seconds, 0 or more"
    yield from _prefill_problems(scenario)
    yield from _length_problems(scenario)
    yield from _reference_problems(scenario)


def _prefill_problems(scenario: Scenario) -> Iterator[str]:
    count = scenario.prefill_workers
    if count is not None and not 1 <= count < scenario.workers:
        yield (
            f"prefill_workers is {count} of {scenario.workers} workers: leave at least one for each role, "
            "or leave it out for half"
        )


def _length_problems(scenario: Scenario) -> Iterator[str]:
    """A run has the length of its mode, in the terms of its mode."""
    if scenario.mode == "sync":
        needed = _LENGTH_OF_SYNC[1:] if scenario.sessions else _LENGTH_OF_SYNC
        for name in needed:
            if getattr(scenario, name) is None:
                yield f"{name} is missing: mode sync needs {', '.join(needed)}"
        if scenario.trajectories is not None:
            yield "trajectories is for mode async: give steps, groups_per_step and group_size"
        return
    for name in _LENGTH_OF_SYNC:
        if getattr(scenario, name) is not None:
            yield f"{name} is for mode sync: give trajectories"
    if scenario.weight_update_s or scenario.cache_flush:
        yield "weight_update_s and cache_flush are for mode sync: leave them out"


def _reference_problems(scenario: Scenario) -> Iterator[str]:
    try:
        load_profile(scenario.profile)
    except ConfigError as error:
        yield str(error)
    if scenario.workload not in workload_names():
        yield f"workload is {scenario.workload!r}: give one of {', '.join(workload_names())}"
