"""Where the trajectories of a run stand, as far as it can be seen from outside."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WAITING: Final = 0
"""Not dispatched."""
SANDBOX: Final = 1
ANSWERING: Final = 2
"""Its request waits, is prefilled or decodes."""
TOOL: Final = 3
REWARD: Final = 4
ENDED: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where N trajectories of a run stand.

    Attributes:
        stage: int8[N], ``WAITING`` to ``ENDED``.
        turn: int64[N], index within the trajectory of the turn that is being answered, or that follows the tool.
        elapsed_s: float64[N], how long the sandbox, tool or reward has taken so far; 0 elsewhere.
        output_tokens: int64[N], tokens of the answer that are out.
    """

    stage: NDArray[np.int8]
    turn: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    output_tokens: NDArray[np.int64]
