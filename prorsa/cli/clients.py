"""Commands that talk to a live run: ``status``, ``watch``, ``console``, and those that act."""

import asyncio
import getpass
import secrets
from pathlib import Path
from typing import Any

import msgspec

from prorsa.beside import agreement
from prorsa.bus.commands import CommandClient
from prorsa.bus.keys import Keys
from prorsa.bus.subscriber import Subscriber
from prorsa.bus.wire import Endpoints, HubStatus
from prorsa.cli.options import Acting, Looking, journal_in
from prorsa.cli.output import UNKNOWN, narrate, number, percent, print_json, print_table
from prorsa.errors import RefusedError, UnavailableError
from prorsa.events import Admission, Command, ShadowScore, View
from prorsa.lines import effect_lines, line_of
from prorsa.serve.rundir import find_run

ANSWER_WITHIN_S = 10.0
"""Wall time to wait for the controller's answer; a restarting one needs a few seconds."""
_WATCHED = (
    "decision",
    "shadow",
    "flip",
    "override",
    "command",
    "alert",
    "run.begin",
    "run.end",
    "worker.up",
    "worker.down",
)


def act(acting: Acting, verb: str, *, target: str | None, value: str | None, for_s: float | None) -> int:
    """Send a command and wait for its answer.

    Raises:
        RefusedError: if the controller says no.
        UnavailableError: if nobody answers.
    """
    user = getpass.getuser()
    # The verb comes from this command line's own commands; the hub checks every other field.
    command = msgspec.convert(
        {
            "type": "command",
            "client": f"cli-{user}",
            "request_id": acting.request_id or secrets.token_hex(8),
            "verb": verb,
            "state": "requested",
            "owner": acting.owner or user,
            "reason": acting.reason,
            "target": target,
            "value": value,
            "for_s": for_s,
            "dry_run": acting.dry_run,
        },
        Command,
    )
    answer = asyncio.run(_request(acting, command))
    if acting.as_json:
        print_json(msgspec.to_builtins(answer))
    if answer.state == "rejected":
        raise RefusedError(answer.detail or f"{verb} was refused")
    if not acting.as_json:
        narrate(f"{'would be accepted' if acting.dry_run else 'accepted'}: {answer.detail or verb}")
        for line in effect_lines(answer.effect) if answer.effect is not None else ():
            print(line)
    return 0


def show_status(at: Looking, *, as_json: bool) -> int:
    """Print how the run stands.

    Raises:
        UnavailableError: if the hub, or a controller behind it, has nothing to say.
    """
    hub, view = asyncio.run(_status(at))
    status = _status_object(hub, view)
    if as_json:
        print_json(status)
    else:
        _print_status(view, hub)
    return 0


def follow(at: Looking, *, as_json: bool) -> int:
    """Print what happens until interrupted."""
    asyncio.run(_follow(at, as_json=as_json))
    return 0


def open_console(at: Looking, replay: Path | None, *, read_only: bool) -> int:
    """Run the console in this terminal."""
    from prorsa.console.launch import run_console

    owner = getpass.getuser()
    if replay is not None:
        return run_console(run_dir=None, endpoints=None, replay=journal_in(replay), read_only=True, owner=owner)
    run = find_run(at.connect)
    return run_console(
        run_dir=run.path,
        endpoints=Endpoints.load(run.path),
        replay=None,
        read_only=read_only,
        owner=owner,
        keys=Keys.find(at.keys),
    )


def show_what_if(
    at: Looking, policy: str, journal: Path | None, at_s: float | None, for_s: float | None, *, as_json: bool
) -> int:
    """Print two futures of a run, side by side."""
    from prorsa.whatif import suppose

    found = suppose(journal_in(journal or find_run(at.connect).path), policy, at_s=at_s, for_s=for_s)
    if as_json:
        print_json(found.to_json())
        return 0
    futures = (found.as_it_was, found.supposed)
    narrate(f"{found.scenario}, {found.as_it_was.over_s:.0f} s on from {found.at_s:.0f} s")
    recorded = UNKNOWN if found.copy.ended_recorded is None else str(found.copy.ended_recorded)
    narrate(f"the copy has {found.copy.ended} trajectories ended at that moment, the recording {recorded}")
    rows = [
        [
            future.policy,
            number(future.output_tokens),
            number(future.prefill_tokens),
            str(future.trajectories_ended),
            percent(future.gpu_idle_ratio),
            str(future.flips),
            str(future.course[-1].split),
        ]
        for future in futures
    ]
    print_table(("policy", "output tokens", "prefill tokens", "ended", "GPU idle", "flips", "split then"), rows)
    narrate(f"output: {found.gain:+.1%}" if found.gain is not None else "output: nothing to compare")
    return 0


