"""Whether moves bring what they promise: the guard of look-ahead against whatever its model gets wrong.

A move is on trial for a while. Its output is compared with what staying was predicted to give in the same seconds,
corrected by how far the model had been off before the move. Each move that brings no more than staying doubles what the
next one must promise, each that brings at least half of what it promised halves that again, and all of it is forgotten
within minutes. A move after which clearly less comes than staying would have brought is taken back.
"""

import math
from dataclasses import dataclass
from typing import Final

from prorsa.clock import nanoseconds, seconds
from prorsa.control.calibration import Calibration, Counters, output_counters, output_since
from prorsa.control.fluid import Array
from prorsa.control.policies.base import Context

SETTLES_S: Final = 20.0
"""Seconds after a move that do not count: flips drain, and the first answers of a new split are not out yet."""
LASTS_S: Final = 110.0
"""When a trial ends: within what the model has looked at, with dozens of answers even of slow pools."""
_BACK_S: Final = 60.0
"""For how long a failed move is tried to be taken back: what has kept it from that so long, such as a freeze, has made
the evidence old."""
_LEAST_ANSWERS: Final = 12.0
"""Answers that staying must have promised for a trial to say anything."""
_MOST_DOUBT: Final = 5.0
"""Doublings: 32 times the least gain is more than any move could promise honestly."""
_FORGET_S: Final = 300.0
"""After how long doubt has lost 63 %: phases of a rollout last minutes."""
_SURE: Final = 2.0
"""Standard errors below what staying promised that a move must bring to be taken back..."""
_LEAST_SHARE: Final = 0.7
"""... and less than this share of it: what staying would have brought is predicted by the same model, which sees the
caches fill up only when they have, and both directions cost prefixes."""
_SPREAD: Final = 1.2
"""Relative spread of an answer's tokens, of which the error of a sum of so many follows (agents' answers of
``docs/workloads.md``)."""


@dataclass(slots=True)
class _Trial:
    from_prefill: int
    to_prefill: int
    since_ns: int
    promised: float
    bias: float | None
    stay_tokens_per_s: Array
    output_tokens: float
    versions: frozenset[str | None]
    counters: Counters | None = None


class Trials:
    """The move on trial, and what those before it have left of doubt.

    Attributes:
        take_back: the split to return to, as prefill workers, where the last move has failed clearly; None otherwise.
        last: of the last move that was judged, output over what staying promised; None before one has been.
    """

    def __init__(self) -> None:
        self.take_back: int | None = None
        self.last: float | None = None
        self._doubt = 0.0
        self._as_of_ns: int | None = None
        self._proposed: _Trial | None = None
        self._trial: _Trial | None = None
        self._back_until_ns = 0

    @property
    def factor(self) -> float:
        """How many times the usual gain a move must promise."""
        return float(2.0**self._doubt)

    def state(self) -> str:
        """A short text that differs when anything here does."""
        on_trial = "" if self._trial is None else f"{self._trial.since_ns} {self._trial.to_prefill}"
        return f"{self._doubt:.9g} {self.take_back} {on_trial}"

    def propose(self, context: Context, to_prefill: int, promised: float, stay: Array, answer_tokens: float) -> None:
        """Note that a move is wanted; it is on trial once it has been made.

        Args:
            promised: gain as a share of the work under the present split.
            stay: output tokens that staying would bring, by second from now on.
        """
        prefill, versions = context.current.prefill, _versions(context)
        self._proposed = _Trial(prefill, to_prefill, context.t_ns, promised, None, stay, answer_tokens, versions)

    def check(self, context: Context, calibration: Calibration) -> None:
        """Follow what has come of the last decision; to be called once at each."""
        self._forget(context.t_ns)
        proposed, self._proposed = self._proposed, None
        prefill = context.current.prefill
        if self.take_back == prefill or context.t_ns > self._back_until_ns:
            self.take_back = None
        if proposed is not None and prefill != proposed.from_prefill and not self._goes_on(proposed):
            self._judge(context, early=True)
            proposed.bias = calibration.bias
            self._trial = proposed
        trial = self._trial
        if trial is None:
            return
        passed_s = seconds(context.t_ns - trial.since_ns)
        if trial.counters is None and passed_s >= SETTLES_S:
            trial.counters = output_counters(context)
            trial.since_ns = context.t_ns
            trial.stay_tokens_per_s = trial.stay_tokens_per_s[round(passed_s) :]
        elif trial.counters is not None and passed_s >= LASTS_S - SETTLES_S:
            self._judge(context, early=False)

    def _goes_on(self, proposed: _Trial) -> bool:
        """Whether a move is the next part of the one on trial: flips are a few at a time."""
        trial = self._trial
        if trial is None or trial.counters is not None:
            return False
        return (proposed.to_prefill > proposed.from_prefill) == (trial.to_prefill > trial.from_prefill)

    def _forget(self, t_ns: int) -> None:
        if self._as_of_ns is not None:
            self._doubt *= math.exp(-seconds(t_ns - self._as_of_ns) / _FORGET_S)
        self._as_of_ns = t_ns

    def _judge(self, context: Context, *, early: bool) -> None:
        trial, self._trial = self._trial, None
        if trial is None or trial.counters is None or trial.bias is None:
            return
        if trial.versions != _versions(context):
            return  # an update has held up everything meanwhile, whatever the split
        passed_s = round(seconds(context.t_ns - trial.since_ns))
        stay = float(trial.stay_tokens_per_s[:passed_s].sum()) * math.exp(trial.bias)
        answers = stay / trial.output_tokens
        came = output_since(trial.counters, context)
        if came is None or answers < _LEAST_ANSWERS:
            return
        self.last = came / stay
        if came < stay:
            self._doubt = min(self._doubt + 1.0, _MOST_DOUBT)
        elif came >= (1.0 + 0.5 * trial.promised) * stay:
            self._doubt = max(self._doubt - 1.0, 0.0)
        clearly_less = came < stay * min(1.0 - _SURE * _SPREAD / math.sqrt(answers), _LEAST_SHARE)
        if clearly_less and not early:
            self.take_back = trial.from_prefill
            self._back_until_ns = context.t_ns + nanoseconds(_BACK_S)


def _versions(context: Context) -> frozenset[str | None]:
    """Weight versions that are served."""
    return frozenset(worker.weight_version for worker in context.workers)
