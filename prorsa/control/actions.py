"""What a learned policy may do: move a worker or a few, either way, or nothing; masked to what the guards allow."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.control.plan import Pool, make_plan
from prorsa.control.policies.base import Want
from prorsa.control.solver import Bounds
from prorsa.events import Split

ACTIONS: Final = ("decode:many", "decode:one", "stay", "prefill:one", "prefill:many")
"""``many`` is as many workers as may be in a flip at a time, so that an action means the same in pools of any size."""
STAY: Final = 2
ONLY_STAY: Final = np.arange(len(ACTIONS)) == STAY
"""The mask where no split can be chosen."""


def shift_of(action: int, parallel_flips: int) -> int:
    """Workers that an action moves to prefill; negative where it moves them to decode."""
    return (-parallel_flips, -1, 0, 1, parallel_flips)[action]


def action_mask(pool: Pool, bounds: Bounds) -> NDArray[np.bool_]:
    """Which actions the guards would carry out in full, flips that are not free at the time included.

    ``many`` is masked where it is no more than ``one``. To stay is always allowed.
    """
    return np.array([_allowed(action, pool, bounds) for action in range(len(ACTIONS))])


def _allowed(action: int, pool: Pool, bounds: Bounds) -> bool:
    shift = shift_of(action, pool.parallel_flips)
    if action == STAY:
        return True
    if abs(shift) == 1 and action in (0, len(ACTIONS) - 1):
        return False
    current = pool.registry.destined()
    prefill = current.prefill + shift
    if not bounds.low <= prefill <= bounds.high:
        return False
    want = Want(Split(prefill=prefill, decode=bounds.workers - prefill), reason="asked for the mask")
    plan = make_plan(want, pool, bounds, economy=True)
    return len(plan.moves) == abs(shift) and not plan.by_operator
