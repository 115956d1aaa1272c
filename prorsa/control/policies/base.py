"""What a policy may look at, what it answers, and what it promises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.registry import Worker
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.homes import Homes
from prorsa.control.solver import Bounds
from prorsa.control.waiting import Waiting
from prorsa.events import Alternative, Split
from prorsa.forecast.frame import Frame


@dataclass(frozen=True, slots=True)
class Context:
    """What a policy may look at.

    Attributes:
        current: the split once the flips under way have ended.
        bounds: how many workers may be prefill, by pins, flippability and the one-of-each guard.
        frame: the forecast as the policy is to see it; None where there is none (yet).
        cost: what one worker can do.
        kv_capacity: KV tokens of one worker (the smallest); None where no worker has told.
        workers: those that serve, each with its last load report; to be read only.
        waiting: prompts that wait for prefill, by the router's events.
        flips_under_way: workers on their way to another role.
        homes: whose prefix each worker holds.
        flush_ns: run time at which an announced weight update will drop the prefix caches; None without one.
        parallel_flips: how many may be at a time.
        acts: whether what the policy wants is carried out; not in shadow, nor in a mode that does not let it.
        allowed_actions: which of :data:`prorsa.control.actions.ACTIONS` the guards would carry out in full;
            None where nobody has asked them.
    """

    t_ns: int
    current: Split
    bounds: Bounds
    frame: Frame | None
    cost: CostModel
    kv_capacity: int | None
    config: ControlConfig
    workers: tuple[Worker, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)
    flips_under_way: int = 0
    homes: Homes = field(default_factory=Homes)
    flush_ns: int | None = None
    parallel_flips: int = 1
    acts: bool = True
    allowed_actions: Callable[[], NDArray[np.bool_]] | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """The split that a policy wants.

    ``relief_s`` is what it hopes to save, where the policy can say: worker-seconds of the work of the decision horizon
    that the present split would leave undone and the wanted one would not. ``handed_over`` is why another policy
    decided in its place; None where it decided itself. ``decided_by`` names that other policy, or the one that a policy
    chose among several.
    """

    split: Split
    reason: str
    inputs: dict[str, float | None] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    overloaded: bool = False
    relief_s: float | None = None
    handed_over: str | None = None
    decided_by: str | None = None


class Policy(Protocol):
    """Decides a split.

    Attributes:
        economy: whether the economy guards hold for it; published baselines run without them.
        flips: whether it ever asks for a flip.
        needs_forecast: whether it decides by the forecast.
        needs_events: whether it decides by what the router says of requests, beside the workers' load reports.
    """

    name: str
    economy: bool
    flips: bool
    needs_forecast: bool
    needs_events: bool

    def decide(self, context: Context) -> Want:
        """The wanted split; never raises on a context that the controller can make."""
        ...

    def state(self) -> str:
        """A short text that differs when the policy would decide differently on the same context."""
        ...


def shifted(context: Context, shift: int) -> Split:
    """The present split with ``shift`` more prefill workers, as far as the bounds let it."""
    prefill = min(max(context.current.prefill + shift, context.bounds.low), context.bounds.high)
    return Split(prefill=prefill, decode=context.bounds.workers - prefill)
