"""Rules of thumb over telemetry: thresholds on queue and KV, Arrow's rule, HeteroScale's proportional rule.

Their decisions are made each ``decide_s``, like everybody's. Where something that a rule goes by is unknown, it holds.
"""

import math
from typing import Final

from prorsa.clock import seconds
from prorsa.cluster.registry import Worker
from prorsa.cluster.step import RankWork, step_parts
from prorsa.control.policies.base import Context, Want, shifted
from prorsa.control.policies.signals import (
    decode_kv_held,
    output_tokens_per_s,
    prefill_wait_s,
    token_time_s,
    workers_of,
)


class Reactive:
    """``reactive``: thresholds on the wait for prefill and on decode's KV, as one would write them by hand.

    A side is *hot* above its high threshold until it falls below its low one. A side that is hot while the other is
    not, for ``_PATIENCE`` decisions in a row, gets one worker, and then nothing moves for ``_COOL_DOWN_S``. Where both
    sides are hot nothing moves: the rule cannot say which of the two is worse off.
    """

    economy = False
    flips = True
    needs_forecast = False
    needs_events = True

    def __init__(self, name: str = "reactive") -> None:
        self.name = name
        self._prefill = _Hysteresis(low=1.0, high=4.0)  # seconds of queue
        self._decode = _Hysteresis(low=0.75, high=0.9)  # share of KV
        self._streak = 0
        self._moved_ns: int | None = None

    def decide(self, context: Context) -> Want:
        """One worker to the side that is hot alone."""
        wait_s, kv = prefill_wait_s(context), decode_kv_held(context)
        if wait_s is None or kv is None:
            return _hold(context, "queue or KV unknown: the split stays")
        lean = self._prefill.hot(wait_s) - self._decode.hot(kv)
        self._streak = self._streak + lean if lean * self._streak >= 0 and lean else lean
        inputs: dict[str, float | None] = {"prefill_wait_s": round(wait_s, 3), "decode_kv": round(kv, 4)}
        state = f"prefill waits {wait_s:.1f} s, decode holds {kv:.0%} of its KV"
        if abs(self._streak) < _PATIENCE or self._cooling(context.t_ns):
            return Want(context.current, f"{state}: the split stays", inputs)
        split = shifted(context, lean)
        if split != context.current:
            self._streak, self._moved_ns = 0, context.t_ns
        return Want(split, f"{state}: a worker to {'prefill' if lean > 0 else 'decode'}", inputs)

    def state(self) -> str:
        """Which sides are hot, for how long, and the last move."""
        return f"{self._prefill.on},{self._decode.on},{self._streak},{self._moved_ns}"

    def _cooling(self, t_ns: int) -> bool:
        return self._moved_ns is not None and seconds(t_ns - self._moved_ns) < _COOL_DOWN_S


_PATIENCE: Final = 2
_COOL_DOWN_S: Final = 30.0


class _Hysteresis:
    def __init__(self, *, low: float, high: float) -> None:
        self.on = False
        self._low, self._high = low, high

    def hot(self, value: float) -> int:
        self.on = value > (self._low if self.on else self._high)
        return int(self.on)


