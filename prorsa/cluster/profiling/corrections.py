"""Correcting a profile by measured rows: five numbers, found by running the simulator against the rows."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Experts, Fit, Point, Profile
from prorsa.cluster.profiling.bench import Deployment, Load, simulate_load
from prorsa.cluster.profiling.measured import SHORTEST, Row

ROW_SIGMA: Final = 0.1
"""Error (in ln) that a measured row is taken to have; beyond it a row loses weight."""

PRIOR_SIGMA: Final = 0.5
"""How far (in ln) a factor is expected from 1 before rows are seen; a weak prior, worth half a row at most, which
keeps a factor that the rows say nothing about where the source has it."""

PRIOR_REQUEST_MS: Final = 100.0
"""The same for ``request_ms``."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What the source's figures are multiplied with, and what it leaves out.

    Attributes:
        prefill, prefill_experts: factors on the attention and on the experts of a prefill step; rows do not tell them
            apart, so that fits give both the same.
        decode: factor on what a decode step's attention takes without context.
        decode_experts: factor on the experts of a decode step.
        context: factor on what a decode step takes for each token of context.
        request_ms: a request's time outside the engine's steps, in milliseconds.
    """

    prefill: float = 1.0
    prefill_experts: float = 1.0
    decode: float = 1.0
    decode_experts: float = 1.0
    context: float = 1.0
    request_ms: float = 0.0

    def __str__(self) -> str:
        factors = {
            "prefill attention": self.prefill,
            "prefill experts": self.prefill_experts,
            "decode attention without context": self.decode,
            "decode experts": self.decode_experts,
            "decode context": self.context,
        }
        made = [f"{name} × {factor:.2f}" for name, factor in factors.items() if f"{factor:.2f}" != "1.00"]
        made += [f"{self.request_ms:.0f} ms of each request outside the engine"] if self.request_ms >= 0.5 else []
        return ", ".join(made) or "none"


def corrected(profile: Profile, by: Corrections) -> Profile:
    """The profile with the corrections put in."""
    prefill, decode = profile.prefill, profile.decode
    return msgspec.structs.replace(
        profile,
        prefill=Fit(
            a_ms=_round(prefill.a_ms * by.prefill),
            b_ms=_round(prefill.b_ms * by.prefill),
            c_ms=_round(prefill.c_ms * by.prefill),
            d_ms=_round(prefill.d_ms * by.prefill),
            window_tokens=prefill.window_tokens,
        ),
        decode=Fit(
            a_ms=_round(decode.a_ms * by.decode),
            b_ms=_round(decode.b_ms * by.decode),
            c_ms=_round(decode.c_ms * by.context),
        ),
        experts=Experts(
            prefill=_scaled(profile.experts.prefill, by.prefill_experts),
            decode=_scaled(profile.experts.decode, by.decode_experts),
        ),
        request_ms=round(by.request_ms, 1),
    )


def fit_corrections(profile: Profile, rows: Sequence[Row]) -> Corrections:
    """Corrections under which the simulator comes closest to the rows.

    Least squares on ln(simulated / measured) of time to first token and time per output token of each row, with a
    loss that beyond ``ROW_SIGMA`` grows like the error itself, so that no row rules.

    Args:
        profile: as its source has it.
        rows: measured on this form, all of them colocated (``agg``) with a known concurrency.
    """
    from scipy.optimize import least_squares

    loads = [load_of(row) for row in rows]
    measured = np.log([[row.ttft_ms, row.tpot_ms] for row in rows])

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        trial = corrected(profile, _corrections(x))
        got = np.log([astuple(simulate_load(Deployment(trial), load)) for load in loads])
        return np.concatenate([(got - measured).ravel() / ROW_SIGMA, (x - 1) / np.array([PRIOR_SIGMA] * 4 + [1.0])])

    # Differences much smaller than this drown in the simulator's own discreteness.
    found = least_squares(
        residuals,
        np.ones(5),
        loss="soft_l1",
        diff_step=0.02,
        x_scale=0.1,
        bounds=([-1.0] * 4 + [1.0], [3.0] * 4 + [10.0]),
        max_nfev=15,
    )
    corrections = _corrections(found.x)
    return corrections if profile.experts.decode else replace(corrections, prefill_experts=1.0, decode_experts=1.0)


def load_of(row: Row) -> Load:
    """The load that a row was measured under."""
    assert row.concurrency is not None
    return Load(row.prompt_tokens, row.output_tokens, row.concurrency, SHORTEST[row.shape])


def _corrections(x: NDArray[np.float64]) -> Corrections:
    """Of the solver's variables, which are all 1 where nothing is corrected: its differences are relative."""
    prefill, decode, experts, context = np.exp(x[:4] - 1).tolist()
    return Corrections(prefill, prefill, decode, experts, context, (float(x[4]) - 1) * PRIOR_REQUEST_MS)


def _scaled(points: tuple[Point, ...], factor: float) -> tuple[Point, ...]:
    return tuple((tokens, round(ms * factor, 2)) for tokens, ms in points)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
