"""What an action would do, as far as the latest view tells: shown in a dialog before an operator confirms it.

These are statements about the present (who serves, what waits, what the cache holds), not a plan: which workers flip,
and when, is the controller's to decide.
"""

from dataclasses import dataclass, replace

from prorsa.console.text import count, ratio
from prorsa.events import Decision, Role, Split, View, WorkerView


@dataclass(frozen=True, slots=True)
class Impact:
    """Facts by name in the order to show them, what to beware of, and a word to type where confirming takes more."""

    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()
    typed: str | None = None


def roles(view: View) -> dict[str, int]:
    """How many workers there are of each role, flipping ones under the role that they go to."""
    found = {"prefill": 0, "decode": 0, "mixed": 0}
    for worker in view.workers:
        if worker.state not in ("dead", "quarantined"):
            found[worker.to_role or worker.role] += 1
    return found


def _split(found: dict[str, int]) -> Split:
    return Split(found["prefill"], found["decode"], found["mixed"])


def requests_on(worker: WorkerView) -> int | None:
    """Requests that wait or run on a worker; None where neither is known."""
    known = [value for value in (worker.queued, worker.running) if value is not None]
    return sum(known) if known else None


def pin(view: View, worker: WorkerView, role: Role) -> Impact:
    """Pinning ``worker`` to ``role``."""
    if (worker.to_role or worker.role) == role:
        text = f"none now: {worker.worker_id} keeps its role, and stays in it until the pin ends"
        return Impact((("effect", text), ("requests affected", "0")))
    before = roles(view)
    after = dict(before)
    after[worker.to_role or worker.role] -= 1
    after[role] += 1
    affected = requests_on(worker)
    facts = (
        ("change", f"{worker.role} → {role}"),
        ("split", f"{_split(before)} → {_split(after)}"),
        (
            "requests affected",
            f"{count(affected)} move to other workers and resume there" if affected else count(affected),
        ),
        ("KV on the worker", _kv(worker)),
    )
    return _guarded(Impact(facts), worker, after)


def _kv(worker: WorkerView) -> str:
    share = ratio(worker.kv_used, worker.kv_capacity)
    return f"{count(worker.kv_used)} tokens" + ("" if share is None else f", {share:.0%} of its capacity")


def _guarded(impact: Impact, worker: WorkerView, after: dict[str, int]) -> Impact:
    if worker.flippable is False:
        warning = f"{worker.worker_id} cannot change its role: expect the controller to refuse"
        impact = replace(impact, warnings=(*impact.warnings, warning))
    return _last_of_its_role(impact, worker, after)


def _last_of_its_role(impact: Impact, worker: WorkerView, after: dict[str, int]) -> Impact:
    lost = worker.to_role or worker.role
    if after[lost] > 0:
        return impact
    warning = f"{worker.worker_id} is the last {lost} worker: expect the guards to refuse"
    return replace(impact, warnings=(*impact.warnings, warning), typed=worker.worker_id)


def absence(view: View, worker: WorkerView, verb: str) -> Impact:
    """Taking a worker out of the pool."""
    affected = requests_on(worker)
    what = "move to other workers and resume there" if verb == "drain" else "end where they are"
    before = roles(view)
    after = dict(before)
    after[worker.to_role or worker.role] -= 1
    facts = (
        ("requests affected", f"{count(affected)} {what}" if affected else count(affected)),
        ("split", f"{_split(before)} → {_split(after)}"),
        ("KV on the worker", _kv(worker)),
    )
    if worker.state in ("dead", "quarantined"):
        return Impact((("effect", f"none: {worker.worker_id} is {worker.state} already"),))
    return _last_of_its_role(Impact(facts), worker, after)


def readmit(worker: WorkerView) -> Impact:
    """Letting a worker serve again."""
    if worker.state == "serving":
        return Impact((("effect", f"none: {worker.worker_id} serves already"),))
    text = f"{worker.worker_id} is tried with a canary, and then serves as {worker.role}"
    return Impact((("effect", text), ("requests affected", "0")))