class Arrow:
    """``reactive:arrow``: the instance rule of Arrow (arXiv 2505.11916), one worker a decision.

    P to D if no decode worker meets its token time, and the average prefill time is below target x (P - 1) / P or
    there are fewer decode than prefill workers. D to P as soon as a decode worker has no request. Arrow's overflow of
    prefill to decode workers is routing and not done: the router is the same for all policies. A rollout states no
    targets: 0.1 s a token and 5 s to prefill are assumed.
    """

    economy = False
    flips = True
    needs_forecast = False
    needs_events = True

    def __init__(self, name: str = "reactive:arrow") -> None:
        self.name = name

    def decide(self, context: Context) -> Want:
        """Arrow's two conditions, in their order."""
        prefillers, decoders = workers_of(context, "prefill"), workers_of(context, "decode")
        if any(worker.load is None or worker.load.running is None for worker in decoders):
            return _hold(context, "a decode worker has not told what it runs: the split stays")
        wait_s = prefill_wait_s(context)
        times_s = [token_time_s(worker) for worker in decoders]
        best_s = min((time_s for time_s in times_s if time_s is not None), default=None)
        inputs: dict[str, float | None] = {"prefill_time_s": _round(wait_s), "best_token_time_s": _round(best_s)}
        misses = bool(decoders) and all(time_s is not None and time_s > ARROW_TOKEN_S for time_s in times_s)
        prefill_has_time = wait_s is not None and wait_s < ARROW_PREFILL_S * (1 - 1 / max(len(prefillers), 1))
        if misses and (prefill_has_time or len(decoders) < len(prefillers)):
            return Want(shifted(context, -1), f"no decode worker meets {ARROW_TOKEN_S:g} s a token", inputs)
        idle = [worker.worker_id for worker in decoders if _idle(worker)]
        if idle:
            return Want(shifted(context, 1), f"{idle[0]} has no request", inputs)
        return Want(context.current, "every decode worker has requests, and one meets its token time", inputs)

    def state(self) -> str:
        """Nothing to remember."""
        return ""


ARROW_TOKEN_S: Final = 0.1
ARROW_PREFILL_S: Final = 5.0


class Proportional:
    """``reactive:proportional``: decode follows its own output rate, after HeteroScale (2508.19559).

    HeteroScale scales decode in proportion to its tokens a second, prefill by a fixed ratio to it, with a tolerance of
    0.1, and gives back what is left. Here the pool is fixed, and prefill gets the rest: the ratio is what remains. The
    tokens a second of one decode worker that count as full are the profile's at 80 % of KV and the present contexts.
    """

    economy = False
    flips = True
    needs_forecast = False
    needs_events = False

    def __init__(self, name: str = "reactive:proportional") -> None:
        self.name = name

    def decide(self, context: Context) -> Want:
        """As many decode workers as the output rate fills, unless that is within the tolerance of what there is."""
        rate, full = output_tokens_per_s(context), self._full_tokens_per_s(context)
        if rate is None or full is None:
            return _hold(context, "output rate unknown: the split stays")
        asked = rate / full
        have = context.current.decode
        inputs: dict[str, float | None] = {"output_tokens_per_s": round(rate, 1), "full_tokens_per_s": round(full, 1)}
        reason = f"{rate:,.0f} tok/s fill {asked:.1f} decode workers of {full:,.0f} tok/s"
        if have and abs(asked / have - 1) <= PROPORTIONAL_TOLERANCE:
            return Want(context.current, f"{reason}: near enough to {have}", inputs)
        return Want(shifted(context, have - math.ceil(asked)), reason, inputs)

    def state(self) -> str:
        """Nothing to remember."""
        return ""

    def _full_tokens_per_s(self, context: Context) -> float | None:
        profile, decoders = context.config.profile, workers_of(context, "decode")
        loads = [worker.load for worker in decoders if worker.load is not None]
        running = sum(load.running or 0 for load in loads)
        kv_tokens = sum(load.kv_used or 0 for load in loads)
        if profile is None or not running or not kv_tokens:
            return None
        each = kv_tokens / running
        batch = max(1, int(min(_FULL_KV * profile.kv_tokens / each, profile.max_running)))
        full = RankWork(batch=batch, context_tokens=int(batch * each))
        return profile.ranks * batch / step_parts(profile, [full] * profile.ranks).step_s


PROPORTIONAL_TOLERANCE: Final = 0.1
_FULL_KV: Final = 0.8


def _hold(context: Context, reason: str) -> Want:
    return Want(context.current, reason)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _idle(worker: Worker) -> bool:
    """Whether it holds no request: none that runs, and no KV for one that is on its way."""
    return worker.load is not None and not worker.load.running and not worker.load.kv_used
