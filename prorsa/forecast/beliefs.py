"""What a pass over the live trajectories reads, and what it sums up.

*Cells* are the actions, each with its classes of turns.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.columns import Columns

Array = NDArray[np.float64]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Slots(NamedTuple):
    """The columns of :class:`~prorsa.forecast.columns.Columns` that are read here."""

    state: NDArray[np.int8]
    key: Ints
    workload: Ints
    action: Ints
    turn: Ints
    since_s: Array
    expected_s: Array
    prompt_tokens: Array
    first_tokens: Array
    output_tokens: Array
    output_at_s: Array
    answered_s: Array
    flushed: Flags
    sibling: Flags
    fate: Array
    longer: Array
    slower: Array
    larger: Array
    home: Ints
    group: Ints


def slots_of(columns: Columns) -> Slots:
    """The columns that are read."""
    return Slots(
        columns.state,
        columns.key,
        columns.workload,
        columns.action,
        columns.turn,
        columns.since_s,
        columns.expected_s,
        columns.prompt_tokens,
        columns.first_tokens,
        columns.output_tokens,
        columns.output_at_s,
        columns.answered_s,
        columns.flushed,
        columns.sibling,
        columns.fate,
        columns.longer,
        columns.slower,
        columns.larger,
        columns.home,
        columns.group,
    )


class Places(NamedTuple):
    """How far each slot is in its wait of kind ``key`` (-1 for none): ``x`` now, ``x + speed * t`` in ``t`` seconds."""

    key: Ints
    x: Array
    speed: Array


class Beliefs(NamedTuple):
    """What the models say, for one tick.

    Attributes:
        survival, slope: float64[keys, bins], of the hazards; ``edges`` of the bins.
        output_key: int32[actions]; ``output_mean`` float64[actions], of the answer after an action; ``lengths``
            float64[workloads, length classes], multiples of that by turn.
        appended: float64[cells], mean tokens that an action's result appends.
        idle_centres: float64[idle bins], seconds, what depends on idle times is known at these.
        growth: multiples of that by how long it took; see :class:`~prorsa.forecast.habits.Growth`.
        ends_by_turn, ends_by_context: see :class:`~prorsa.forecast.habits.EndTables`.
        loss_chance, loss_share: see :class:`~prorsa.forecast.habits.LossTables`.
        move_chance, move_share: see :class:`~prorsa.forecast.moves.MoveTables`.
        rank_work: float64[ranks], tokens to compute of each rank's queue; ``least_work`` of the shortest that serves.
        rank_tokens_per_s: that a busy rank computes.
        first_share: see :meth:`~prorsa.forecast.habits.FirstShare.shares`.
        output_rate: output tokens a second of one request.
        pause_s: how long the workers stand still from now on.
        lost_in_wait: share of a context that goes, at home, while a request that arrives now waits for admission.
        uncached_output: share of an answer that the next prefill computes again.
        first_tokens: mean first prompt.
    """

    survival: Array
    slope: Array
    edges: Array
    output_key: Ints
    output_mean: Array
    lengths: Array
    appended: Array
    idle_centres: Array
    growth: Array
    ends_by_turn: Array
    ends_by_context: Array
    loss_chance: Array
    loss_share: Array
    move_chance: Array
    move_share: Array
    rank_work: Array
    least_work: float
    rank_tokens_per_s: float
    first_share: Array
    output_rate: float
    pause_s: float
    lost_in_wait: float
    uncached_output: float
    first_tokens: float


class Expected(NamedTuple):
    """Sums over the live trajectories, between edges of the time axis; horizons are some of the edges.

    Attributes:
        tool, box: float64[3, edges], requests that become ready after a tool (a start-up), their uncached tokens and
            their prompt tokens.
        going: float64[3, edges], answers that end and after which the trajectory goes on, contexts and outputs then.
        ending: float64[edges], answers that end their trajectory; ``rewarded`` float64[edges], rewards that end.
        released: float64[edges], KV tokens of answers that end.
        counts: float64[horizons, size bins], intensity of uncached parts of known size; ``sure`` float64[horizons],
            tokens that are as good as certain.
        found: float64[horizons, cells], requests that find their context, by what is appended.
        admissible, admissible2: float64[horizons, size bins], sums of chances (and of their squares) of requests, by
            prompt + answer; ``squares`` float64[horizons], sums of squared chances times tokens.
        coming: float64[cells], that will go on after an answer, by action before it and turn.
        contexts: float64[size bins], trajectories past their first turn, by prompt.
        finish_variance: float64[horizons], variance of the KV that answers release.
        totals: float64[7]: live, decoding, KV tokens of what decodes, contexts past the first turn, their number, and
            how many of them would be left behind at their next turn, and tokens of these that would be missed.
    """

    tool: Array
    box: Array
    going: Array
    ending: Array
    rewarded: Array
    released: Array
    counts: Array
    sure: Array
    found: Array
    admissible: Array
    admissible2: Array
    squares: Array
    coming: Array
    contexts: Array
    finish_variance: Array
    totals: Array


def nothing_expected(edges: int, horizons: int, sizes: int, cells: int) -> Expected:
    """All sums at 0."""
    zeros = np.zeros
    return Expected(
        tool=zeros((3, edges)),
        box=zeros((3, edges)),
        going=zeros((3, edges)),
        ending=zeros(edges),
        rewarded=zeros(edges),
        released=zeros(edges),
        counts=zeros((horizons, sizes)),
        sure=zeros(horizons),
        found=zeros((horizons, cells)),
        admissible=zeros((horizons, sizes)),
        admissible2=zeros((horizons, sizes)),
        squares=zeros(horizons),
        coming=zeros(cells),
        contexts=zeros(sizes),
        finish_variance=zeros(horizons),
        totals=zeros(7),
    )
