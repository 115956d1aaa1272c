"""Correcting a profile by measured rows: four numbers, found by running the simulator against the rows."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.profile import Experts, Fit, Point, Profile
from prorsa.cluster.profiling.bench import Deployment, Load, simulate_load
from prorsa.cluster.profiling.measured import Row

PRIOR_SIGMA: Final = 0.5
"""How far (in ln) a factor is expected from 1 before rows are seen; a weak prior, worth half a row at most, which
keeps a factor that the rows say nothing about where the source has it."""

PRIOR_REQUEST_MS: Final = 100.0
"""The same for ``request_ms``."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What the source's figures are multiplied with, and what it leaves out.

    Attributes:
        prefill: factor on every term of a prefill step, experts included.
        decode: factor on the terms of a decode step that do not grow with context, experts included.
        context: factor on what a decode step takes for each token of context.
        request_ms: a request's time outside the engine's steps, in milliseconds.
    """

    prefill: float = 1.0
    decode: float = 1.0
    context: float = 1.0
    request_ms: float = 0.0

    def __str__(self) -> str:
        return (
            f"prefill × {self.prefill:.2f}, decode × {self.decode:.2f}, context of decode × {self.context:.2f}, "
            f"{self.request_ms:.0f} ms a request outside the engine"
        )


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
            prefill=_scaled(profile.experts.prefill, by.prefill), decode=_scaled(profile.experts.decode, by.decode)
        ),
        request_ms=round(by.request_ms, 1),
    )


def fit_corrections(profile: Profile, rows: Sequence[Row]) -> Corrections:
    """Corrections under which the simulator comes closest to the rows.

    Least squares, with a loss that does not let single rows rule, on ln(simulated / measured) of time to first token
    and time per output token of each row.

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
        return np.concatenate([(got - measured).ravel(), (x - 1) / np.array([PRIOR_SIGMA] * 3 + [1.0])])

    # Differences much smaller than this drown in the simulator's own discreteness.
    found = least_squares(
        residuals,
        np.ones(4),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=0.02,
        x_scale=0.1,
        bounds=([0.0] * 3 + [1.0], [2.0] * 3 + [10.0]),
        max_nfev=40,
    )
    return _corrections(found.x)


def load_of(row: Row) -> Load:
    """The load that a row was measured under."""
    assert row.concurrency is not None
    return Load(row.prompt_tokens, row.output_tokens, row.concurrency)


def _corrections(x: NDArray[np.float64]) -> Corrections:
    """Of the solver's variables, which are all 1 where nothing is corrected: its differences are relative."""
    prefill, decode, context = np.exp(x[:3] - 1).tolist()
    return Corrections(prefill, decode, context, (float(x[3]) - 1) * PRIOR_REQUEST_MS)


def _scaled(points: tuple[Point, ...], factor: float) -> tuple[Point, ...]:
    return tuple((tokens, round(ms * factor, 2)) for tokens, ms in points)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
