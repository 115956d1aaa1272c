"""What AIConfigurator (NVIDIA, Apache-2.0, `aiconfigurator-core`) answers about a worker, split as a profile needs it.

AIConfigurator composes a step from the times of its operators, most of them measured on the GPU in question. Here they
are sorted into what a rank computes for its own tokens alone (attention, in a profile's words) and what the whole
worker computes for everybody's tokens (experts and their communication).
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from prorsa.cluster.profiling.measured import Form
from prorsa.errors import ConfigError

BACKEND: Final = "sglang"
SPARSE_MODELS: Final = {"deepseek-ai/DeepSeek-V3.2": 2048}
"""Tokens that a token attends to (``index_topk``) in models with sparse attention."""

MEMORY_FRACTION: Final = 0.88
"""SGLang's --mem-fraction-static that the KV capacity stands for: what AIConfigurator takes where none is given."""

_BF16_ATTENTION: Final = frozenset({"deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1"})
"""Models whose attention kernels AIConfigurator has tables for in bf16 only on Hopper."""

_EXPERTS: Final = "_moe"
"""Part of the names of the operators that take the tokens of all ranks: dispatch, expert GEMMs, combine."""


def systems() -> list[str]:
    """The GPUs that AIConfigurator has tables of."""
    return sorted(path.name for path in (_folder() / "data").iterdir() if path.is_dir())


def measured_table() -> Path:
    """The table of measured latency that ships with AIConfigurator; see `prorsa.cluster.profiling.measured`."""
    return _folder() / "silicon_sample.csv"


def _folder() -> Path:
    return Path(str(_library("aiconfigurator_core").__file__)).parent / "systems"


class AicWorker:
    """One worker of a model on a system, asked operator by operator. All times in milliseconds.

    Args:
        model: Hugging Face name, one of those whose configuration AIConfigurator carries.
        system: AIConfigurator's name of the GPU, as ``h200_sxm``.
        form: parallel sizes of the worker.

    Raises:
        ConfigError: if aiconfigurator-core is not installed, or does not know the model, the system or the form.
    """

    def __init__(self, model: str, system: str, form: Form) -> None:
        self.model, self.system, self.form = model, system, form
        engine = _library("aiconfigurator_core.sdk.engine")
        if system not in systems():
            raise ConfigError(f"AIConfigurator has no system {system!r}; it has {', '.join(systems())}")
        with _refused(f"{model} on {system} as {form.label}"):
            self._engine = engine.EngineHandle.compile(model, system, BACKEND, **self._sizes())

    @property
    def version(self) -> str:
        """Version of aiconfigurator-core."""
        return version("aiconfigurator-core")

    def prefill_attention_ms(self, new_tokens: int, prefix_tokens: int = 0) -> float:
        """A rank's own part of a prefill step with one chunk."""
        return _sum(self._prefill(new_tokens, prefix_tokens), experts=False)

    def prefill_experts_ms(self, tokens: int) -> float:
        """The shared part of a prefill step by the tokens of all ranks; asked where they are spread evenly."""
        return _sum(self._prefill(max(1, tokens // self.form.dp), 0), experts=True)

    def decode_attention_ms(self, batch: int, context_tokens: int) -> float:
        """A rank's own part of a decode step of ``batch`` requests with ``context_tokens`` each."""
        return _sum(self._decode(batch, context_tokens), experts=False)

    def decode_experts_ms(self, tokens: int) -> float:
        """The shared part of a decode step by the tokens of all ranks."""
        return _sum(self._decode(max(1, tokens // self.form.dp), 1024), experts=True)

    def kv(self, chunk_tokens: int) -> tuple[int, int]:
        """KV capacity of a rank in tokens, and bytes of KV a token and GPU, with ``MEMORY_FRACTION``."""
        memory = _library("aiconfigurator_core.sdk.memory")
        database = _library("aiconfigurator_core.sdk.perf_database")
        with _refused(f"the KV capacity of {self.model} on {self.system} as {self.form.label}"):
            release = database.resolve_query_version(self.system, BACKEND, "current")
            answer = memory.estimate_kv_cache(
                self.model,
                self.system,
                BACKEND,
                release,
                max_num_tokens=chunk_tokens,
                max_batch_size=256,
                memory_fraction_kind="of_total",
                memory_fraction_value=MEMORY_FRACTION,
                **self._sizes(),
            )
        return int(answer["total_kv_size_tokens"]), int(answer["kv_size_per_token_bytes"])

    def _sizes(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {
            "tp_size": self.form.tp,
            "attention_dp_size": self.form.dp,
            "moe_tp_size": self.form.moe_tp,
            "moe_ep_size": self.form.moe_ep,
        }
        return sizes | ({"fmha_quant_mode": "bfloat16"} if self.model in _BF16_ATTENTION else {})

    def _prefill(self, new_tokens: int, prefix_tokens: int) -> Sequence[tuple[Any, ...]]:
        with _refused(f"a prefill of {new_tokens} tokens after {prefix_tokens}"):
            # AIConfigurator's input length counts the cached prefix too.
            operators, _ = self._engine.run_static_per_op(
                batch_size=1, isl=new_tokens + prefix_tokens, prefix=prefix_tokens, osl=2, mode="static_ctx"
            )
        return list(operators)

    def _decode(self, batch: int, context_tokens: int) -> Sequence[tuple[Any, ...]]:
        with _refused(f"a decode step of {batch} requests at {context_tokens} tokens"):
            return list(self._engine.decode_step_per_op(batch, context_tokens, 2))


def _sum(operators: Sequence[tuple[Any, ...]], *, experts: bool) -> float:
    return math.fsum(ms for name, ms, *_ in operators if (_EXPERTS in name) is experts)


def _library(name: str) -> ModuleType:
    # Its loaders report every fallback between releases of the measured tables; the profile's errors of fit say more.
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "profiles from AIConfigurator need aiconfigurator-core: pip install 'prorsa[profile]'"
        ) from error


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """AIConfigurator raises whatever it stumbles over for sizes that it has no data for."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"AIConfigurator cannot answer for {what}: {cause}; check model, system and parallel sizes"
        ) from error
