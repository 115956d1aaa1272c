"""Side effects on workers: what the executor asks for, and what a backend must do.

A backend performs an :class:`Effect` and answers it with an :class:`prorsa.events.EffectResult` of the same
``effect_id`` on the bus. Performing one twice does the thing once and answers twice, so that effects can be asked for
again after a lost answer or a restart of the controller.

=========  ============================================================================================================
action     what the backend does; when it answers
=========  ============================================================================================================
fence      takes the worker out of the routing pool: no new request goes to it; at once
drain      cancels the resumable requests on the worker (both legs), which go on elsewhere from prompt + tokens so far,
           and lets the others finish, or run again elsewhere past ``deadline_s``; when none is left
settle     the idle barrier; when the engine is fully idle
switch     changes the role to ``role`` and verifies the role that the worker then really has; when verified
warm       sends a canary request through the worker and one peer; when it is answered
admit      puts the worker into the routing pool as ``role`` under ``epoch``; at once
=========  ============================================================================================================

``admit`` with the old role is how a flip that failed before ``switch`` is undone.
"""

from typing import Literal

from msgspec import Struct

from prorsa.events import EffectResult, Role

Action = Literal["fence", "drain", "settle", "switch", "warm", "admit"]


class Effect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One side effect on one worker.

    Attributes:
        effect_id: unique; stays the same when the effect is asked for again.
        role: the role to switch to (``switch``, ``warm``) or to serve in (``admit``); the present one otherwise.
        epoch: the worker's role epoch that the effect belongs to; a backend ignores lower epochs than it has seen.
        deadline_s: run seconds after which the backend stops waiting and answers ``ok=False``.
    """

    effect_id: str
    worker_id: str
    action: Action
    role: Role
    epoch: int
    deadline_s: float


def done(effect: Effect, *, requests_resumed: int | None = None, kv_tokens_dropped: int | None = None) -> EffectResult:
    """The answer to an effect that has been performed."""
    return EffectResult(
        effect_id=effect.effect_id,
        worker_id=effect.worker_id,
        action=effect.action,
        ok=True,
        requests_resumed=requests_resumed,
        kv_tokens_dropped=kv_tokens_dropped,
    )


def failed(effect: Effect, detail: str, *, safe_to_restore: bool | None = None) -> EffectResult:
    """The answer to an effect that could not be performed, with the reason."""
    return EffectResult(
        effect_id=effect.effect_id,
        worker_id=effect.worker_id,
        action=effect.action,
        ok=False,
        detail=detail,
        safe_to_restore=safe_to_restore,
    )