def override(view: View, split: str) -> Impact:
    """Holding the split at ``P:D``."""
    prefill, decode = (int(part) for part in split.split(":"))
    before = roles(view)
    flips = abs(prefill - before["prefill"]) if not before["mixed"] else prefill + decode - before["prefill"]
    to_role = "prefill" if prefill > before["prefill"] else "decode"
    moves = (
        f"{flips} {_plural(flips, 'worker')} to {to_role}; the controller picks which" if flips else "none needed now"
    )
    facts = (
        ("split", f"{_split(before)} → {Split(prefill, decode)}"),
        ("flips", moves),
        ("requests affected", _of_flips(view, flips, "decode" if to_role == "prefill" else "prefill")),
    )
    pinned = [worker.worker_id for worker in view.workers if worker.pinned]
    warnings = (f"pinned workers stay as they are: {', '.join(pinned)}",) if pinned and flips else ()
    return Impact(facts, warnings)


def _of_flips(view: View, flips: int, lost: str) -> str:
    """At most how many requests ``flips`` flips out of role ``lost`` touch: those of the fullest workers."""
    on_each = [requests_on(worker) for worker in view.workers if (worker.to_role or worker.role) == lost]
    known = sorted((value for value in on_each if value is not None), reverse=True)
    if not flips:
        return "0"
    return f"at most {sum(known[:flips])}" if known else count(None)


def freeze(view: View) -> Impact:
    """Letting no flip start."""
    under_way = sum(worker.to_role is not None for worker in view.workers)
    rest = f"; {under_way} under way {_plural(under_way, 'finish', 'finishes')}" if under_way else ""
    return Impact(
        (
            ("effect", f"no flip starts{rest}"),
            ("split", f"stays {_split(roles(view))} whatever the demand"),
            ("requests affected", "0"),
        )
    )


def release(view: View, target: str, split: str | None = None) -> Impact:
    """Ending the override on ``target``: a worker, ``split`` or ``freeze``; ``split`` is the one that is held."""
    worker = next((worker for worker in view.workers if worker.worker_id == target), None)
    if worker is not None:
        text = f"{target} is no longer held as {worker.pinned or worker.role}"
    else:
        text = {"split": f"the split is no longer held at {split}" if split else "the split is no longer held"}.get(
            target, "flips may start again"
        )
    return Impact((("effect", f"{text}; the policy decides from its next tick on"), ("requests affected", "0")))


def mode(view: View, wanted: str) -> Impact:
    """Changing the mode."""
    text = {
        "auto": "the controller carries out its plans by itself",
        "approve": "each plan waits for an operator, and expires unapproved",
        "observe": "plans are only recorded; no flip starts",
    }[wanted]
    return Impact((("mode", f"{view.mode} → {wanted}"), ("effect", text), ("requests affected", "0")))


def _change_places(view: View, wanted: str) -> str:
    shadowed = view.shadow is not None and view.shadow.policy == wanted
    return f"; it remembers what it saw in shadow, and {view.policy} goes on there" if shadowed else ""


def policy(view: View, wanted: str) -> Impact:
    """Changing the policy."""
    return Impact(
        (
            ("policy", f"{view.policy} → {wanted}"),
            (
                "effect",
                f"decides from the next tick on, under the same guards and overrides{_change_places(view, wanted)}",
            ),
            ("requests affected", "0 now; its first plan may flip workers"),
        )
    )


def shadow(view: View, wanted: str) -> Impact:
    """Letting another policy, or none, decide in shadow."""
    now = view.shadow.policy if view.shadow is not None else "none"
    if wanted == "off":
        return Impact((("in shadow", f"{now} → none"), ("effect", "its record ends"), ("requests affected", "0")))
    effect = f"decides beside {view.policy} from the next decision on; recorded and compared, nothing comes of it"
    return Impact((("in shadow", f"{now} → {wanted}"), ("effect", effect), ("requests affected", "0")))


def proposal(view: View, plan: Decision) -> Impact:
    """Carrying out a plan that waits for approval."""
    affected = [requests_on(worker) for worker in view.workers if worker.worker_id in {m.worker_id for m in plan.moves}]
    known = [value for value in affected if value is not None]
    facts = [("split", f"{plan.current} → {plan.chosen}"), ("why", plan.reason)]
    facts += [(f"flip {move.worker_id}", f"{move.from_role} → {move.to_role}: {move.reason}") for move in plan.moves]
    facts.append(("requests affected", count(sum(known) if known else None)))
    return Impact(tuple(facts))


def _plural(number: int, one: str, several: str | None = None) -> str:
    if several is not None:
        return several if number == 1 else one
    return one if number == 1 else f"{one}s"
