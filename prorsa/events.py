"""The lifecycle events: one tagged union that every room of Prorsa speaks.

Each event is a map with its ``type`` and its own fields. What is common to all of them travels around it: a publisher
sends batches (:class:`Batch`) that name the source and the run, the hub stamps every event with its place in the run
(:class:`Stamped`). ``None`` is unknown, never zero. Times in fields that end in ``_ns`` are on the run clock, except
``ts_ns``, the sender's wall clock, which only informs. Token counts are integers; expected values may be fractions.

Decoding is strict: an unknown field, a missing one or one of the wrong type raises
:class:`prorsa.errors.EventError`, which names the event and the field.
"""

from typing import Annotated, Any, Final, Literal, Union, get_args

import msgspec
from msgspec import Meta, Struct

from prorsa.errors import EventError

SCHEMA_VERSION: Final = 1

Role = Literal["prefill", "decode", "mixed"]
WorkerState = Literal[
    "serving", "fenced", "draining", "settling", "switching", "warming", "restored", "quarantined", "dead"
]
Mode = Literal["auto", "approve", "observe"]
FinishReason = Literal["stop", "length", "abort", "error"]
EndStatus = Literal["completed", "truncated", "aborted", "failed", "filtered"]
OverrideState = Literal["requested", "accepted", "draining", "effective", "rejected", "expired", "released"]
OverrideKind = Literal["pin", "split", "freeze", "drain", "quarantine"]
Verb = Literal[
    "pin",
    "release",
    "override",
    "freeze",
    "approve",
    "reject",
    "mode",
    "policy",
    "shadow",
    "drain",
    "quarantine",
    "readmit",
    "details",
]
DecisionStatus = Literal["hold", "applied", "proposed", "observed"]
Severity = Literal["info", "warning", "critical"]
ForecastTarget = Literal["prefill", "decode_admission", "kv_need"]

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Rid = Annotated[str, Meta(min_length=1, max_length=260, description="`<request_id>.<attempt>`")]
RunNs = Annotated[int, Meta(ge=0, description="run clock, nanoseconds")]


class Event(
    Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, tag_field="type"
):
    """Base of all events. ``trajectory_id`` is None where an event belongs to no trajectory or it is unknown."""

    trajectory_id: Id | None = None


# --- run and sampler ------------------------------------------------------------------------------------------------


class RunBegin(Event, frozen=True, kw_only=True, tag="run.begin"):
    """A run starts: what is run, on what. Emitted by the embedded cluster, or by whoever starts a live run."""

    scenario: str | None = None
    profile: str | None = None
    seed: int | None = None
    workers: Count | None = None
    concurrency: Count | None = None
    trajectories: Count | None = None
    cache: str | None = None


class RunEnd(Event, frozen=True, kw_only=True, tag="run.end"):
    """The run is over: nothing more will be dispatched and everything has ended."""

    status: Literal["completed", "stopped", "failed"]
    detail: str | None = None


class SamplerState(Event, frozen=True, kw_only=True, tag="sampler.state"):
    """The data sampler: what waits to be dispatched, what is in flight, and its limit or batch size.

    ``until_update``: trajectories that have still to end before the next weight update is due.
    """

    mode: Literal["sync", "async"] | None = None
    queued: Count | None = None
    in_flight: Count | None = None
    limit: Count | None = None
    batch_size: Count | None = None
    expected_prompt_tokens: Seconds | None = None
    until_update: Count | None = None


class TrajectoryDispatched(Event, frozen=True, kw_only=True, tag="trajectory.dispatched"):
    """The sampler has started a trajectory."""

    group_id: Id | None = None
    prompt_tokens: Count | None = None
    workload: str | None = None


class SandboxStart(Event, frozen=True, kw_only=True, tag="sandbox.start"):
    """A sandbox is being started for the trajectory."""

    image: str | None = None
    expected_s: Seconds | None = None


class SandboxReady(Event, frozen=True, kw_only=True, tag="sandbox.ready"):
    """The sandbox is up."""


class SandboxFailed(Event, frozen=True, kw_only=True, tag="sandbox.failed"):
    """The sandbox did not start."""

    reason: str | None = None


# --- requests -------------------------------------------------------------------------------------------------------


