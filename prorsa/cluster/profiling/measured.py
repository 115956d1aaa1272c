"""Measured latency rows: reading the table, saying which profile a row belongs to, and holding rows back from fits.

The table is that of measured points that ships with AIConfigurator: one line a run of a serving benchmark, with the
time to first token and per output token at a fixed concurrency. Lines of other engines than SGLang are passed over.
"""

import csv
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from prorsa.errors import InputError

Mode = Literal["agg", "disagg"]
Side = Literal["fit", "held-back"]

SHAPES: Final = {
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-fp8",
    "zhipuai/GLM-5": "glm-5",
}
"""Models by architecture: R1 has V3's layers and sizes, so it takes V3's times."""

SHORTEST: Final = {"deepseek-v3": 0.8, "glm-5": 0.8, "qwen3-32b": 1.0, "qwen3-235b-fp8": 1.0}
"""The shortest request of a run by the longest. Rows of DeepSeek and GLM come from InferenceMAX, whose harness draws
input and output evenly from 0.8 of the stated lengths up to them (``--random-range-ratio 0.8``) and sends 10 requests
for each that is in flight; those of Qwen3 are taken to have fixed lengths."""

HELD_BACK_SHARE: Final = 3
"""One key in so many is held back, rounded up."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a model lies on the GPUs of one worker.

    Attributes:
        tp: tensor-parallel size of attention within one rank.
        dp: attention data-parallel ranks.
        moe_tp, moe_ep: tensor- and expert-parallel size of the experts; both 1 for dense models, as in the table.
    """

    tp: int
    dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one worker."""
        return self.tp * self.dp

    @property
    def label(self) -> str:
        """The form as engineers write it: ``TP4``, ``DP8 TP8 experts``, ``DP8 EP8``."""
        attention = f"TP{self.tp}" if self.dp == 1 else f"DP{self.dp}" + (f" TP{self.tp}" if self.tp > 1 else "")
        if self.moe_ep > 1:
            return f"{attention} EP{self.moe_ep}"
        return f"{attention}, TP{self.moe_tp} experts" if self.dp > 1 and self.moe_tp > 1 else attention


@dataclass(frozen=True, slots=True)
class Pool:
    """``workers`` workers of one form in one role; ``workers`` is None where the table does not say how many."""

    form: Form
    workers: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point.

    ``mixed`` serves both phases (``agg`` rows), or ``prefill`` and ``decode`` do (``disagg`` rows). ``concurrency`` is
    what the clients keep in flight over the whole deployment; None where the table leaves it open.
    """

    shape: str
    system: str
    precision: str
    version: str
    mode: Mode
    prompt_tokens: int
    output_tokens: int
    concurrency: int | None
    ttft_ms: float
    tpot_ms: float
    mixed: Pool | None = None
    prefill: Pool | None = None
    decode: Pool | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """What rows are held back by: (model shape, input, output)."""
        return self.shape, self.prompt_tokens, self.output_tokens


def read_rows(path: Path) -> list[Row]:
    """Read the table; a point that is listed more than once, under V3 and R1 for example, counts once.

    Raises:
        InputError: if the file cannot be read or a line does not fit; names the line.
    """
    try:
        with path.open(newline="") as file:
            lines = enumerate(csv.DictReader(file), start=2)
            rows = [_row(line, number) for number, line in lines if line.get("backend", "sglang") == "sglang"]
    except OSError as error:
        raise InputError(f"measured rows {path}: {error.strerror}; give the CSV table of measured points") from error
    return _distinct(rows)


def hold_back(rows: Iterable[Row]) -> dict[tuple[str, int, int], Side]:
    """Which (shape, input, output) is for fitting and which is held back.

    Of each shape's keys, in the order of a hash, the first third (rounded up) is held back: every shape with at least
    two keys has both sides, and nobody chooses. The hash reads nothing but the key.
    """
    sides: dict[tuple[str, int, int], Side] = {}
    keys = {row.key for row in rows}
    for shape in sorted({key[0] for key in keys}):
        ordered = sorted((key for key in keys if key[0] == shape), key=_digest)
        held = math.ceil(len(ordered) / HELD_BACK_SHARE)
        sides |= {key: "held-back" if place < held else "fit" for place, key in enumerate(ordered)}
    return sides


def _digest(key: tuple[str, int, int]) -> str:
    return hashlib.sha256("/".join(map(str, key)).encode()).hexdigest()


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows without repetitions; the table prints the same time with other last digits, and under other versions."""
    seen: dict[tuple[object, str, str], Row] = {}
    for row in rows:
        place = (*row.key, row.system, row.precision, row.mode, row.concurrency, row.mixed, row.prefill, row.decode)
        seen.setdefault((place, f"{row.ttft_ms:.9g}", f"{row.tpot_ms:.9g}"), row)
    return list(seen.values())


def _row(line: dict[str, str], number: int) -> Row:
    try:
        common = {
            "shape": SHAPES.get(line["model_path"], line["model_path"]),
            "system": line["system"],
            "precision": line["precision"] or "bf16",
            "version": line["backend_version"],
            "prompt_tokens": int(line["isl"]),
            "output_tokens": int(line["osl"]),
            "concurrency": _concurrency(line),
            "ttft_ms": float(line["silicon_ttft_ms"]),
            "tpot_ms": float(line["silicon_tpot_ms"]),
        }
        if line["mode"] == "agg":
            return Row(mode="agg", mixed=Pool(_mixed_form(line), 1), **common)  # type: ignore[arg-type]
        return Row(mode="disagg", prefill=_pool(line, "prefill"), decode=_pool(line, "decode"), **common)  # type: ignore[arg-type]
    except (KeyError, ValueError) as error:
        raise InputError(f"measured rows, line {number}: {error!r}; give the CSV table of measured points") from error


def _mixed_form(line: dict[str, str]) -> Form:
    sizes = (line["tp_size"], line["attention_dp_size"], line["moe_tp_size"], line["moe_ep_size"])
    return Form(*(_count(size) or 1 for size in sizes))


def _pool(line: dict[str, str], role: str) -> Pool:
    tp, dp, ep = (_count(line[f"{role}_{name}_size"]) or 1 for name in ("tp", "attention_dp", "moe_ep"))
    moe_tp = tp * dp // ep if SHAPES.get(line["model_path"], line["model_path"]) != "qwen3-32b" else 1
    return Pool(Form(tp, dp, moe_tp, ep), _count(line[f"{role}_num_workers"]))


def _concurrency(line: dict[str, str]) -> int | None:
    """A column of its own, or part of the note on the source."""
    if "concurrency" in line:
        return _count(line["concurrency"])
    noted = re.search(r"silicon_concurrency=(\d+)", line["silicon_data_source"])
    return int(noted[1]) if noted else None


def _count(text: str) -> int | None:
    return int(float(text)) if text else None


def read_split(path: Path) -> dict[tuple[str, int, int], Side]:
    """Read which keys are held back: a CSV file with the columns shape, prompt_tokens, output_tokens, side.

    Raises:
        InputError: if the file cannot be read or a line does not fit.
    """
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        return {(line["shape"], int(line["prompt_tokens"]), int(line["output_tokens"])): _side(line) for line in lines}
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"split of the measured rows {path}: {error!r}; restore the file") from error


def _side(line: dict[str, str]) -> Side:
    if line["side"] == "fit":
        return "fit"
    if line["side"] == "held-back":
        return "held-back"
    raise ValueError(line["side"])
