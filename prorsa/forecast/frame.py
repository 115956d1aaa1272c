"""One tick's forecast, as policies and the console read it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from prorsa.errors import InputError
from prorsa.events import ForecastRow, ForecastTarget, Settled

Seen = Literal["lifecycle", "ewma"]


@dataclass(frozen=True)
class Frame:
    """What the predictor says at a tick.

    Attributes:
        t_ns: run time of the tick.
        live_trajectories: begun and not ended.
        rows: forecasts; see :class:`~prorsa.events.ForecastRow`.
        settled: earlier forecasts that have been settled since the last tick.
        backlog_tokens: uncached tokens of requests that are ready and not yet prefilled, less chunks computed.
        retry_backlog_tokens: tokens that cancelled requests must prefill again; not in ``backlog_tokens``.
        waiting_requests: requests that are ready and not yet admitted by decode.
        resident_kv_tokens: prompt and output so far of the requests that decode has admitted.
        decode_batch: requests that decode.
        mean_context_tokens: mean prompt + output so far of those; None where nothing decodes.
        mean_new_tokens: expected uncached tokens of the next requests.
        mean_prefix_tokens: expected cached tokens of the next requests.
        mean_output_tokens: expected output of an answer.
        request_output_tokens_per_s: output rate of one decoding request.
        requests_per_s: requests expected to become ready, a second, over the longest horizon.
    """

    t_ns: int
    live_trajectories: int
    rows: tuple[ForecastRow, ...]
    settled: tuple[Settled, ...] = ()
    backlog_tokens: float = 0.0
    retry_backlog_tokens: float = 0.0
    waiting_requests: int = 0
    resident_kv_tokens: float = 0.0
    decode_batch: int = 0
    mean_context_tokens: float | None = None
    mean_new_tokens: float = 0.0
    mean_prefix_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    request_output_tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    arrivals_per_s: tuple[float, ...] = field(default=())
    """Uncached tokens expected to become ready in each of the next seconds, for look-ahead."""

    def get(self, target: ForecastTarget, horizon_s: float, source: str = "total") -> ForecastRow:
        """The row of a target, horizon and source.

        Raises:
            InputError: if there is none; names what there is.
        """
        row = self._index.get((target, float(horizon_s), source))
        if row is None:
            horizons = sorted({row.horizon_s for row in self.rows})
            raise InputError(
                f"no forecast of {target} over {horizon_s:g} s from {source!r}; the horizons are "
                f"{', '.join(f'{h:g}' for h in horizons)} s: ask for one of them or add it to the forecast's horizons_s"
            )
        return row

    @cached_property
    def _index(self) -> dict[tuple[str, float, str], ForecastRow]:
        return {(row.target, row.horizon_s, row.source): row for row in self.rows}


def as_seen(frame: Frame, kind: Seen) -> Frame:
    """The frame as a policy sees it: its own, or with a baseline's totals (a mean without quantiles) in their place."""
    if kind == "lifecycle":
        return frame
    return with_totals(
        frame,
        (
            ForecastRow(target=row.target, horizon_s=row.horizon_s, source="total", mean=row.mean)
            for row in frame.rows
            if row.source == kind
        ),
    )


def with_totals(frame: Frame, totals: Iterable[ForecastRow]) -> Frame:
    """The frame with the given rows of source ``total`` in the place of its own of the same target and horizon."""
    given = {(row.target, row.horizon_s): row for row in totals}
    kept = tuple(row for row in frame.rows if row.source != "total" or (row.target, row.horizon_s) not in given)
    return replace(frame, rows=(*kept, *given.values()))