class TrajectoryReady(Event, frozen=True, kw_only=True, tag="trajectory.ready"):
    """A request of the trajectory has arrived at the router and waits; ``new_tokens`` by the router's prefix index."""

    prompt_tokens: Count
    new_tokens: Count | None = None
    request_id: Id | None = None


class LlmSubmit(Event, frozen=True, kw_only=True, tag="llm.submit"):
    """The router has sent attempt ``attempt`` of a request to a pair of workers (one worker twice if mixed)."""

    request_id: Id
    attempt: Annotated[int, Meta(ge=0, le=99)]
    turn: Count
    prompt_tokens: Count
    new_tokens: Count | None = None
    max_new_tokens: Count | None = None
    prefill_worker: Id | None = None
    decode_worker: Id | None = None


class LlmQueued(Event, frozen=True, kw_only=True, tag="llm.queued"):
    """A worker has queued a request; emitted by the plugin, so that a pool behind a stock router can be watched."""

    rid: Rid
    worker_id: Id
    dp_rank: Count | None = None
    epoch: Count | None = None
    prompt_tokens: Count | None = None


class LlmPrefillStart(Event, frozen=True, kw_only=True, tag="llm.prefill_start"):
    """The first chunk of a prompt has been launched."""

    rid: Rid
    worker_id: Id
    dp_rank: Count | None = None
    epoch: Count | None = None


class LlmPrefillEnd(Event, frozen=True, kw_only=True, tag="llm.prefill_end"):
    """A prompt is prefilled: ``cached_tokens`` came from the prefix cache, ``computed_tokens`` were computed."""

    rid: Rid
    worker_id: Id
    cached_tokens: Count
    computed_tokens: Count | None = None
    dp_rank: Count | None = None
    epoch: Count | None = None


class LlmAdmitted(Event, frozen=True, kw_only=True, tag="llm.admitted"):
    """Decode has reserved ``kv_tokens`` of KV for a request (in SGLang, before its prefill starts)."""

    rid: Rid
    worker_id: Id
    kv_tokens: Count
    dp_rank: Count | None = None
    epoch: Count | None = None


class LlmFirstToken(Event, frozen=True, kw_only=True, tag="llm.first_token"):
    """The first output token of a request has left the decode worker."""

    rid: Rid
    worker_id: Id | None = None


class LlmProgress(Event, frozen=True, kw_only=True, tag="llm.progress"):
    """Once a second and worker: output tokens so far of what decodes, prompt tokens computed of what prefills."""

    worker_id: Id
    output: tuple[tuple[str, int], ...] = ()
    prefilled: tuple[tuple[str, int], ...] = ()


class LlmEnd(Event, frozen=True, kw_only=True, tag="llm.end"):
    """A turn is answered: ``output_tokens`` and ``cached_tokens`` are cumulative over its attempts."""

    request_id: Id
    attempt: Annotated[int, Meta(ge=0, le=99)]
    output_tokens: Count
    finish_reason: FinishReason
    cached_tokens: Count | None = None
    tool_calls: tuple[str, ...] | None = None
    weight_version: str | None = None


class LlmRetry(Event, frozen=True, kw_only=True, tag="llm.retry"):
    """The router moves a request to another pair; ``attempt`` is the new attempt, ``tokens_kept`` its output so far."""

    request_id: Id
    attempt: Annotated[int, Meta(ge=0, le=99)]
    reason: str
    tokens_kept: Count | None = None
    from_prefill: Id | None = None
    from_decode: Id | None = None
    to_prefill: Id | None = None
    to_decode: Id | None = None


# --- tools, rewards, ends, steps -----------------------------------------------------------------------------------


class ToolStart(Event, frozen=True, kw_only=True, tag="tool.start"):
    """A tool runs for the trajectory."""

    tool_name: Id
    expected_s: Seconds | None = None


class ToolEnd(Event, frozen=True, kw_only=True, tag="tool.end"):
    """The tool has returned ``output_tokens`` (once tokenized, where that is known)."""

    tool_name: Id | None = None
    status: Literal["ok", "error", "timeout"] | None = None
    output_tokens: Count | None = None


class RewardStart(Event, frozen=True, kw_only=True, tag="reward.start"):
    """The trajectory is being scored."""


class RewardEnd(Event, frozen=True, kw_only=True, tag="reward.end"):
    """The trajectory is scored."""

    status: Literal["ok", "error", "timeout"] | None = None


