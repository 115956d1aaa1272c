"""The commands that act on a run; each is the same verb as in the console."""

from collections.abc import Callable
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from prorsa.cli.options import Acting, Duration, duration

Role = Literal["prefill", "decode"]

For = Annotated[
    Duration | None,
    Parameter(
        name="--for", converter=duration, help="How long it holds, on the run clock: 90s, 30m, 2h (default 30m)."
    ),
]


def _act(
    verb: str, acting: Acting, *, target: str | None = None, value: str | None = None, for_s: float | None = None
) -> int:
    from prorsa.cli.clients import act

    return act(acting, verb, target=target, value=value, for_s=for_s)


def pin(worker: str, role: Role, *, acting: Acting, for_s: For = None) -> int:
    """Pin a worker to a role: it is flipped there if need be, and stays."""
    return _act("pin", acting, target=worker, value=role, for_s=for_s)


def release(what: str, *, acting: Acting) -> int:
    """Release a pinned worker, the split override (`split`) or the freeze (`freeze`)."""
    return _act("release", acting, target=what)


def override(split: str, *, acting: Acting, for_s: For = None) -> int:
    """Hold the split at P:D, whatever the policy wants."""
    return _act("override", acting, value=split, for_s=for_s)


def freeze(*, acting: Acting, for_s: For = None) -> int:
    """Start no flip until released or expired."""
    return _act("freeze", acting, for_s=for_s)


def approve(decision: str | None = None, *, acting: Acting) -> int:
    """Approve the pending decision (mode approve)."""
    return _act("approve", acting, target=decision)


def reject(decision: str | None = None, *, acting: Acting) -> int:
    """Reject the pending decision (mode approve)."""
    return _act("reject", acting, target=decision)


def drain(worker: str, *, acting: Acting, for_s: For = None) -> int:
    """Take a worker out of the pool: its requests move on. It is out until it is readmitted, or for that long."""
    return _act("drain", acting, target=worker, for_s=for_s)


def quarantine(worker: str, *, acting: Acting, for_s: For = None) -> int:
    """Send a worker nothing new; its requests end where they are. It is out until readmitted, or for that long."""
    return _act("quarantine", acting, target=worker, for_s=for_s)


def readmit(worker: str, *, acting: Acting) -> int:
    """Let a drained or quarantined worker serve again, after a canary."""
    return _act("readmit", acting, target=worker)


def mode(name: Literal["auto", "approve", "observe"], *, acting: Acting) -> int:
    """Let decisions act (auto), wait for approval (approve), or only be recorded (observe)."""
    return _act("mode", acting, value=name)


def policy(name: str, *, acting: Acting) -> int:
    """Change the policy of the run. One in shadow takes over with what it remembers; the other goes on in shadow."""
    return _act("policy", acting, value=name)


def shadow(name: str, *, acting: Acting) -> int:
    """Let a second policy decide beside the active one, without acting; `off` for none."""
    return _act("shadow", acting, value=name)


ACTING: Final[tuple[Callable[..., int], ...]] = (
    pin,
    release,
    override,
    freeze,
    approve,
    reject,
    drain,
    quarantine,
    readmit,
    mode,
    policy,
    shadow,
)
"""The commands, for the application to take up."""
