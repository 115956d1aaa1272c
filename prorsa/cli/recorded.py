"""Recorded runs to practise on, from their journals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from prorsa.bus.journal import JournalReader
from prorsa.cli.options import journal_in
from prorsa.cli.output import narrate
from prorsa.control.learn.recorded import EVENTS, PoolFacts, RecordedDomain, RecordedRun, read_run
from prorsa.errors import ConfigError, InputError, JournalError
from prorsa.events import BusOverflow, RunBegin, Stamped, decode
from prorsa.run import AnyPlan, RunPlan, plan_of


def recorded_domain(
    journals: Sequence[Path],
    *,
    profile: str | None,
    workers: int | None,
    cache: Literal["cold", "retained", "l3"] | None,
    host_kv_tokens: int | None,
) -> RecordedDomain:
    """What the journals tell of their runs; what is given goes before what they say.

    Raises:
        JournalError: if there is no journal, or a part of it is missing.
        InputError: if it does not say enough, and the rest is not given.
    """
    runs = []
    for path in journals:
        with JournalReader(journal_in(path), strict=True) as reader:
            rows = list(_whole(reader, path))
            facts = _facts(reader, rows, path, profile)
        facts = replace(
            facts,
            workers=workers or facts.workers,
            cache=cache or facts.cache,
            host_kv_tokens=facts.host_kv_tokens if host_kv_tokens is None else host_kv_tokens,
        )
        runs.append(read_run(rows, str(path), facts))
        _tell(runs[-1])
    return RecordedDomain(tuple(runs))


def _whole(reader: JournalReader, path: Path) -> Iterator[Stamped]:
    """The events that matter, after a check that none of any kind is missing.

    A gap would make pauses between turns, and weight updates, that there never were.
    """
    kinds = {*EVENTS, "bus.overflow"}
    last = 0
    for row in reader.rows():
        if row.hub_seq != last + 1:
            raise JournalError(
                f"{path}: events {last + 1} to {row.hub_seq - 1} are missing; train from a whole recording"
            )
        last = row.hub_seq
        if row.type not in kinds:
            continue
        event = decode(row.event)
        if isinstance(event, BusOverflow):
            raise JournalError(
                f"{path}: {row.source} lost {event.lost} events (a full buffer); train from a whole recording"
            )
        yield Stamped(row.hub_seq, row.t_ns, row.source, row.seq, row.ts_ns, event)


def _facts(reader: JournalReader, rows: Sequence[Stamped], path: Path, profile: str | None) -> PoolFacts:
    plan = _plan(reader)
    begin = next((row.event for row in rows if isinstance(row.event, RunBegin)), None)
    told = plan.scenario.profile if isinstance(plan, RunPlan) else begin.profile if begin else None
    found = profile or told
    if found is None:
        raise InputError(f"{path} does not say what its workers are: give --profile (`prorsa profile` makes one)")
    if plan is None:
        return PoolFacts(profile=found)
    return PoolFacts(profile=found, cache=plan.control.cache, host_kv_tokens=plan.control.host_kv_tokens)


def _plan(reader: JournalReader) -> AnyPlan | None:
    try:
        return plan_of(reader.meta)
    except ConfigError:
        return None  # a recording from elsewhere


def _tell(run: RecordedRun) -> None:
    scenario = run.scenario
    left_out = f"; {run.incomplete} without an end left out" if run.incomplete else ""
    narrate(
        f"{scenario.name}: {run.workload.trajectories} trajectories, {scenario.mode}, {scenario.concurrency} in flight "
        f"on {scenario.workers} workers of {scenario.profile}{left_out}"
    )
