"""What SGLang answers, as types: only the fields that Prorsa reads, checked when they are decoded.

The shapes are those of SGLang 0.5.23. A field that another version lacks is named in the error, with the remedy.
"""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from prorsa.errors import WorkerError
from prorsa.events import Role, WorkerLoad

CHECKED_VERSION: Final = "0.5.23"
"""The SGLang version that the shapes here were read from and are tested with."""

T = TypeVar("T")

_ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode", "null": "mixed"}
_BACKENDS_THAT_FLIP: Final = ("mooncake", "mooncake_tcp", "mori", "ascend")


class InternalState(Struct, frozen=True, kw_only=True):
    """The live part of ``/server_info``, one a DP rank."""

    disaggregation_mode: str | None = None
    decode_cuda_graph_memory_gb: float | None = None
    effective_max_running_requests_per_dp: int | None = None


class ServerInfo(Struct, frozen=True, kw_only=True):
    """``/server_info``: how the worker was launched. ``disaggregation_mode`` is the **launch** role."""

    version: str
    disaggregation_mode: str
    max_total_num_tokens: int
    internal_states: list[InternalState]
    startup_time: Any = None
    disaggregation_bootstrap_port: int | None = None
    disaggregation_transfer_backend: str | None = None
    enable_pd_role_switch: bool = False
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int = 1
    dp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    speculative_algorithm: str | None = None
    disable_radix_cache: bool = False
    disaggregation_decode_enable_radix_cache: bool = False
    incremental_streaming_output: bool = False
    kv_cache_dtype: str | None = None
    num_reserved_decode_tokens: int | None = None
    admin_api_key: str | None = None
    hicache_storage_backend: str | None = None

    @property
    def launch_role(self) -> Role:
        """The role that the worker was launched in; it may have another one now."""
        return role_of(self.disaggregation_mode)

    @property
    def live_roles(self) -> set[Role]:
        """The roles that the schedulers of all DP ranks have now."""
        return {role_of(state.disaggregation_mode) for state in self.internal_states if state.disaggregation_mode}

    @property
    def boot(self) -> str:
        """Tells one process of the worker from the next: the durations of its start-up, which never repeat."""
        return str(self.startup_time)

    @property
    def kv_capacity(self) -> int:
        """KV tokens of all DP ranks."""
        return self.max_total_num_tokens * self.dp_size

    @property
    def max_running(self) -> int | None:
        """Requests that the whole worker runs at a time."""
        per_rank = next((state.effective_max_running_requests_per_dp for state in self.internal_states), None)
        return self.max_running_requests if per_rank is None else per_rank * self.dp_size

    @property
    def graph_memory_gb(self) -> float | None:
        """Memory of this worker's decode CUDA graphs, which a flip to decode elsewhere has to reserve."""
        known = [state.decode_cuda_graph_memory_gb for state in self.internal_states]
        return max((size for size in known if size is not None), default=None)

    def why_not_flippable(self) -> str | None:
        """The first reason why SGLang refuses to change this worker's role, or None."""
        reasons = (
            (self.launch_role == "mixed", "launched without --disaggregation-mode"),
            (not self.enable_pd_role_switch, "launched without --enable-pd-role-switch"),
            (
                self.disaggregation_transfer_backend not in _BACKENDS_THAT_FLIP,
                f"transfer backend {self.disaggregation_transfer_backend} cannot be rebuilt",
            ),
            (self.ep_size > 1, "expert parallelism"),
            (self.pp_size > 1, "pipeline parallelism"),
            (self.speculative_algorithm is not None, "speculative decoding"),
        )
        return next((text for applies, text in reasons if applies), None)


class ModelInfo(Struct, frozen=True, kw_only=True):
    """``/model_info``: the live role and the version of the weights."""

    disaggregation_mode: str
    served_model_name: str
    weight_version: str | None = None
    preferred_sampling_params: Any = None

    @property
    def role(self) -> Role:
        """The role that the worker has now."""
        return role_of(self.disaggregation_mode)


class DisaggregationLoad(Struct, frozen=True, kw_only=True):
    """Queues of a prefill or decode worker, in requests."""

    mode: str
    prefill_bootstrap_queue_reqs: int = 0
    prefill_inflight_queue_reqs: int = 0
    decode_prealloc_queue_reqs: int = 0
    decode_transfer_queue_reqs: int = 0
    decode_retracted_queue_reqs: int = 0


