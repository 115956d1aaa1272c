"""What the controller is told once, at the start of a run; it is journalled, so that a replay decides alike."""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from prorsa.cluster.executor import ExecutorConfig
from prorsa.cluster.profile import Profile
from prorsa.events import Mode

ForecastKind = Literal["lifecycle", "ewma", "perfect"]


class ControlConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one controller. Times are run seconds.

    Attributes:
        profile: performance of the pool's workers; None where only their own counters tell.
        policy: name of the policy, as on the command line.
        shadow: name of a second policy that decides beside it without acting; None for none.
        forecast: what the policies see; None where no forecast is made at all.
        mode: whether decisions act (``auto``), wait for approval (``approve``) or are only recorded (``observe``).
        cache: what a flip does to the worker's prefix cache: ``cold``, ``retained`` or ``l3``.
        host_kv_tokens: host tier of each worker's prefix cache, in tokens; 0 for none.
        admission: what becomes of the number of live trajectories that the caches hold: ``advise`` only says it, with
            ``gate`` routers hold the first turns of further ones.
        tick_s: time between forecasts.
        decide_s: time between decisions.
        horizon_s: how far ahead demand counts for the ratio formula.
        decision_horizon_s: how far ahead a flip must have paid for itself, and how long a proposal stands.
        dwell_s: how long a worker keeps a role before Prorsa's own policies may flip it again.
        kv_margin: KV that decode keeps free, as a share of what it needs.
        prefill_utilisation: share of its time that a prefill worker is planned to be busy; the rest absorbs bursts.
        parallel_flips: how many workers may be in a flip at a time; None is a quarter of the pool, at least one.
        flip_s: what a flip takes from fence to serving, as planned with.
        stale_s: age of telemetry past which no flip starts.
        override_s: life of a pin, split override or freeze that is given no expiry.
    """

    profile: Profile | None = None
    policy: str = "default"
    shadow: str | None = None
    forecast: ForecastKind | None = "lifecycle"
    mode: Mode = "auto"
    cache: Literal["cold", "retained", "l3"] = "retained"
    host_kv_tokens: int = 0
    admission: Literal["advise", "gate"] = "advise"
    tick_s: float = 1.0
    decide_s: float = 5.0
    horizon_s: float = 15.0
    decision_horizon_s: float = 60.0
    dwell_s: float = 60.0
    kv_margin: float = 0.1
    prefill_utilisation: float = 0.85
    parallel_flips: int | None = None
    flip_s: float = 2.0
    stale_s: float = 10.0
    override_s: float = 1800.0
    executor: ExecutorConfig = ExecutorConfig()

    def digest(self) -> str:
        """A short hash of all settings that can change a decision, for decision events: a shadow cannot."""
        deciding = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "shadow"}
        return hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()[:12]