class TrajectoryEnd(Event, frozen=True, kw_only=True, tag="trajectory.end"):
    """The trajectory is over."""

    status: EndStatus


class StepBegin(Event, frozen=True, kw_only=True, tag="step.begin"):
    """A synchronous step begins."""

    step: Count | None = None
    target_groups: Count | None = None


class StepEnd(Event, frozen=True, kw_only=True, tag="step.end"):
    """The rollout of a synchronous step is complete."""

    step: Count | None = None


class WeightsUpdateBegin(Event, frozen=True, kw_only=True, tag="weights.update_begin"):
    """A weight update begins, or is announced ``expected_in_s`` ahead."""

    version: str
    cache_flushed: bool | None = None
    expected_in_s: Seconds | None = None


class WeightsUpdateEnd(Event, frozen=True, kw_only=True, tag="weights.update_end"):
    """The workers run on the new weights."""

    version: str
    cache_flushed: bool | None = None


# --- workers --------------------------------------------------------------------------------------------------------


class WorkerUp(Event, frozen=True, kw_only=True, tag="worker.up"):
    """A worker has joined, or has been seen again after it was lost."""

    worker_id: Id
    role: Role
    epoch: Count
    pool: str = "default"
    flippable: bool | None = None
    reason_not_flippable: str | None = None
    kv_capacity: Count | None = None
    max_running: Count | None = None
    dp_size: Count | None = None
    gpus: Count | None = None
    url: str | None = None
    weight_version: str | None = None


class WorkerDown(Event, frozen=True, kw_only=True, tag="worker.down"):
    """A worker has left or died."""

    worker_id: Id
    reason: str | None = None


class WorkerLoad(Event, frozen=True, kw_only=True, tag="worker.load"):
    """What a worker does now. Counters are cumulative since the worker's start."""

    worker_id: Id
    role: Role | None = None
    epoch: Count | None = None
    queued: Count | None = None
    queued_tokens: Count | None = None
    running: Count | None = None
    kv_used: Count | None = None
    kv_cached: Count | None = None
    kv_capacity: Count | None = None
    prefill_tokens_total: Count | None = None
    output_tokens_total: Count | None = None
    busy_us_total: Count | None = None
    paused: bool | None = None
    weight_version: str | None = None


class WorkerRole(Event, frozen=True, kw_only=True, tag="worker.role"):
    """The role that a worker really has, as observed after a flip or a registration."""

    worker_id: Id
    role: Role
    epoch: Count


# --- what the controller says --------------------------------------------------------------------------------------


