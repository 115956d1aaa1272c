"""``estimate``: what Prorsa would have gained on a recorded run."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from prorsa.bus.journal import JournalReader
from prorsa.cli.options import journal_in
from prorsa.cli.output import narrate, print_json
from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.sessions import load_sessions
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import InputError
from prorsa.estimate import Estimate, Side, estimate
from prorsa.recordings import EVENTS, Recording, read_recording


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """What ``prorsa estimate`` is given; None where the recording tells."""

    recording: Path
    policy: str
    profile: str | None
    present: str | None
    present_profile: str | None
    accepted_tokens: float
    workers: int | None
    concurrency: int | None
    cache: Literal["cold", "retained", "l3"]
    host_kv_tokens: int
    draws: int
    seed: int
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """The recorded run, as far as it is known."""

    workload: Workload
    profile: str
    workers: int
    concurrency: int
    present: str


def run_estimate(options: EstimateOptions) -> int:
    """Estimate and print."""
    run = _sessions(options) if options.recording.is_file() else _journal(options)
    scenario = Scenario(
        name=options.recording.name,
        profile=run.profile,
        workers=run.workers,
        concurrency=run.concurrency,
        mode="async",
        workload="coding",  # a scenario names a class; the trajectories are the recording's
        cache=options.cache,
        host_kv_tokens=options.host_kv_tokens,
    )
    now = msgspec.structs.replace(scenario, profile=options.present_profile or run.profile)
    narrate(
        f"{run.workload.trajectories} trajectories, {run.concurrency} in flight on {run.workers} workers of "
        f"{run.profile}: {run.present} beside {options.policy}"
    )
    found = estimate(
        run.workload,
        Side(now, run.present, options.accepted_tokens),
        Side(scenario, options.policy),
        draws=options.draws,
        seed=options.seed,
        progress=narrate,
    )
    _print(found, run, options)
    return 0


def _journal(options: EstimateOptions) -> _Run:
    reader = JournalReader(journal_in(options.recording))
    recording = read_recording(reader.read(types=EVENTS), str(options.recording))
    if recording.incomplete:
        narrate(f"{recording.incomplete} trajectories have no end in the recording and are left out")
    begin = recording.begin
    profile = options.profile or (begin.profile if begin else None)
    if profile is None:
        raise InputError(f"{options.recording} does not say what its workers are: give --profile (`prorsa profile`)")
    workers = options.workers or (begin.workers if begin and begin.workers else len(recording.roles))
    if not workers:
        raise InputError(f"{options.recording} names no worker: give --workers")
    concurrency = options.concurrency or (begin.concurrency if begin else None) or recording.most_live
    return _Run(recording.workload, profile, workers, concurrency, options.present or _roles(recording, workers))


def _roles(recording: Recording, workers: int) -> str:
    """The policy that holds the roles which the recording began with."""
    roles = Counter(recording.roles.values())
    if roles["prefill"] + roles["decode"] == workers and roles["prefill"] and roles["decode"]:
        return f"static:{roles['prefill']}:{roles['decode']}"
    if roles["mixed"] == workers:
        return "colocated"
    told = ", ".join(f"{count} {role}" for role, count in roles.items()) or "nothing"
    raise InputError(f"of {workers} workers the recording says {told}: give --present, as in colocated or static:4:4")


def _sessions(options: EstimateOptions) -> _Run:
    missing = [
        name for name in ("profile", "workers", "concurrency", "present") if getattr(options, name) is None
    ]  # fmt: skip
    if missing:
        needed = ", ".join(f"--{name}" for name in missing)
        raise InputError(f"{options.recording} is a session file, which does not tell of the pool: give {needed}")
    assert options.profile is not None
    assert options.workers is not None
    assert options.concurrency is not None
    assert options.present is not None
    workload = load_sessions(options.recording, profile=load_profile(options.profile), seed=options.seed)
    return _Run(workload, options.profile, options.workers, options.concurrency, options.present)


def _print(found: Estimate, run: _Run, options: EstimateOptions) -> None:
    if options.as_json:
        print_json({**msgspec.to_builtins(found), "verdict": found.verdict, "present_policy": run.present})
        return
    print(found.verdict)
    print(f"{found.figure}: {found.present:,.1f} as it ran ({run.present}), {found.prorsa:,.1f} under {options.policy}")
    print(f"the recorded trajectories as they were: {found.replayed:.2f}x; flips an hour: {found.flips_per_hour:.1f}")
