"""The profiles that the package carries: how each is made, and which measured rows are of its form."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prorsa.cluster.profiling.corrections import Corrections
from prorsa.cluster.profiling.making import Request
from prorsa.cluster.profiling.measured import SHAPES, Form, Pool, Row

V3, V32 = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"
QWEN_235B, QWEN_32B = "Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-32B"
H100, H200 = "h100_sxm", "h200_sxm"
DP8, DP8_EP8 = Form(tp=1, dp=8, moe_tp=8), Form(tp=1, dp=8, moe_ep=8)

CARRIED: Final = (
    Request("dsv3-h200-tp8", V3, H200, Form(tp=8, moe_tp=8)),
    Request("dsv3-h200-dp8", V3, H200, DP8),
    Request("dsv3-h200-dp8ep8", V3, H200, DP8_EP8),
    Request("dsv32-h200-dp8", V32, H200, DP8),
    Request("dsv32-h200-dp8ep8", V32, H200, DP8_EP8),
    Request("qwen3-235b-h200-tp2", QWEN_235B, H200, Form(tp=2, moe_tp=2)),
    Request("qwen3-235b-h200-tp4", QWEN_235B, H200, Form(tp=4, moe_tp=4)),
    Request("qwen3-235b-h200-dp4", QWEN_235B, H200, Form(tp=1, dp=4, moe_tp=4)),
    Request("qwen3-235b-h200-dp8ep8", QWEN_235B, H200, DP8_EP8),
    Request("qwen3-32b-h100-tp2", QWEN_32B, H100, Form(tp=2)),
    Request("qwen3-32b-h100-tp4", QWEN_32B, H100, Form(tp=4)),
    Request("qwen3-32b-h100-tp8", QWEN_32B, H100, Form(tp=8)),
    Request("qwen3-32b-h200-tp2", QWEN_32B, H200, Form(tp=2)),
    Request("qwen3-32b-h200-tp4", QWEN_32B, H200, Form(tp=4)),
)

_B200: Final = ((DP8, 2048), (DP8_EP8, 2048), (Form(tp=8, moe_tp=8), 16_384), (Form(tp=8, moe_ep=8), 16_384))
B200_CHECKS: Final = tuple(
    Request(f"dsv3-b200-{form.label}", V3, "b200_sxm", form, chunk_tokens=chunk, max_running=512)
    for form, chunk in _B200
)
"""Forms on B200 that rows with known numbers of workers were measured on. They are made for the validation alone: 7 of
these rows are among the few with DP8 decode."""

PRECISION: Final = {V3: "fp8", V32: "fp8", QWEN_235B: "fp8", QWEN_32B: "bf16"}
"""Precision of the weights, as rows state it."""


def serves(request: Request, row: Row, pool: Pool | None) -> bool:
    """Whether the pool of a row is of the profile's model, system, precision and form."""
    same = (SHAPES.get(request.model), request.system, PRECISION.get(request.model))
    return pool is not None and pool.form == request.form and same == (row.shape, row.system, row.precision)


def colocated_rows(request: Request, rows: Iterable[Row]) -> list[Row]:
    """Rows of one colocated worker of this profile, at a known concurrency."""
    return [row for row in rows if serves(request, row, row.mixed) and row.concurrency is not None]


def disaggregated_rows(
    rows: Iterable[Row], requests: Iterable[Request] = CARRIED
) -> list[tuple[Row, Request, Request]]:
    """Rows of prefill and decode workers in known numbers that both have a profile, with the two."""
    known = list(requests)
    found = []
    for row in rows:
        prefill = next((request for request in known if serves(request, row, row.prefill)), None)
        decode = next((request for request in known if serves(request, row, row.decode)), None)
        if (
            prefill
            and decode
            and row.concurrency
            and row.prefill
            and row.prefill.workers
            and row.decode
            and row.decode.workers
        ):
            found.append((row, prefill, decode))
    return found


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a profile without rows of its own takes over from one with rows.

    Attributes:
        source: the profile with rows.
        names: the corrections that are taken over; the others stay as the profile's source has them.
        why: what they have in common.
    """

    source: str
    names: tuple[str, ...]
    why: str

    def of(self, corrections: Corrections) -> Corrections:
        """The part of the corrections that is taken over."""
        return Corrections(**{name: getattr(corrections, name) for name in self.names})


_SAME_KERNELS: Final = ("prefill", "prefill_experts", "context", "request_ms")
_DP_OF: Final = "whose kernels it shares (the rest of a decode step depends on the form)"
_SPARSE: Final = "whose experts it shares (its attention is another)"

TRANSFERS: Final = {
    "dsv3-h200-dp8": Transfer("dsv3-h200-tp8", _SAME_KERNELS, _DP_OF),
    "dsv3-h200-dp8ep8": Transfer("dsv3-h200-tp8", _SAME_KERNELS, _DP_OF),
    "dsv32-h200-dp8": Transfer("dsv3-h200-tp8", ("prefill_experts", "request_ms"), _SPARSE),
    "dsv32-h200-dp8ep8": Transfer("dsv3-h200-tp8", ("prefill_experts", "request_ms"), _SPARSE),
    "qwen3-235b-h200-dp4": Transfer("qwen3-235b-h200-tp4", _SAME_KERNELS, _DP_OF),
    "qwen3-235b-h200-dp8ep8": Transfer("qwen3-235b-h200-tp4", _SAME_KERNELS, _DP_OF),
}
"""Constant parts of decode are not taken over from tensor-parallel to data-parallel forms: the few rows with DP8 decode
bear out the source's own figures there, once its context term is corrected."""
