"""The profiles that the package carries: how each is made, and which measured rows are of its form."""

from collections.abc import Iterable
from typing import Final

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
