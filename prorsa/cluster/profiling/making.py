"""A profile from AIConfigurator: terms fitted to its answers, KV capacity, and what SGLang allows such a worker."""

from dataclasses import dataclass
from typing import Final

from prorsa.cluster.profile import Experts, Profile, Range
from prorsa.cluster.profiling.aiconfigurator import SPARSE_MODELS, AicWorker
from prorsa.cluster.profiling.measured import Form
from prorsa.cluster.profiling.terms import BATCHES, CONTEXTS, fit_decode, fit_prefill, tabulate
from prorsa.errors import ConfigError

CHUNK_TOKENS: Final = 8192
"""SGLang's --chunked-prefill-size on GPUs of 60 to 160 GB; it divides it by the data-parallel ranks."""

KV_TRANSFER_GB_S: Final = 40.0
"""One 400 Gb/s port a GPU at 80 % of its line rate; every GPU of a tensor-parallel group sends its own share of the
KV, so bytes a token are counted a GPU too."""

GRAPH_BATCH: Final = {False: 256, True: 512}
"""Largest decode batch of a worker that SGLang captures a CUDA graph for, by whether it has 4 GPUs or more."""

EXPERT_PARALLEL: Final = "SGLang 0.5.23 refuses --enable-pd-role-switch with expert parallelism (ep_size > 1)"

MODEL_CONTEXT: Final = {
    "deepseek-ai/DeepSeek-V3": 163_840,
    "deepseek-ai/DeepSeek-R1": 163_840,
    "deepseek-ai/DeepSeek-V3.2": 163_840,
}
DEFAULT_CONTEXT: Final = 131_072
"""Qwen3 with YaRN, and most others."""

SYSTEMS: Final = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200"}


@dataclass(frozen=True, slots=True)
class Request:
    """What to make a profile of.

    Attributes:
        name: name of the profile.
        model: Hugging Face name, as AIConfigurator knows it.
        system: AIConfigurator's name of the GPU, as ``h200_sxm``.
        form: parallel sizes of the worker.
        model_context: longest prompt + output; None for what is known of the model, else 131,072.
        chunk_tokens: prefill budget of a rank and step; None for SGLang's default on GPUs of 60 to 160 GB.
        max_running: requests that a rank runs at a time; None for the largest batch with a decode graph.
    """

    name: str
    model: str
    system: str
    form: Form
    model_context: int | None = None
    chunk_tokens: int | None = None
    max_running: int | None = None


def make_profile(request: Request) -> Profile:
    """Ask AIConfigurator and fit; nothing is corrected by measurements yet.

    Raises:
        ConfigError: if AIConfigurator is not installed or cannot answer; names the remedy.
    """
    form = request.form
    worker = AicWorker(request.model, request.system, form)
    chunk = request.chunk_tokens or CHUNK_TOKENS // form.dp
    running = request.max_running or GRAPH_BATCH[form.gpus >= 4] // form.dp
    context = request.model_context or MODEL_CONTEXT.get(request.model, DEFAULT_CONTEXT)
    kv_tokens, kv_bytes = worker.kv(chunk)
    prefill, prefill_error = fit_prefill(
        worker.prefill_attention_ms, max(chunk, 1024), context, SPARSE_MODELS.get(request.model, 0)
    )
    decode, decode_error = fit_decode(worker.decode_attention_ms, running, kv_tokens)
    return Profile(
        name=request.name,
        model=request.model,
        system=SYSTEMS.get(request.system, request.system),
        parallel=form.label,
        provenance=(
            f"Least-squares fits to what aiconfigurator-core {worker.version} (NVIDIA, Apache-2.0) answers for SGLang "
            f"on {request.system}; relative errors on the grid: prefill {prefill_error}; decode {decode_error}."
        ),
        gpus=form.gpus,
        ranks=form.dp,
        kv_tokens=kv_tokens,
        kv_bytes_per_token=kv_bytes,
        chunk_tokens=chunk,
        max_running=running,
        model_context=context,
        flippable=form.moe_ep == 1,
        why_not_flippable=None if form.moe_ep == 1 else EXPERT_PARALLEL,
        kv_transfer_gb_s=KV_TRANSFER_GB_S,
        matched_rows=0,
        prefill=prefill,
        decode=decode,
        experts=_experts(worker, chunk, running),
        measured=Range(new_tokens=context, context_tokens=max(CONTEXTS), batch=min(running, max(BATCHES))),
    )


def _experts(worker: AicWorker, chunk_tokens: int, max_running: int) -> Experts:
    """Tables by the tokens of all ranks; with fewer tokens than ranks AIConfigurator still counts one a rank."""
    dp = worker.form.dp
    if worker.prefill_experts_ms(dp) == 0:
        return Experts()
    return Experts(
        prefill=tabulate(worker.prefill_experts_ms, 32 * dp, chunk_tokens * dp),
        decode=tabulate(worker.decode_experts_ms, dp, max_running * dp),
    )


def check_form(form: Form) -> None:
    """Refuse parallel sizes that no worker can have.

    Raises:
        ConfigError: names the sizes.
    """
    if min(form.tp, form.dp, form.moe_tp, form.moe_ep) < 1:
        raise ConfigError(f"parallel sizes must be at least 1, not {form}")
    experts = form.moe_tp * form.moe_ep
    if experts not in {1, form.gpus}:
        raise ConfigError(
            f"moe_tp × moe_ep is {experts}, but the worker has {form.gpus} GPUs (tp × dp): give sizes with that product"
        )