class RankLoad(Struct, frozen=True, kw_only=True):
    """The load of one DP rank. ``decode_moments`` is cumulative ``[n, Σb, Σt_us, Σb², Σb·t_us, Σgenerated]``."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    num_waiting_uncached_tokens: int | None = None
    total_prefill_uncached_tokens: int | None = None
    total_prefill_busy_us: int | None = None
    decode_moments: list[float] | None = None
    disaggregation: DisaggregationLoad | None = None

    @property
    def queued(self) -> int:
        """Requests that wait: for a batch, for a peer, for KV, or for their KV to arrive."""
        pd = self.disaggregation
        if pd is None:
            return self.num_waiting_reqs
        return (
            self.num_waiting_reqs
            + pd.prefill_bootstrap_queue_reqs
            + pd.decode_prealloc_queue_reqs
            + pd.decode_transfer_queue_reqs
            + pd.decode_retracted_queue_reqs
        )

    @property
    def running(self) -> int:
        """Requests that decode, or whose KV is being sent; a prefill worker reports no running ones itself."""
        return self.num_running_reqs + (self.disaggregation.prefill_inflight_queue_reqs if self.disaggregation else 0)


class Loads(Struct, frozen=True, kw_only=True):
    """``/v1/loads``: what the worker's schedulers last wrote to shared memory, one entry a DP rank."""

    loads: list[RankLoad]

    @property
    def role(self) -> Role | None:
        """The live role; None from a version that does not say it here."""
        pd = next((load.disaggregation for load in self.loads), None)
        return None if pd is None else role_of(pd.mode)

    def as_event(
        self, worker_id: str, *, epoch: int | None = None, paused: bool | None = None, weight_version: str | None = None
    ) -> WorkerLoad:
        """The loads of all ranks as one event; the arguments are what only the caller knows."""
        ranks = self.loads
        moments = [load.decode_moments for load in ranks if load.decode_moments]
        prefill_us = _total([load.total_prefill_busy_us for load in ranks])
        decode_us = round(sum(m[2] for m in moments))
        return WorkerLoad(
            worker_id=worker_id,
            role=self.role,
            queued=sum(load.queued for load in ranks),
            queued_tokens=_total([load.num_waiting_uncached_tokens for load in ranks]),
            running=sum(load.running for load in ranks),
            kv_used=sum(load.num_used_tokens for load in ranks),
            kv_capacity=sum(load.max_total_num_tokens for load in ranks),
            prefill_tokens_total=_total([load.total_prefill_uncached_tokens for load in ranks]),
            output_tokens_total=round(sum(m[5] for m in moments)),
            busy_us_total=None if prefill_us is None else prefill_us + decode_us,
            epoch=epoch,
            paused=paused,
            weight_version=weight_version,
        )


class SwitchReply(Struct, frozen=True, kw_only=True):
    """``/pd_role_switch``. ``safe_to_restore`` says of a failure whether the worker may serve in its old role."""

    success: bool
    message: str = ""
    old_role: str = ""
    new_role: str = ""
    safe_to_restore: bool = False

    @property
    def not_idle(self) -> bool:
        """Whether it was refused only because requests are left."""
        return not self.success and "not idle" in self.message


class HiCacheStatus(Struct, frozen=True, kw_only=True):
    """``/hicache/storage-backend``: the shared L3 store that is attached, if any."""

    hicache_storage_backend: str | None = None
    hicache_storage_backend_extra_config: str | None = None
    hicache_storage_prefetch_policy: str | None = None
    hicache_write_policy: str | None = None


class Tokens(Struct, frozen=True, kw_only=True):
    """``/tokenize``."""

    tokens: list[int]


class Text(Struct, frozen=True, kw_only=True):
    """``/detokenize``."""

    text: str


def role_of(mode: str) -> Role:
    """SGLang's ``disaggregation_mode`` as a role; ``null`` is a worker that does both."""
    try:
        return _ROLES[mode]
    except KeyError:
        raise WorkerError(
            f"disaggregation mode {mode!r} is unknown: Prorsa knows those of SGLang {CHECKED_VERSION}"
        ) from None


def decode_reply(body: bytes, kind: type[T], what: str) -> T:
    """Decode a reply.

    Raises:
        WorkerError: if it does not fit; says which field, and which version is known to work.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkerError(
            f"{what}: {error}; Prorsa reads the replies of SGLang {CHECKED_VERSION}: run the worker with that version"
        ) from error


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