class Split(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How many workers are in each role; ``switching`` are those in any state but serving."""

    prefill: Count
    decode: Count
    mixed: Count = 0
    switching: Count = 0

    def __str__(self) -> str:
        text = f"{self.prefill}P:{self.decode}D"
        return f"{text}:{self.mixed}M" if self.mixed else text


class ForecastRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One forecast: ``source`` is a demand source, ``total``, ``arrivals``, or the name of a baseline (its mean only).

    Values are tokens over the horizon.
    """

    target: ForecastTarget
    horizon_s: float
    source: str
    mean: float
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None


class Settled(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A past forecast beside what then happened, in tokens; ``baselines`` are point forecasts of the total by name."""

    target: ForecastTarget
    horizon_s: float
    tick_ns: RunNs
    actual: float
    actual_arrivals: float
    mean: float
    p10: float
    p50: float
    p90: float
    p50_arrivals: float
    baselines: dict[str, float]


class Forecast(Event, frozen=True, kw_only=True, tag="forecast"):
    """One tick of the predictor: forecasts by target, horizon and source, and the scores that have settled since."""

    tick_ns: RunNs
    upto_hub_seq: Count
    live_trajectories: Count
    rows: tuple[ForecastRow, ...]
    settled: tuple[Settled, ...] = ()


class Alternative(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A split that was considered: ``cost`` in the policy's own unit (lower is better), with a word on why."""

    split: Split
    cost: float | None = None
    note: str | None = None


class GuardEffect(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A guard or override that changed what the policy wanted."""

    guard: str
    text: str


class Move(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A planned flip of one worker."""

    worker_id: Id
    from_role: Role
    to_role: Role
    reason: str


class Decision(Event, frozen=True, kw_only=True, tag="decision"):
    """What the controller decided at a tick, from what, and why.

    ``status``: ``hold`` nothing to do; ``applied`` the moves start; ``proposed`` they wait for approval until
    ``expires_ns``; ``observed`` they are only recorded (mode observe). ``handed_over``: why the policy let another one
    decide; None where it decided itself. ``decided_by``: that other one, or the one that a policy chose among several.
    """

    decision_id: Count
    tick_ns: RunNs
    upto_hub_seq: Count
    config_hash: str
    policy: str
    policy_state: str
    mode: Mode
    current: Split
    wanted: Split
    chosen: Split
    status: DecisionStatus
    reason: str
    inputs: dict[str, float | None]
    alternatives: tuple[Alternative, ...] = ()
    guards: tuple[GuardEffect, ...] = ()
    moves: tuple[Move, ...] = ()
    expires_ns: RunNs | None = None
    handed_over: str | None = None
    decided_by: str | None = None


class ShadowDecision(Event, frozen=True, kw_only=True, tag="shadow"):
    """What a second policy would have decided beside decision ``decision_id``, from the same; nothing comes of it.

    ``chosen`` and ``moves`` are what overrides and guards would have made of ``wanted``; all three are empty where the
    policy failed, which ``reason`` then tells. ``agrees``: both chose the same split; None where there is nothing to
    compare: it failed, or an operator's order or a weight update left neither of them a choice.
    """

    decision_id: Count
    tick_ns: RunNs
    upto_hub_seq: Count
    policy: str
    policy_state: str
    wanted: Split | None
    chosen: Split | None
    agrees: bool | None
    reason: str
    inputs: dict[str, float | None] = {}
    alternatives: tuple[Alternative, ...] = ()
    guards: tuple[GuardEffect, ...] = ()
    moves: tuple[Move, ...] = ()
    handed_over: str | None = None


class ShadowScore(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How a policy in shadow compares with those that decided, since ``since_ns``.

    Of its ``decisions``, ``compared`` had something to compare and ``agreed`` chose the same split. Over those
    compared, ``prefill_more`` is the mean of its prefill workers less those decided, ``prefill_apart`` that of
    the absolute difference (workers; None before the first), and ``would_move`` and ``moved`` are how often it would
    have moved workers and the active policy did choose to. ``failed`` and ``handed_over`` count decisions.
    """

    policy: str
    since_ns: RunNs
    decisions: Count
    compared: Count
    agreed: Count
    prefill_more: float | None
    prefill_apart: float | None
    would_move: Count
    moved: Count
    failed: Count
    handed_over: Count


class Admission(Event, frozen=True, kw_only=True, tag="admission"):
    """How many live trajectories the prefix caches hold, and why; said when it changes.

    With ``gate`` routers hold the first turns of further trajectories; with ``advise`` it is for samplers and people.
    ``limit`` is None where nothing limits or too little is known.
    """

    tick_ns: RunNs
    mode: Literal["advise", "gate"]
    limit: Count | None
    live: Count
    room_tokens: Count | None
    mean_context_tokens: float | None
    reason: str


class Flip(Event, frozen=True, kw_only=True, tag="flip"):
    """A worker on its way to another role has entered ``state``; costs are what the flip has cost so far."""

    flip_id: Id
    worker_id: Id
    from_role: Role
    to_role: Role
    epoch: Count
    state: WorkerState
    reason: str
    tick_ns: RunNs
    decision_id: Count | None = None
    elapsed_s: Seconds | None = None
    requests_resumed: Count | None = None
    kv_tokens_dropped: Count | None = None


class EffectResult(Event, frozen=True, kw_only=True, tag="effect.result"):
    """What came of a side effect on a worker that the executor asked for; repeated effects give repeated results.

    ``safe_to_restore`` says of a failed ``switch`` whether the worker may serve in its old role again.
    """

    effect_id: Id
    worker_id: Id
    action: str
    ok: bool
    detail: str | None = None
    safe_to_restore: bool | None = None
    requests_resumed: Count | None = None
    kv_tokens_dropped: Count | None = None


class PredictedEffect(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What a command would do if it were carried out now, as the controller finds on a copy of itself.

    ``moves`` are the flips of its next decision, which leads from ``current`` to ``leads_to``; ``requests`` wait or run
    on the workers that would leave their role or the pool, and ``kv_tokens`` is the KV these hold. ``flip_s`` is what
    one flip is planned to take.
    """

    current: Split
    leads_to: Split
    moves: tuple[Move, ...] = ()
    guards: tuple[GuardEffect, ...] = ()
    requests: Count | None = None
    kv_tokens: Count | None = None
    flip_s: Seconds | None = None
    waits_for_approval: bool = False


class TrajectoryView(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One live trajectory: the state that it is in and for how long, its age since it was dispatched.

    ``waits_for`` names the tool that runs; ``expected_s`` is how long its owner expects that to take. ``stuck``: it has
    been in its state for far longer than trajectories usually are.
    """

    trajectory_id: Id
    state: str
    state_s: Seconds | None = None
    age_s: Seconds | None = None
    turn: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    waits_for: str | None = None
    expected_s: Seconds | None = None
    stuck: bool = False


class Command(Event, frozen=True, kw_only=True, tag="command"):
    """A request to the controller and what became of it. ``(client, request_id)`` makes repeats safe.

    With ``dry_run`` nothing is done: the answer says in ``effect`` what would be. ``details`` only asks, for the live
    ``trajectories`` that have been going on for longest.
    """

    client: Id
    request_id: Id
    verb: Verb
    state: Literal["requested", "accepted", "rejected"]
    owner: str
    reason: str
    target: str | None = None
    value: str | None = None
    for_s: Seconds | None = None
    detail: str | None = None
    dry_run: bool = False
    effect: PredictedEffect | None = None
    trajectories: tuple[TrajectoryView, ...] | None = None

    @property
    def asks(self) -> bool:
        """Whether it only asks, and so changes nothing whatever the answer."""
        return self.dry_run or self.verb == "details"


class Override(Event, frozen=True, kw_only=True, tag="override"):
    """The life of an override; ``override_id`` is the request that made it.

    A pin, a split or a freeze ends at ``expires_ns``; a drain or a quarantine that has none lasts until the worker is
    readmitted.
    """

    override_id: Id
    kind: OverrideKind
    state: OverrideState
    owner: str
    reason: str
    target: str | None = None
    value: str | None = None
    expires_ns: RunNs | None = None
    detail: str | None = None


class Alert(Event, frozen=True, kw_only=True, tag="alert"):
    """Something that an operator should know. ``code`` is stable; an alert of severity ``info`` clears its code."""

    code: Id
    severity: Severity
    text: str
    worker_id: Id | None = None


class WorkerView(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One worker as the console shows it; ``age_s`` is the age of its telemetry."""

    worker_id: Id
    role: Role
    state: WorkerState
    epoch: Count
    pinned: Role | None = None
    flippable: bool | None = None
    to_role: Role | None = None
    queued: Count | None = None
    running: Count | None = None
    kv_used: Count | None = None
    kv_cached: Count | None = None
    kv_capacity: Count | None = None
    prefill_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    busy: float | None = None
    age_s: float | None = None


class OverrideView(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An override in force, or lately ended."""

    override_id: Id
    kind: OverrideKind
    state: OverrideState
    owner: str
    reason: str
    target: str | None = None
    value: str | None = None
    expires_in_s: float | None = None
    detail: str | None = None


class View(Event, frozen=True, kw_only=True, tag="view"):
    """The console's aggregate, twice a second of wall time: all it needs to draw without history.

    ``flows`` counts the trajectories that have gone from one state to another (``decode>tool``) since the run began;
    ``mean_context_tokens`` is the mean prompt + output so far of what decodes.
    """

    tick_ns: RunNs
    upto_hub_seq: Count
    mode: Mode
    policy: str
    split: Split
    workers: tuple[WorkerView, ...]
    trajectories: dict[str, int]
    flows: dict[str, Count] = {}
    overrides: tuple[OverrideView, ...] = ()
    forecast: tuple[ForecastRow, ...] = ()
    scores: dict[str, dict[str, dict[str, float | None]]] = {}
    last_decision: Decision | None = None
    proposal: Decision | None = None
    shadow: ShadowScore | None = None
    last_shadow: ShadowDecision | None = None
    admission: Admission | None = None
    alerts: tuple[Alert, ...] = ()
    output_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    idle: float | None = None
    mean_context_tokens: float | None = None
    gaps: Count = 0
    repaired: Count = 0
    scenario: str | None = None
    done: Count | None = None
    total: Count | None = None


# --- what the bus says ----------------------------------------------------------------------------------------------


class BusOverflow(Event, frozen=True, kw_only=True, tag="bus.overflow"):
    """A publisher's buffer was full: ``lost`` events from ``first_seq`` on were dropped. The one allowed gap."""

    lost: Count
    first_seq: Count


class Lease(Event, frozen=True, kw_only=True, tag="lease"):
    """The hub has granted, renewed or ended the controller lease. Epochs only grow."""

    holder: Id
    epoch: Count
    state: Literal["granted", "released", "expired"]
    expires_ns: RunNs


AnyEvent = Union[  # noqa: UP007 - a name for the union that get_args can take apart
    RunBegin,
    RunEnd,
    SamplerState,
    TrajectoryDispatched,
    SandboxStart,
    SandboxReady,
    SandboxFailed,
    TrajectoryReady,
    LlmSubmit,
    LlmQueued,
    LlmPrefillStart,
    LlmPrefillEnd,
    LlmAdmitted,
    LlmFirstToken,
    LlmProgress,
    LlmEnd,
    LlmRetry,
    ToolStart,
    ToolEnd,
    RewardStart,
    RewardEnd,
    TrajectoryEnd,
    StepBegin,
    StepEnd,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerUp,
    WorkerDown,
    WorkerLoad,
    WorkerRole,
    Forecast,
    Decision,
    ShadowDecision,
    Admission,
    Flip,
    EffectResult,
    Command,
    Override,
    Alert,
    View,
    BusOverflow,
    Lease,
]


def type_name(event: type[Event] | Event) -> str:
    """The wire name of an event or of its class, as in ``llm.submit``."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


EVENT_TYPES: Final[dict[str, type[Event]]] = {type_name(cls): cls for cls in get_args(AnyEvent)}


class Batch(Struct, array_like=True, frozen=True, gc=False):
    """What a publisher puts on the wire: consecutive events of one source.

    The frame before it holds the ``seq`` of the first event; each item is ``(ts_ns, event)``.
    """

    source: Id
    run_id: str | None
    items: list[tuple[int, msgspec.Raw]]


class Stamped(Struct, array_like=True, frozen=True, gc=False):
    """An event with its place in the run, as the hub orders, journals and fans it out."""

    hub_seq: int
    t_ns: int
    source: str
    seq: int
    ts_ns: int
    event: AnyEvent


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)
_stamped_decoder: msgspec.msgpack.Decoder[Stamped] = msgspec.msgpack.Decoder(Stamped)
_type_decoder: msgspec.msgpack.Decoder[dict[str, Any]] = msgspec.msgpack.Decoder(dict[str, Any])

encode = _encoder.encode
"""Encodes an event, a batch or a stamped event as msgpack."""


def decode(data: bytes | msgspec.Raw) -> AnyEvent:
    """Decode one event.

    Raises:
        EventError: if it is not msgpack or does not fit the schema; names the event type and the field.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(_explain(bytes(data), error)) from error


def decode_stamped(data: bytes) -> Stamped:
    """Decode one stamped event; raises :class:`EventError` like :func:`decode`."""
    try:
        return _stamped_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"stamped event: {error}; the sender speaks another schema than {SCHEMA_VERSION}") from error


def _explain(data: bytes, error: Exception) -> str:
    try:
        found = _type_decoder.decode(data).get("type")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"not an event: {error}; an event is a msgpack map with a `type`"
    if found is None:
        return "event without `type`: say which of the event types of docs/events.md it is"
    if found not in EVENT_TYPES:
        return f"unknown event type {found!r}: not in schema {SCHEMA_VERSION} (docs/events.md)"
    return f"{found}: {error} (schema {SCHEMA_VERSION}, docs/events.md)"


def make_rid(request_id: str, attempt: int) -> str:
    """The id under which a worker sees one attempt; attempts have two digits so that no rid is another's prefix."""
    return f"{request_id}.{attempt:02d}"


def split_rid(rid: str) -> tuple[str, int]:
    """``(request_id, attempt)`` of a rid; a rid that is not Prorsa's is a request of its own with attempt 0."""
    head, dot, tail = rid.rpartition(".")
    if dot and len(tail) == 2 and tail.isdigit():
        return head, int(tail)
    return rid, 0
