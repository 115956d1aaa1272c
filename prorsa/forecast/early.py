"""What windows took as far as that is known when they end, long before the last answer in them is complete.

The scores wait for the truth: an admission counts with its whole answer, so that a window of long answers settles
minutes after it has ended. Which forecaster to trust cannot wait for that. The admissions as they are seen tick by tick
(the series that the baselines are fed) differ from the truth by little: an expected answer instead of the answer.
"""

from collections import deque
from typing import NamedTuple

from prorsa.forecast.scoring import Made


class _Waiting(NamedTuple):
    end_s: float
    before: float
    made: Made


class EarlyActuals:
    """Follows the admissions that are seen, and gives each forecast back with what came, once its window is over."""

    def __init__(self, horizons_s: tuple[float, ...]) -> None:
        self._so_far = 0.0
        self._waiting: dict[float, deque[_Waiting]] = {h: deque() for h in horizons_s}

    def tick(self, t_s: float, admitted_tokens: float) -> list[tuple[float, Made, float]]:
        """What was seen since the last tick; returns (horizon, forecast, tokens) of the windows that end."""
        self._so_far += admitted_tokens
        over: list[tuple[float, Made, float]] = []
        for horizon_s, waiting in self._waiting.items():
            while waiting and waiting[0].end_s <= t_s + 1e-6:
                one = waiting.popleft()
                over.append((horizon_s, one.made, self._so_far - one.before))
        return over

    def made(self, t_s: float, horizon_s: float, forecast: Made) -> None:
        """The forecast of a tick for a horizon."""
        self._waiting[horizon_s].append(_Waiting(t_s + horizon_s, self._so_far, forecast))
