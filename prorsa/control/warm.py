"""Compiles what forecasts and look-ahead need before a run waits for it."""

from typing import Final

import numpy as np

from prorsa.control.courses import Course, Flipping, lay_out
from prorsa.control.fluid import PoolState, run_plans
from prorsa.forecast import warm

_SECONDS: Final = 60
_TABLE: Final = np.ones(2)
_STATE: Final = PoolState(
    away=1.0,
    waiting=1.0,
    waiting_tokens=1.0,
    decoding=1.0,
    new_tokens=1.0,
    prefix_tokens=1.0,
    output_tokens=1.0,
    places=1.0,
    requests=np.array([1.0, 2.0]),
    prefill_tokens_per_s=_TABLE,
    decode_step_s=_TABLE,
    cached_share=np.ones(3),
)


def warm_up() -> None:
    """Forecast a made-up rollout, and look ahead once: what is compiled is kept on disk.

    An operator may call any policy up in the middle of a run, in shadow too; one that compiled only then would hold up
    the policy that decides, and the controller would lose its lease.
    """
    warm.warm_up()
    flipping = Flipping(parallel=1, flip_s=1.0, to_decode_lost=(), to_prefill_lost=0.0)
    plans = lay_out([Course(1)], 1, 2, _SECONDS, flipping)
    run_plans(_STATE, plans, np.ones((3, _SECONDS)))