def _client(at: Looking) -> CommandClient:
    return CommandClient(Endpoints.load(find_run(at.connect).path), Keys.find(at.keys))


async def _request(at: Looking, command: Command) -> Command:
    async with _client(at) as client:
        return await client.request(command, ANSWER_WITHIN_S)


async def _status(at: Looking) -> tuple[HubStatus, View]:
    async with _client(at) as client:
        hub = await client.status()
        views = [stamped.event for stamped in await client.snapshot(("view",)) if isinstance(stamped.event, View)]
    if not views:
        raise UnavailableError(
            f"run {hub.run_id}: the hub is up, but no controller has reported yet; try again shortly"
        )
    return hub, views[-1]


def _status_object(hub: HubStatus, view: View) -> dict[str, Any]:
    decision = view.last_decision
    return {
        "run_id": hub.run_id,
        "mode": view.mode,
        "policy": view.policy,
        "split": msgspec.to_builtins(view.split),
        "workers": [
            {
                "worker_id": worker.worker_id,
                "role": worker.role,
                "state": worker.state,
                "epoch": worker.epoch,
                "pinned": worker.pinned,
                "flippable": worker.flippable,
            }
            for worker in view.workers
        ],
        "overrides": [
            {**dict.fromkeys(entry.__struct_fields__), **msgspec.to_builtins(entry)} for entry in view.overrides
        ],
        "forecast": view.scores or None,
        "last_decision": decision
        and {
            "decision_id": decision.decision_id,
            "reason": decision.reason,
            "guards": [msgspec.to_builtins(guard) for guard in decision.guards],
        },
        "shadow": None if view.shadow is None else msgspec.to_builtins(view.shadow),
        "admission": None if view.admission is None else _admission_object(view.admission),
        "bus": {
            "received": hub.counters.received,
            "journalled": hub.counters.journalled,
            "gaps": hub.counters.gaps,
            "repaired": hub.counters.repaired,
        },
    }


def _admission_object(said: Admission) -> dict[str, Any]:
    return {"mode": said.mode, "limit": said.limit, "live": said.live, "reason": said.reason}


def _print_status(view: View, hub: HubStatus) -> None:
    split = f"{view.split}" + (f", {view.split.switching} switching" if view.split.switching else "")
    narrate(f"{hub.run_id}: {split}; mode {view.mode}, policy {view.policy}")
    if view.last_decision is not None:
        narrate(f"decision {view.last_decision.decision_id}: {view.last_decision.reason}")
    if view.shadow is not None:
        narrate(_shadow_line(view.shadow))
    if view.admission is not None:
        narrate(f"admission ({view.admission.mode}): {view.admission.reason}")
    for entry in view.overrides:
        left = "" if entry.expires_in_s is None else f", {entry.expires_in_s:.0f} s left"
        narrate(f"{entry.kind} {entry.target or ''} {entry.value or ''} ({entry.state}{left}): {entry.reason}")
    rows = [
        [
            worker.worker_id,
            worker.role,
            worker.state,
            str(worker.epoch),
            worker.pinned or "",
            number(worker.queued),
            number(worker.running),
            percent(worker.kv_used / worker.kv_capacity if worker.kv_used is not None and worker.kv_capacity else None),
            number(worker.output_tokens_per_s),
            UNKNOWN if worker.age_s is None else f"{worker.age_s:.1f}",
        ]
        for worker in view.workers
    ]
    print_table(("worker", "role", "state", "epoch", "pinned", "queued", "running", "KV", "tok/s", "age s"), rows)


def _shadow_line(score: ShadowScore) -> str:
    share = agreement(score)
    said = "nothing to compare yet" if share is None else f"agrees in {share:.0%} of {score.compared} decisions"
    return f"in shadow: {score.policy} {said}"


async def _follow(at: Looking, *, as_json: bool) -> None:
    endpoints = Endpoints.load(find_run(at.connect).path)
    async with Subscriber(endpoints, topics=_WATCHED, after_seq=None, keys=Keys.find(at.keys)) as subscriber:
        async for stamped in subscriber:
            if as_json:
                print_json({"hub_seq": stamped.hub_seq, "t_ns": stamped.t_ns, **msgspec.to_builtins(stamped.event)})
            elif (line := line_of(stamped)) is not None:
                print(line, flush=True)
